"""A plan of a training run, against the paper's own hours, real files and arithmetic by hand."""

import dataclasses
import tracemalloc
from itertools import compress
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base, big
from jformer.config import Config, TrainConfig, freeze
from jformer.data.batches import Batches, Buckets
from jformer.data.datasets import open_corpora
from jformer.data.tokens import (
    Ragged,
    TokenPairs,
    content_hash,
    make_vocabularies,
    tokenize_corpora,
)
from jformer.extras.cost import run_sizes, step_bytes
from jformer.extras.plan import (
    UTILIZATION,
    Assumptions,
    Sizes,
    cache_bytes,
    checkpoint_bytes,
    exchanged_bytes,
    first_limit,
    make_plan,
)
from jformer.model.transformer import Transformer
from jformer.training.checkpoints import Checkpoints, KeepRegular
from jformer.training.loop import from_config
from tests.conftest import number_words, small_config, write_split

BASE, BIG = freeze(base.get_config("wmt14")), freeze(big.get_config("wmt14"))
PAIR = (32, 32)
MACHINE = {"data": 8, "fsdp": 1, "model": 1}
SIZES = Sizes(parameters=10**8, state=12 * 10**8, device_state=12 * 10**8, device_step=4 * 10**9)
P100 = 9.5e12  # single-precision FLOP/s, of which the paper's Table 2 takes all


def plan_of(config=BASE, mesh=MACHINE, sizes=SIZES, hours=0.0, corpus=0, **given):
    given = Assumptions(**{"peak": 1e14, **given})
    return make_plan(config, PAIR, mesh, sizes, given, hours, corpus)


# Section 5.2: seconds of a step and days on 8 P100; Table 2: FLOPs of the training, en-de.
@pytest.mark.parametrize(
    ("config", "seconds", "hours", "flops"),
    [(BASE, 0.4, 12, 3.3e18), (BIG, 1.0, 3.5 * 24, 2.3e19)],
    ids=["base", "big"],
)
def test_the_papers_hours_on_8_p100_have_the_flops_of_its_table_2(config, seconds, hours, flops):
    assert 8 * P100 * hours * 3600 == pytest.approx(flops, rel=0.01)
    full = plan_of(config, peak=P100, mfu=1.0, link=16e9)
    # The paper counts what the GPUs could have done: the model needs a quarter to a half of it.
    assert 0.2 < full.flops * full.steps / flops < 0.5
    mfu = full.flops / (8 * P100 * seconds)
    planned = plan_of(config, peak=P100, mfu=mfu, link=16e9)
    assert planned.steps * planned.step / 3600 == pytest.approx(hours, rel=0.1)
    assert planned.step == planned.compute  # gradients over PCIe are exchanged meanwhile


def test_the_operations_of_a_step_are_six_a_parameter_and_token_and_those_of_attention():
    """A token of either side meets the matrices of its stack: 6 D^2 + 2 D F, or 8 D^2 + 2 D F."""
    D, F, V, L = 512, 2048, 37_000, 6
    pairs = 25_000 * UTILIZATION["buckets"] / 32
    encoder = 32 * L * (4 * D**2 + 2 * D * F)
    decoder = 32 * L * (8 * D**2 + 2 * D * F) + 32 * D * V
    attention = 3 * L * 32 * 32 * 2 * D
    assert plan_of().flops == pytest.approx(6 * pairs * (encoder + decoder + attention))


def test_time_is_operations_over_the_part_of_the_peak_that_is_used():
    plan = plan_of(peak=5e13, mfu=0.2)
    assert plan.compute == pytest.approx(plan.flops / (8 * 5e13 * 0.2))
    assert plan.tokens == 25_000 * UTILIZATION["buckets"]
    assert plan.steps == 100_000
    twice = plan_of(peak=5e13, mfu=0.4)
    assert twice.compute == pytest.approx(plan.compute / 2)


def test_a_step_takes_as_long_as_the_longest_of_computation_exchange_and_batches():
    slow = {
        "compute": plan_of(peak=1e12),
        "exchange": plan_of(link=1e6),
        "making_batch": plan_of(batch_time=1.0),
    }
    for name, plan in slow.items():
        parts = {each: getattr(plan, each) for each in slow}
        assert max(parts, key=parts.get) == name
        assert plan.step == parts[name]


def test_hours_are_filled_with_whole_steps():
    plan = plan_of(hours=12, corpus=4_500_000)
    assert plan.steps * plan.step <= 12 * 3600 < (plan.steps + 1) * plan.step
    assert plan.pairs * 32 == pytest.approx(plan.steps * plan.tokens)
    assert plan_of(hours=1e-6).steps == 0


def test_gradients_go_round_a_ring_and_fsdp_sends_parameters_twice_besides():
    def sent(**axes):
        return exchanged_bytes(100, {"data": 1, "fsdp": 1, "model": 1, **axes})

    assert sent() == 0
    assert sent(data=4) == 2 * 3 * 100  # 3 of 4 quarters, of 4 bytes each, and once more
    assert sent(fsdp=4) == 3 * 3 * 100
    assert sent(model=4) == 0
    assert sent(data=4, model=2) == sent(data=4) / 2
    assert sent(data=4, fsdp=2) == sent(data=4) / 2 + sent(fsdp=2)


def test_beyond_a_machine_the_slower_link_counts_and_machines_share_out_the_batches():
    two = plan_of(mesh={**MACHINE, "data": 16})
    one = plan_of()
    given = Assumptions(1.0)
    assert one.exchange == pytest.approx(one.exchanged / given.link_within_machine)
    assert two.exchange == pytest.approx(two.exchanged / given.link_between_machines)
    assert two.making_batch == one.making_batch / 2
    assert plan_of(link=7e9).exchange == pytest.approx(one.exchanged / 7e9)


