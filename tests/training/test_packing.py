"""Packed, in buckets, or one pair at a time: the same model, loss and gradients."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jformer.components import BUILT_IN
from jformer.config import BOS, EOS, ModelConfig
from jformer.model.transformer import Transformer
from jformer.training.loss import loss_sums
from jformer.training.step import run_model
from tests.conftest import random_params

V, PAIRS = 19, 24
MODEL = ModelConfig(num_layers=1, d_model=14, d_ff=17, num_heads=3, d_k=4, d_v=5)


def random_pairs():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 12, (PAIRS, 2))
    return [[[*rng.integers(3, V, n), EOS] for n in of_pair] for of_pair in lengths]


def batch_of(rows):
    """A batch of rows, of which each is a list of pairs; none is without padding."""
    length = 13 * max(map(len, rows))
    names = ["source_BS", "labels_BT", "target_BT", "source_segments_BS", "target_segments_BT"]
    batch = {name: np.zeros((len(rows), length), np.int32) for name in names}
    for b, row in enumerate(rows):
        s = t = 0
        for segment, (source, target) in enumerate(row, start=1):
            batch["source_BS"][b, s : s + len(source)] = source
            batch["source_segments_BS"][b, s : s + len(source)] = segment
            batch["labels_BT"][b, t : t + len(target)] = target
            batch["target_BT"][b, t : t + len(target)] = [BOS, *target[:-1]]
            batch["target_segments_BT"][b, t : t + len(target)] = segment
            s, t = s + len(source), t + len(target)
    is_packed = any(len(row) > 1 for row in rows)
    return {name: rows for name, rows in batch.items() if is_packed or "segments" not in name}


@functools.cache
def batches(kind):
    """All batches of one epoch of the same pairs."""
    alone = [[pair] for pair in random_pairs()]
    packed = [random_pairs()[first : first + 4] for first in range(0, PAIRS, 4)]
    rows, size = {
        "one at a time": (alone, 1),
        "buckets": (sorted(alone, key=lambda row: len(row[0][0])), 6),
        "packed": (packed, 3),
    }[kind]
    return [batch_of(rows[first : first + size]) for first in range(0, len(rows), size)]


@functools.cache
def model(changes):
    return Transformer(dataclasses.replace(MODEL, **dict(changes)), V)


def loss(params, model, batch):
    sums = loss_sums(run_model(model, params, batch), batch["labels_BT"], 0.1)
    return sums["loss"], sums


value = jax.jit(loss, static_argnums=1)
gradient = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)


@functools.cache
def parameters(changes):
    return random_params(model(changes))


def total(function, kind, changes):
    """Loss, NLL and tokens of all pairs, and before them the gradient of the loss or the loss."""
    parts = [function(parameters(changes), model(changes), batch) for batch in batches(kind)]
    return jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *parts)


def assert_same_sums(sums, expected):
    assert sums["tokens"] == expected["tokens"]
    # Float32 sums in another order.
    for name in ("loss", "nll"):
        np.testing.assert_allclose(sums[name], expected[name], rtol=1e-5)


@pytest.mark.parametrize(
    ("kinds", "changes"),
    [
        (("buckets", "packed"), ()),
        (("packed",), (("norm_position", "pre"), ("positions", "rotary"))),
    ],
)
def test_loss_and_gradient_are_those_of_one_pair_at_a_time(kinds, changes):
    one_leaves, one_sums = total(gradient, "one at a time", changes)
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(one_leaves))
    for kind in kinds:
        leaves, sums = total(gradient, kind, changes)
        assert_same_sums(sums, one_sums)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale), leaves, one_leaves
        )


@pytest.mark.parametrize(
    "changes",
    [
        *((("positions", positions),) for positions in BUILT_IN["positions"]),
        (("positions", "rotary(cross_attention=True)"),),
    ],
)
def test_packed_pairs_count_their_positions_from_their_own_beginning(changes):
    sums, one_sums = (total(value, kind, changes)[1] for kind in ("packed", "one at a time"))
    assert_same_sums(sums, one_sums)


def test_a_pair_of_a_packed_row_cannot_see_another():
    """The logits of the first pair stay, to the bit, when the others of the row change."""
    made = model(())
    batch = {name: rows[:1].copy() for name, rows in batches("packed")[0].items()}
    params, first = parameters(()), batch["target_segments_BT"][0] == 1
    logits_of = jax.jit(functools.partial(run_model, made))
    before = np.asarray(logits_of(params, batch))[0, first]
    for name, segments in (
        ("source_BS", "source_segments_BS"),
        ("target_BT", "target_segments_BT"),
    ):
        other = batch[segments][0] > 1
        batch[name][0, other] = (batch[name][0, other] + 1) % V
    after = np.asarray(logits_of(params, batch))[0]
    np.testing.assert_array_equal(after[first], before)
