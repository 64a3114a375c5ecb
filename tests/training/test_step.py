"""The train step as a pure function."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.config import BOS, EOS, PAD, ModelConfig, OptimizerConfig, TrainConfig
from jformer.model.transformer import Transformer
from jformer.training import step as step_module
from jformer.training.loss import loss_sums, r_drop_kl
from jformer.training.optimizer import make_optimizer
from jformer.training.step import create_state, evaluation_step, make_train_step

V = 31
CONFIG = ModelConfig(num_layers=1, d_model=16, d_ff=24, num_heads=2, dropout=0.2)
KEY = jax.random.key(9)


ADAM = make_optimizer(OptimizerConfig(), lambda count: 0.01)


def model_with(dropout):
    return Transformer(dataclasses.replace(CONFIG, dropout=dropout), V)


@functools.cache
def initial_state():
    """The same for all tests: neither dropout nor a key of `train` changes the parameters."""
    return jax.jit(lambda key: create_state(model_with(0.2), ADAM, key))(jax.random.key(0))


@functools.cache
def setup(dropout=0.2, **train):
    """A compiled step, shared by the tests, and a state to begin with."""
    config, state = TrainConfig(**train), initial_state()
    if config.ema_decay:
        state = state.replace(ema=jax.tree.map(jnp.copy, state.params))
    return jax.jit(make_train_step(model_with(dropout), ADAM, config)), state


evaluate = jax.jit(evaluation_step, static_argnums=0)


def batch(seed=0):
    """One shape for all tests: a step of another would be compiled once more."""
    source = np.random.default_rng(seed).integers(3, V, (16, 5))
    ends = [np.full((16, 1), mark) for mark in (BOS, EOS)]
    target, labels = np.hstack([ends[0], source]), np.hstack([source, ends[1]])
    named = {"source_BS": source, "target_BT": target, "labels_BT": labels}
    return {name: rows.astype(np.int32) for name, rows in named.items()}


def assert_trees_close(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


def test_the_gradient_is_that_of_the_mean_over_all_tokens():
    """Adam's first moment after one step is 0.1 of the gradient."""
    step, state = setup(dropout=0.0)
    short = batch()
    for name in ("target_BT", "labels_BT"):
        short[name][8:, 2:] = PAD  # eight rows of 2 tokens beside eight of 6

    def gradient(rows):
        chosen = {name: np.zeros_like(value) for name, value in short.items()}
        for name, value in short.items():
            chosen[name][rows] = value[rows]
        new, metrics = step(state, chosen, KEY)
        return jax.tree.map(lambda m: 10 * m, new.optimizer_state[0].mu), metrics["tokens"]

    (whole, tokens), (long, n), (rest, m) = (
        gradient(r) for r in (slice(0, 16), slice(0, 8), slice(8, 16))
    )
    assert (float(n), float(m), float(tokens)) == (48, 16, 64)
    weighted = jax.tree.map(lambda a, b: (48 * a + 16 * b) / 64, long, rest)
    assert_trees_close(whole, weighted, atol=1e-6)