def test_a_device_is_busy_with_its_share_of_a_part_of_the_batch():
    in_parts = dataclasses.replace(BASE, train=dataclasses.replace(BASE.train, accumulate=5))
    tokens = 25_000 * UTILIZATION["buckets"] / 8
    assert plan_of(least_tokens=100).limits["tokens a device"] == pytest.approx(100 / tokens)
    parts = plan_of(in_parts, least_tokens=100)
    assert parts.limits["tokens a device"] == pytest.approx(100 / (tokens / 5))


@pytest.mark.parametrize("steps", [1, 999, 1000, 5500, 12_000])
@pytest.mark.parametrize(
    "keys", [{}, {"keep_checkpoints": 8}, {"keep_every": 1500}, {"keep_every": 2000}]
)
def test_as_many_checkpoints_are_planned_as_a_run_keeps(steps, keys):
    train = TrainConfig(steps=steps, checkpoint_every=1000, **keys)
    regular = sorted({*range(1000, steps + 1, 1000), steps})
    left: list[SimpleNamespace] = []
    for step in regular:
        left.append(SimpleNamespace(step=step))
        left = [*compress(left, KeepRegular(train).should_preserve(left, context=None))]
    config = dataclasses.replace(BASE, train=train)
    sizes = dataclasses.replace(SIZES, parameters=10, state=1000)
    assert checkpoint_bytes(config, steps, sizes) == 1000 * len(left) + 4 * 10


@pytest.mark.process
@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_checkpoints_take_the_planned_bytes(tmp_path, ema_decay):
    config = small_config(ema_decay=ema_decay)
    data = dataclasses.replace(config.data, vocabulary_size=30_000)
    config = dataclasses.replace(config, data=data)
    _, create, _ = from_config(config, Transformer(config.model, 30_000))
    key = jax.random.key(0)
    # Random numbers throughout: the zeros of fresh moments would be compressed to nothing.
    state = jax.tree.map(
        lambda leaf: jax.random.normal(key, leaf.shape) if leaf.ndim else leaf, create(key)
    )
    with Checkpoints(tmp_path, config.train) as checkpoints:
        for step in (3, 6, 9, 12):
            checkpoints.save(state.replace(step=jnp.int32(step)), {}, {})
        checkpoints.save_best(state, {})
    written = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    sizes = run_sizes(config, {"data": 1, "fsdp": 1, "model": 1})
    assert written == pytest.approx(checkpoint_bytes(config, 12, sizes), rel=0.1)


def test_token_ids_take_the_planned_bytes(tmp_path):
    write_split(tmp_path / "train", number_words(100, 900))
    data = dataclasses.replace(
        small_config().data, train=str(tmp_path / "train"), validation=str(tmp_path / "train"),
        cache=str(tmp_path / "cache"),
    )  # fmt: skip
    corpora = open_corpora(Config(data=dataclasses.replace(data, test="")))["train"]
    content = content_hash(corpora)
    pairs = tokenize_corpora(corpora, content, make_vocabularies(corpora, content, data), data)
    S, T = (side.lengths.mean() for side in pairs.pairs)
    [folder] = (tmp_path / "cache").glob("tokens-*/")
    arrays = [path for path in folder.iterdir() if path.name != "meta.json"]
    written = sum(path.stat().st_size for path in arrays)
    config = dataclasses.replace(BASE, data=data)
    assert written == pytest.approx(800 * cache_bytes(config, S, T), rel=0.03)


def test_planning_an_epoch_takes_the_planned_memory_of_the_host():
    N = 200_000
    lengths = np.random.default_rng(0).integers(2, 60, (2, N))
    pairs = TokenPairs(*(Ragged.from_lengths(np.zeros(L.sum(), np.uint16), L) for L in lengths))
    tracemalloc.start()
    try:
        rows = np.arange(N, dtype=np.int32)
        Batches(pairs, rows, Buckets(*pairs.lengths(rows), 25_000, 10, 4), 0).epoch(0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / N == pytest.approx(Assumptions(1.0).epoch_memory, rel=0.15)


@pytest.mark.process
def test_fsdp_splits_the_state_and_a_device_compiles_its_share_of_the_batch():
    config = small_config(batch_tokens=8 * 2048)
    one, eight = (run_sizes(config, {"data": 1, "fsdp": fsdp, "model": 1}) for fsdp in (1, 8))
    assert one.state == eight.state == pytest.approx(12 * one.parameters, rel=0.001)
    assert one.device_state == one.state
    # All but the norms and the biases is split.
    assert one.state / 8 < eight.device_state < one.state / 5
    assert one.device_step == step_bytes(config, 8 * 2048, 48)
    # On several devices the loss of a share, of more than a chunk, is computed at once.
    saved = eight.state - eight.device_state
    assert eight.device_step == step_bytes(config, 2048, 48, alone=False) - saved


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"link": 1e6}, "exchange"),
        ({"batch_time": 1.0}, "making batches"),
        ({"least_tokens": 10**7}, "tokens a device"),
        ({"memory": 1e6}, "memory"),
        ({"tokenizing_time": 1e6}, "tokenizing"),
    ],
)
def test_what_breaks_first_is_the_limit_that_is_passed_by_most(changes, limit):
    calm = {"peak": 1e11, "least_tokens": 1, "memory": 1e15}
    assert "would" in first_limit(plan_of(corpus=1000, **calm))  # none is passed
    message = first_limit(plan_of(corpus=1000, **{**calm, **changes}))
    assert message.startswith(f"8 devices: {limit}")
    assert "would" not in message
