"""Updates that are not finite: skipped whole, counted in a row, and after too many the end."""

import dataclasses
import functools
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jformer
from jformer.config import BOS, EOS, ModelConfig, OptimizerConfig, TrainConfig
from jformer.main import main
from jformer.model.transformer import Transformer
from jformer.training import step as step_module
from jformer.training.metrics import StepMetrics
from jformer.training.nonfinite import NonFiniteGuard
from jformer.training.optimizer import make_optimizer
from jformer.training.step import create_state, evaluation_step, make_train_step
from tests.conftest import small_flags

pytestmark = pytest.mark.process

V, BAD = 31, 7
KEY = jax.random.key(9)
MODEL = ModelConfig(num_layers=1, d_model=16, d_ff=24, num_heads=2, dropout=0, tying="none")
TOO_HIGH = ["--config.optimizer.learning_rate_factor=1e30", "--config.train.max_skipped=3"]


def rate(step):
    return 0.01 * (step + 1)


@functools.cache
def setup(accumulate=1):
    """A compiled step, and a state in which one source word is not finite."""
    model = Transformer(MODEL, V)
    adam = make_optimizer(OptimizerConfig(), rate)
    step = jax.jit(make_train_step(model, adam, TrainConfig(accumulate=accumulate, ema_decay=0.9)))
    state = jax.jit(lambda: create_state(model, adam, jax.random.key(0), with_ema=True))()
    embedding = state.params["source_embedding"].at[BAD].set(jnp.nan)
    return step, dataclasses.replace(state, params={**state.params, "source_embedding": embedding})


def batch(bad_row=None):
    source = np.random.default_rng(0).integers(BAD + 1, V, (8, 5)).astype(np.int32)
    ends = [np.full((8, 1), mark, np.int32) for mark in (BOS, EOS)]
    target, labels = np.hstack([ends[0], source]), np.hstack([source, ends[1]])
    if bad_row is not None:
        source = source.copy()
        source[bad_row, 2] = BAD
    return {"source_BS": source, "target_BT": target, "labels_BT": labels}


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_step_that_is_not_finite_changes_nothing_but_its_number():
    step, state = setup()
    after, metrics = step(state, batch(bad_row=3), KEY)
    assert int(after.step) == 1
    assert_same(dataclasses.replace(after, step=state.step), state)
    assert {name: float(value) for name, value in metrics.items()} == {
        "skipped": 1, "loss": 0, "nll": 0, "tokens": 0, "gradient_norm": 0,
    }  # fmt: skip


def test_a_finite_loss_with_a_gradient_that_is_not_is_skipped_too():
    """Logits of 1e24: so is the loss, and the square of such a gradient is beyond float32."""
    step, state = setup()
    large = {**state.params, "output": 1e25 * state.params["output"]}
    state = dataclasses.replace(state, params=large)
    after, metrics = step(state, batch(), KEY)
    evaluate = jax.jit(evaluation_step, static_argnums=0)
    assert np.isfinite(evaluate(Transformer(MODEL, V), state.params, batch())["loss"])
    assert int(metrics["skipped"]) == 1
    assert_same(dataclasses.replace(after, step=state.step), state)


def test_the_step_after_a_skipped_one_is_as_if_nothing_had_been():
    step, state = setup()
    skipped, _ = step(state, batch(bad_row=3), KEY)
    assert_same(
        step(skipped, batch(), KEY),
        step(dataclasses.replace(state, step=jnp.int32(1)), batch(), KEY),
    )
    after, metrics = step(skipped, batch(), KEY)
    assert (int(after.step), int(metrics["skipped"])) == (2, 0)
    assert float(metrics["loss"]) > 0
    assert int(after.optimizer_state[0].count) == 1
    assert not np.array_equal(after.params["output"], state.params["output"])
    assert not np.array_equal(after.ema["output"], state.ema["output"])


def test_the_step_after_a_skipped_one_has_the_learning_rate_of_its_number():
    """Adam's first update is the rate times a direction that does not depend on the rate."""
    step, state = setup()
    skipped, _ = step(state, batch(bad_row=3), KEY)

    def change(before):
        after, _ = step(before, batch(), KEY)
        return np.asarray(after.params["output"] - before.params["output"])

    # The differences of parameters of about 1 are exact to 1e-7, of a rate of 1e-2.
    np.testing.assert_allclose(change(skipped), change(state) * rate(1) / rate(0), atol=1e-6)


def test_one_bad_part_of_a_batch_spoils_the_whole_update():
    step, state = setup(accumulate=2)
    for bad_row in (0, 1):  # rows of the first part, and of the second
        after, metrics = step(state, batch(bad_row), KEY)
        assert int(metrics["skipped"]) == 1
        assert_same(dataclasses.replace(after, step=state.step), state)
    assert int(step(state, batch(), KEY)[1]["skipped"]) == 0


def seen(step, skipped):
    return StepMetrics(step, 2, step + 10, {"skipped": skipped})


def test_a_step_that_is_taken_ends_the_row():
    skipped = NonFiniteGuard(2, [])
    assert [skipped.note(seen(n, bad)) for n, bad in ((1, 1), (2, 0), (3, 1))] == [1, 0, 1]
    assert skipped.row == [{"step": 3, "epoch": 2, "batch": 13}]
    assert not skipped.too_many
    skipped.note(seen(4, 1))
    assert skipped.too_many


