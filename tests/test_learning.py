"""What takes minutes: the README's first command, as printed."""

import json
import subprocess
import sys

import pytest


def train(workdir, *more):
    """Scores of the README's first command."""
    command = [sys.executable, "-m", "jformer.main", "--config=configs/tiny.py"]
    result = subprocess.run(
        [*command, f"--workdir={workdir}", *more], capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.mark.slow
def test_the_readmes_first_command_learns_the_phrases(scores):
    assert scores["test"]["bleu"] >= 95
    assert scores["test"]["perplexity"] < 1.2
    # Names never seen are another matter, and the score must say so.
    assert scores["test_unseen_names"]["bleu"] < scores["test"]["bleu"]


@pytest.mark.slow
def test_in_bfloat16_it_learns_as_much_up_to_one_bleu(scores, tmp_path):
    halved = train(tmp_path / "tiny", "--config.model.dtype=bfloat16")
    assert halved["test"]["bleu"] == pytest.approx(scores["test"]["bleu"], abs=1)
    assert halved["test"] != scores["test"]
