"""Packed, in buckets, or one pair at a time: the same model, loss and gradients."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jformer.components import BUILT_IN
from jformer.config import EOS, ModelConfig
from jformer.data.batches import Batches
from jformer.data.layout import Buckets, Packing
from jformer.data.ragged import Ragged, TokenPairs
from jformer.model.transformer import Transformer
from jformer.training.loss import loss_sums
from jformer.training.step import run_model
from tests.conftest import random_params

V, PAIRS = 19, 23
MODEL = ModelConfig(num_layers=1, d_model=14, d_ff=17, num_heads=3, d_k=4, d_v=5)


@functools.cache
def batches(kind):
    """All batches of one epoch of the same pairs."""
    rng = np.random.default_rng(0)
    sides = [
        Ragged.from_rows([[*rng.integers(3, V, n), EOS] for n in rng.integers(1, 12, PAIRS)])
        for _ in range(2)
    ]
    pairs, rows = TokenPairs(*sides), np.arange(PAIRS)
    S, T = pairs.lengths(rows)
    layout = {
        "one at a time": lambda: Buckets(S, T, 12, 1, 4),
        "buckets": lambda: Buckets(S, T, 48, 3, 4),
        "packed": lambda: Packing(S, T, 120, 40, 4),
    }[kind]()
    made = Batches(pairs, rows, layout, seed=1)
    return [made.batch(0, number) for number in range(len(made.epoch(0)))]


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
        (("packed",), (("norm_position", "pre"), ("positions", "relative"))),
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
