"""What takes minutes: the README's first command, as printed."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_readmes_first_command_learns_the_phrases(tmp_path):
    command = [sys.executable, "-m", "jformer.main", "--config=configs/tiny.py"]
    result = subprocess.run(
        [*command, f"--workdir={tmp_path}"], capture_output=True, text=True, check=True
    )
    scores = json.loads(result.stdout.splitlines()[-1])
    assert scores["test"]["bleu"] >= 95
    assert scores["test"]["perplexity"] < 1.2
    # Names never seen are another matter, and the score must say so.
    assert scores["test_unseen_names"]["bleu"] < scores["test"]["bleu"]
