"""A run that an earlier version made is opened, scored and continued by this one.

tests/make_stored_run.py makes it again.
"""

import json
import shutil
from pathlib import Path

import pytest

import jformer
from jformer.main import main
from tests.make_stored_run import FLAGS, SENTENCES, STEPS

pytestmark = [pytest.mark.process, pytest.mark.optimized]

STORED = Path(__file__).with_name("stored_run")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy, which is the directory that its config names its files from."""
    copy = shutil.copytree(STORED, tmp_path / "stored")
    monkeypatch.chdir(copy)
    return copy


def test_its_translations_are_those_of_the_version_that_made_it(folder):
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    assert len(set(expected)) == len(SENTENCES)
    assert jformer.load("run").translate(SENTENCES) == expected


def test_its_scores_are_those_of_the_version_that_made_it(folder, capsys):
    before = json.loads((folder / "run" / "results.json").read_text(encoding="utf-8"))["test"]
    assert main(["jformer", "evaluate", "--workdir=run", "--data=test"]) == 0
    (now,) = json.loads(capsys.readouterr().out.splitlines()[-1]).values()
    # Another processor, or another XLA, sums float32 in another order: the sixth digit may differ.
    assert now["perplexity"] == pytest.approx(before["perplexity"], rel=1e-4)
    # Of the same 15 translations; BLEU, which needs longer ones, is 0.
    assert now["chrf"] == pytest.approx(before["chrf"], abs=1e-6)
    assert before["chrf"] > 50


def test_its_training_goes_on(folder, capsys):
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = ["--config.train.steps", str(STEPS + 4)]
    assert main(["jformer", *FLAGS, *steps, "--config.train.log_every=2"]) == 0
    added = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert added[: len(lines)] == lines
    train = [line for line in map(json.loads, added[len(lines) :]) if line["split"] == "train"]
    assert [line["step"] for line in train] == [STEPS + 2, STEPS + 4]
    last = [line for line in map(json.loads, lines) if line["split"] == "train"][-1]
    # With the optimizer's state it stays near where it was; without, it would leap.
    assert max(line["nll"] for line in train) < 2 * last["nll"] + 0.1
    assert jformer.load("run").step == STEPS + 4