def test_no_more_steps_than_may_be_in_a_row_are_begun():
    """Whatever their number, and wherever the row begins: up to two are seen late."""
    for most in range(1, 8):
        for first in range(1, 9):
            skipped, pending, step = NonFiniteGuard(most, []), [], 0
            while not skipped.too_many:
                step += 1
                pending.append(step)
                while len(pending) > skipped.behind:
                    known = pending.pop(0)
                    skipped.note(seen(known, known >= first))
            assert step == first + most - 1
            assert len(skipped.row) == most


def metrics_of(workdir, split):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split]


def run(workdir, corpus_directory, *more):
    flags = [f for f in small_flags(corpus_directory, workdir) if "data.test" not in f]
    return main(["jformer", *flags, *more])


@pytest.fixture(scope="module")
def diverged(corpus_directory, tmp_path_factory):
    """The first update makes the parameters so large that no other step is finite."""
    workdir = tmp_path_factory.mktemp("nonfinite") / "run"
    assert run(workdir, corpus_directory, *TOO_HIGH) == 1
    return workdir


def test_a_run_ends_at_too_many_in_a_row_and_each_has_its_line(diverged):
    assert metrics_of(diverged, "skipped") == [
        {"step": step, "split": "skipped", "epoch": 0, "batch": step - 1} for step in (2, 3, 4)
    ]
    assert not metrics_of(diverged, "train")
    assert not metrics_of(diverged, "validation")


def test_what_is_dumped_meets_the_same_batches_at_its_first_step(
    diverged, corpus_directory, tmp_path, capsys
):
    dumped = shutil.copytree(diverged / "nonfinite", tmp_path / "run")
    before = jformer.load(dumped, 1).params
    assert run(dumped, corpus_directory, *TOO_HIGH) == 1
    errors = capsys.readouterr().err
    assert re.search(r"resum.*step 1\n", errors)
    last = errors.splitlines()[-1]
    assert re.match(r"jformer: .*2\b.*4\b.*0:1, 0:2, 0:3\b.*config\.optimizer\.clip_norm", last)
    assert f"workdir={dumped / 'nonfinite'}" in last
    assert metrics_of(dumped, "skipped") == metrics_of(diverged, "skipped")
    assert_same(jformer.load(dumped / "nonfinite", 1).params, before)


def test_what_is_dumped_is_the_state_before_the_first_skipped_step(diverged):
    """After Adam's first update: the rate up or down, beside which the start is nothing."""
    dumped = jformer.load(diverged / "nonfinite", 1)
    highest = max(np.abs(x).max() for x in jax.tree.leaves(dumped.params))
    first_rate = 1e30 * 16**-0.5 * dumped.config.optimizer.warmup_steps**-1.5
    assert highest == pytest.approx(first_rate, rel=1e-5)  # float32
    in_the_row = jformer.load(diverged, 3)  # by the run itself, between two skipped steps
    assert_same(dumped.params, in_the_row.params)


def test_a_row_goes_on_across_a_stop_and_may_begin_with_the_first_step(
    diverged, corpus_directory, tmp_path, capsys
):
    workdir, start = tmp_path / "run", f"{diverged / 'nonfinite'}@1"
    flags = [f"--config.train.init_from={start}", "--config.train.max_skipped=3"]
    assert run(workdir, corpus_directory, *flags, "--config.train.steps=2") == 0
    assert not (workdir / "best").exists()  # a score that is no number is not the best
    assert run(workdir, corpus_directory, *flags, "--config.train.steps=9") == 1
    errors = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"jformer: .*1\b.*3\b.*0:0, 0:1, 0:2\b", errors)
    initial = jformer.load(diverged / "nonfinite", 1).params
    assert_same(jformer.load(workdir / "nonfinite", 0).params, initial)


def test_a_run_with_few_skipped_steps_in_a_row_goes_on(corpus_directory, tmp_path, monkeypatch):
    loss_sums = step_module.loss_sums

    def not_always_finite(logits_BTV, labels_BT, label_smoothing, smoothing_over, *means):
        sums = loss_sums(logits_BTV, labels_BT, label_smoothing, smoothing_over, *means)
        bad = (labels_BT.sum() % 3 == 0) & (label_smoothing > 0)  # not when it is evaluated
        return {**sums, "loss": jnp.where(bad, jnp.nan, sums["loss"])}

    monkeypatch.setattr(step_module, "loss_sums", not_always_finite)
    workdir = tmp_path / "run"
    assert run(workdir, corpus_directory, "--config.train.max_skipped=3") == 0
    skipped, train = metrics_of(workdir, "skipped"), metrics_of(workdir, "train")
    assert 3 <= len(skipped) < 12  # in all as many as may not be in a row
    for line in train:
        window = range(line["step"] - 3, line["step"] + 1)
        assert line["skipped"] == sum(s["step"] in window for s in skipped)
    assert all(np.isfinite(line["loss"]) for line in train)
    assert [line["step"] for line in metrics_of(workdir, "validation")] == [6, 12]
