"""Two systems on the same sentences: sacreBLEU's paired bootstrap, and a verdict."""

import json
import re

import pytest

from jformer.evaluation.scores import compare
from tests.evaluation.noise import sacrebleu, sentences, worsened

REFERENCE = sentences(67)
GOOD, BAD = worsened(REFERENCE, 0.1), worsened(REFERENCE, 0.4, seed=5)
ALIKE = worsened(REFERENCE, 0.1, seed=7)
METRICS = ["bleu", "chrf", "ter"]


def test_numbers_equal_those_of_sacrebleus_own_command(tmp_path):
    # Its JSON fails on float32, which its intervals are; LaTeX has all numbers.
    options = ["-m", *METRICS, "--paired-bs", "--format", "latex", "--no-color"]
    printed = sacrebleu(tmp_path, [REFERENCE], [GOOD, ALIKE], *options)
    found = compare(GOOD, ALIKE, [REFERENCE], ("good", "alike"), "en")
    cells = re.findall(r"([\d.]+) \(([\d.]+) ± ([\d.]+)\)(?: \(p = ([\d.]+)\))?", printed)
    expected = dict(zip(METRICS, zip(cells[:3], cells[3:], strict=True), strict=True))
    for metric, pair in expected.items():
        for system, (score, mean, half, _) in zip(found[metric]["systems"], pair, strict=True):
            mean, half = float(mean), float(half)
            # Both are rounded to 6 decimals.
            assert system["score"] == pytest.approx(float(score), abs=1e-6)
            assert system["mean"] == pytest.approx(mean, abs=1e-6)
            assert system["interval"] == pytest.approx([mean - half, mean + half], abs=2e-6)
        assert found[metric]["p_value"] == pytest.approx(float(pair[1][3]), abs=1e-4)
        assert found[metric]["signature"] in printed
        assert found[metric]["better"] == ""
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("names", [("good", "bad"), ("bad", "good")])
def test_a_clearly_better_system_is_named_by_every_metric(names):
    outputs = {"good": GOOD, "bad": BAD}
    systems = [outputs[name] for name in names]
    for verdict in compare(*systems, [REFERENCE], names, "en").values():
        assert verdict["better"] == "good"
        assert verdict["p_value"] < 0.05