def test_r_drop_is_the_loss_of_two_passes_and_their_divergence():
    step, state = setup(r_drop_alpha=5.0)
    _, sums = step(state, batch(), KEY)
    twice = {name: np.repeat(rows, 2, axis=0) for name, rows in batch().items()}
    two_passes = functools.partial(model_with(0.2).apply, train=True)
    logits_BTV = jax.jit(two_passes)(
        {"params": state.params}, twice["source_BS"], twice["target_BT"],
        rngs={"dropout": jax.random.fold_in(KEY, 0)},
    )  # fmt: skip
    plain = loss_sums(logits_BTV, twice["labels_BT"], 0.1)
    apart = r_drop_kl(logits_BTV[::2], logits_BTV[1::2], batch()["labels_BT"]).sum()
    assert float(sums["tokens"]) == 96
    assert float(sums["nll"]) == pytest.approx(float(plain["nll"]) / 2, rel=1e-5)
    expected = float(plain["loss"]) / 2 + 5.0 / 2 * float(apart)
    assert float(sums["loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(apart) > 1
    _, later = step(state.replace(step=state.step + 1), batch(), KEY)  # draws other masks
    assert float(later["loss"]) != float(sums["loss"])


def step_in_chunks(monkeypatch, chunks, dropout, **train):
    monkeypatch.setattr(step_module, "loss_chunks", lambda *_: chunks)
    return jax.jit(make_train_step(model_with(dropout), ADAM, TrainConfig(**train)))


@pytest.mark.parametrize(("chunks", "train"), [(4, {}), (8, {"accumulate": 2})])
def test_a_loss_in_chunks_has_the_sums_and_the_gradient_of_all_rows_at_once(
    chunks, train, monkeypatch
):
    """Of 16 rows with 6 positions each, or of 8 in each of two parts."""
    state = initial_state()
    end, sums = step_in_chunks(monkeypatch, chunks, 0.0, **train)(state, batch(), KEY)

    @functools.partial(jax.grad, has_aux=True)
    def gradient(params):
        texts = batch()["source_BS"], batch()["target_BT"]
        logits_BTV = model_with(0.0).apply({"params": params}, *texts)
        whole = loss_sums(logits_BTV, batch()["labels_BT"], 0.1)
        return whole["loss"] / whole["tokens"], whole

    expected, whole = jax.jit(gradient)(state.params)
    for name, total in whole.items():
        assert float(sums[name]) == pytest.approx(float(total), rel=1e-6)
    first_moment = jax.tree.map(lambda gradient: 0.1 * gradient, expected)
    assert_trees_close(end.optimizer_state[0].mu, first_moment, rtol=1e-4, atol=1e-8)


def test_r_drop_in_chunks_keeps_the_two_passes_of_a_row_together(monkeypatch):
    whole, state = setup(r_drop_alpha=5.0)
    a, at_once = whole(state, batch(), KEY)
    chunked = step_in_chunks(monkeypatch, 16, 0.2, r_drop_alpha=5.0)
    b, in_chunks = chunked(state, batch(), KEY)
    assert float(in_chunks["loss"]) == pytest.approx(float(at_once["loss"]), rel=1e-5)
    assert_trees_close(a.optimizer_state[0].mu, b.optimizer_state[0].mu, atol=1e-7)


def test_the_moving_average_follows_the_new_parameters_with_a_decay_that_warms_up():
    """As tf.train.ExponentialMovingAverage with num_updates: decays of 1/10, 2/11, 3/12, 0.27."""
    step, state = setup(dropout=0.0, ema_decay=0.27)
    expected = jax.tree.map(lambda x: np.asarray(x, np.float64), state.params)
    for decay in (1 / 10, 2 / 11, 3 / 12, 0.27, 0.27):
        state, _ = step(state, batch(), KEY)
        expected = jax.tree.map(
            lambda old, new, d=decay: d * old + (1 - d) * np.asarray(new), expected, state.params
        )
        # Float32 against float64; an update moves a parameter by 1e-2.
        assert_trees_close(state.ema, expected, atol=1e-6)


def test_each_accumulated_part_draws_masks_of_its_own():
    """Two parts of the same rows: each under the step's key with its own number folded in."""
    step, state = setup(accumulate=2)
    twice = {name: np.repeat(rows, 2, axis=0) for name, rows in batch().items()}  # rows take turns
    _, sums = step(state, twice, KEY)

    @jax.jit
    def nll(part):
        key = jax.random.fold_in(jax.random.fold_in(KEY, 0), part)
        logits_BTV = Transformer(CONFIG, V).apply(
            {"params": state.params}, batch()["source_BS"], batch()["target_BT"], train=True,
            rngs={"dropout": key},
        )  # fmt: skip
        return loss_sums(logits_BTV, batch()["labels_BT"], 0.1)["nll"]

    first, second = float(nll(0)), float(nll(1))
    assert first != pytest.approx(second, rel=1e-4)
    assert float(sums["nll"]) == pytest.approx(first + second, rel=1e-5)  # float32


BAD = 3  # a source word whose embedding is not finite


@functools.cache
def poisoned(accumulate=1):
    """A compiled step whose learning rate is 0.01 times the step's number, and a state for it."""
    model = Transformer(dataclasses.replace(CONFIG, dropout=0, tying="none"), V)
    adam = make_optimizer(OptimizerConfig(), lambda count: 0.01 * (count + 1))
    train = TrainConfig(accumulate=accumulate, ema_decay=0.9)
    state = jax.jit(lambda: create_state(model, adam, jax.random.key(0), with_ema=True))()
    embedding = state.params["source_embedding"].at[BAD].set(jnp.nan)
    state = state.replace(params={**state.params, "source_embedding": embedding})
    return jax.jit(make_train_step(model, adam, train)), state


def with_bad_words(*rows):
    """A batch with the bad word in these rows only."""
    source = np.where(batch()["source_BS"] == BAD, BAD + 1, batch()["source_BS"])
    source[[*rows], 2] = BAD
    return {**batch(), "source_BS": source}


@pytest.mark.parametrize(("accumulate", "row"), [(1, 3), (2, 0)])
def test_a_step_that_is_not_finite_changes_nothing_but_its_number(accumulate, row):
    """Also where one part of the batch is: with two parts, rows 0 and 1 are of different ones."""
    step, state = poisoned(accumulate)
    after, metrics = step(state, with_bad_words(row), KEY)
    assert int(after.step) == 1
    assert_trees_close(after.replace(step=state.step), state, rtol=0)
    zeros = dict.fromkeys(("loss", "nll", "tokens", "gradient_norm"), 0)
    assert {name: float(value) for name, value in metrics.items()} == {**zeros, "skipped": 1}
    assert int(step(state, with_bad_words(), KEY)[1]["skipped"]) == 0


def test_a_finite_loss_with_a_gradient_that_is_not_is_skipped_too():
    """Logits of 1e24: so is the loss, and the square of such a gradient is beyond float32."""
    step, state = poisoned()
    state = state.replace(params={**state.params, "output": 1e25 * state.params["output"]})
    model = Transformer(dataclasses.replace(CONFIG, dropout=0, tying="none"), V)
    assert np.isfinite(evaluate(model, state.params, with_bad_words())["loss"])
    after, metrics = step(state, with_bad_words(), KEY)
    assert int(metrics["skipped"]) == 1
    assert_trees_close(after.replace(step=state.step), state, rtol=0)


def test_the_step_after_a_skipped_one_has_the_learning_rate_of_its_number_and_nothing_else_of_it():
    """Adam's first update is the rate times a direction that does not depend on the rate."""
    step, state = poisoned()
    first, _ = step(state, with_bad_words(), KEY)
    skipped, _ = step(state, with_bad_words(5), KEY)
    second, metrics = step(skipped, with_bad_words(), KEY)
    assert (int(second.step), int(metrics["skipped"])) == (2, 0)
    assert int(second.optimizer_state[0].count) == 1
    changes = (after.params["output"] - state.params["output"] for after in (first, second))
    once, twice = map(np.asarray, changes)
    # Differences of parameters of about 1 are exact to 1e-7.
    np.testing.assert_allclose(twice, 2 * once, atol=1e-6)
    assert abs(once).max() > 1e-3
