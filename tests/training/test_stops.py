"""However often a run is stopped, what it serves and scores is that of one which never was."""

import functools
import json
import signal

import jax
import numpy as np
import pytest

import jformer
from jformer.main import main
from tests.conftest import number_words, small_flags

pytestmark = pytest.mark.process

STEPS = 32  # no multiple of the steps between checkpoints
EVERY = 5
SENTENCES = number_words(430, 436).sources


def flags_of(corpus_directory, workdir, *more):
    return [
        *small_flags(corpus_directory, workdir),
        f"--config.train.steps={STEPS}", f"--config.train.checkpoint_every={EVERY}",
        "--config.train.average_checkpoints=3", "--config.train.evaluate_every=12",
        "--config.train.log_every=7", *more,
    ]  # fmt: skip


def checkpoints_of(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())


def served(workdir):
    """All that a user gets of a run: parameters, translations, scores."""
    run = jformer.load(workdir)
    scores = json.loads((workdir / "results.json").read_text())
    return run.params, run.step, run.translate(SENTENCES), scores, checkpoints_of(workdir)


def assert_served_alike(workdir, undisturbed):
    (params, *rest), (expected, *expected_rest) = served(workdir), served(undisturbed)
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert rest == expected_rest


@pytest.fixture(scope="module")
def undisturbed(corpus_directory, tmp_path_factory):
    """A run under jit that nothing stopped."""
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    assert main(["jformer", *flags_of(corpus_directory, workdir)]) == 0
    assert checkpoints_of(workdir) == [25, 30, 32]
    return workdir


def test_a_run_that_signals_stopped_serves_what_an_undisturbed_one_does(
    corpus_directory, tmp_path, undisturbed, during_step
):
    """Within an interval, and within the last."""
    command = ["jformer", *flags_of(corpus_directory, tmp_path / "run")]
    for step, number in ((26, signal.SIGINT), (31, signal.SIGTERM)):
        during_step({step: functools.partial(signal.raise_signal, number)})
        assert main(command) == 128 + number
        assert checkpoints_of(tmp_path / "run")[-1] == step
    assert main(command) == 0
    assert_served_alike(tmp_path / "run", undisturbed)


def test_a_run_that_was_extended_serves_what_one_of_so_many_steps_does(
    corpus_directory, tmp_path, undisturbed
):
    short = flags_of(corpus_directory, tmp_path / "run", "--config.train.steps=27")
    assert main(["jformer", *short]) == 0
    assert checkpoints_of(tmp_path / "run") == [20, 25, 27]
    assert jformer.load(tmp_path / "run").step == 27
    assert main(["jformer", *flags_of(corpus_directory, tmp_path / "run")]) == 0
    assert_served_alike(tmp_path / "run", undisturbed)
