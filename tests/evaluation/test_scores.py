"""Scores are sacreBLEU's own, and say how they were made."""

import subprocess
import sys

import pytest

from jformer.evaluation.scores import score

HYPOTHESES = ["The cat sat on the mat .", "a dog barks", ""]
REFERENCES = ["the cat sat on the mat.", "a dog barked loudly", "nothing"]


@pytest.mark.parametrize(("options", "name"), [([], "bleu"), (["-lc"], "bleu_lowercase")])
def test_scores_equal_those_of_sacrebleus_own_command(tmp_path, options, name):
    references, hypotheses = tmp_path / "ref", tmp_path / "hyp"
    references.write_text("\n".join(REFERENCES) + "\n")
    hypotheses.write_text("\n".join(HYPOTHESES) + "\n")
    command = [sys.executable, "-m", "sacrebleu", references, "-i", hypotheses, "-b", "-w", "4"]
    output = subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout
    assert score(HYPOTHESES, REFERENCES)[name] == pytest.approx(float(output), abs=1e-4)


def test_a_perfect_translation_scores_a_hundred():
    scores = score(REFERENCES, REFERENCES)
    assert scores["bleu"] == pytest.approx(100)
    assert scores["chrf"] == pytest.approx(100)


def test_signatures_name_the_case_and_the_tokenizer():
    scores = score(HYPOTHESES, REFERENCES)
    assert "case:mixed" in scores["signature"]
    assert "tok:13a" in scores["signature"]
    assert "case:lc" in scores["signature_lowercase"]
