"""The parameters that a run serves: the average or the last checkpoint, by validation NLL."""

import json
import shutil

import jax
import numpy as np
import pytest

import jformer
from jformer.main import main
from tests.conftest import small_flags

pytestmark = pytest.mark.process


def nll_of(run, directory):
    """The NLL per token on the validation split, by forced decoding of each pair."""
    texts = [(directory / f"validation.{side}").read_text().splitlines() for side in ("en", "de")]
    return -np.concatenate([one.token_log_probs for one in run.score(*texts)]).mean()


def served_of(workdir):
    return json.loads((workdir / "results.json").read_text())["served"]


# A rate that is far too high moves the parameters around: their mean is better than any of them.
TOO_FAST = [
    "--config.optimizer.schedule=constant",
    "--config.optimizer.learning_rate=0.021",
    "--config.optimizer.warmup_steps=1",
    "--config.train.steps=60",
    "--config.train.average_checkpoints=10",
]


@pytest.mark.parametrize("better", ["last", "average"])
def test_the_average_or_the_last_checkpoint_is_served_whichever_validates_better(
    trained_workdir, corpus_directory, tmp_path, better
):
    """In the warm-up, of which the trained run is, every step is an improvement."""
    workdir = trained_workdir if better == "last" else tmp_path / "run"
    if better == "average":
        assert main(["jformer", *small_flags(corpus_directory, workdir), *TOO_FAST]) == 0
    runs = {name: jformer.load(workdir, name) for name in ("average", "last")}
    expected = {name: nll_of(run, corpus_directory) for name, run in runs.items()}
    served = served_of(workdir)
    assert served["validation_nll"] == pytest.approx(expected, rel=1e-5)  # float32
    assert served["checkpoint"] == better == min(expected, key=expected.get)
    run = jformer.load(workdir)
    jax.tree.map(np.testing.assert_array_equal, run.params, runs[better].params)
    assert run.checkpoint == better
    # What was scored is what is loaded.
    scores = json.loads((workdir / "results.json").read_text())["test"]
    assert (scores["checkpoint"], scores["steps"]) == (better, [*runs[better].steps])


def test_a_run_that_has_not_ended_serves_its_last_checkpoint(
    trained_workdir, corpus_directory, tmp_path, during_step
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    results = json.loads((workdir / "results.json").read_text())
    results["served"]["checkpoint"] = "average"  # as decided at the end of the first 12 steps
    (workdir / "results.json").write_text(json.dumps(results))
    assert jformer.load(workdir).checkpoint == "average"

    def killed():
        raise KeyboardInterrupt

    during_step({17: killed})
    flags = [*small_flags(corpus_directory, workdir), "--config.train.steps=21"]
    assert main(["jformer", *flags]) == 130
    assert jformer.load(workdir).checkpoint == "last"
    assert main(["jformer", *flags]) == 0
    assert served_of(workdir)["step"] == 21


def test_a_run_without_its_results_decides_again_when_the_same_command_runs(
    trained_workdir, corpus_directory, tmp_path
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    before = served_of(workdir)
    metrics = (workdir / "metrics.jsonl").read_text()
    (workdir / "results.json").unlink()
    assert main(["jformer", *small_flags(corpus_directory, workdir)]) == 0
    assert served_of(workdir) == before
    assert (workdir / "metrics.jsonl").read_text() == metrics  # nothing was trained
