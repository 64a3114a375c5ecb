"""The page of the attention in one pair of sentences: what it holds."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

import jformer
from jformer.decoding.scoring import Attention
from jformer.extras.attention_page import page
from jformer.main import main

H, S, T, LAYERS = 2, 5, 3, 3
STORED = Path("tests/stored_run/run").absolute()
HOSTILE = ["</script><script>console.log(1)</script>", "\"<b>&amp;'", "a\nb", "\u2028\u202eسمع"]


def attention_of(source=("a", "b", "c", " d"), target=("x", "y"), seed=0):
    """Random weights; the last source token is EOS, the first target token BOS."""
    rng, S, T = np.random.default_rng(seed), len(source) + 1, len(target) + 1

    def draw(rows, columns, causal=False):
        weights_HQM = rng.dirichlet(np.ones(columns), (H, rows))
        weights_HQM = np.tril(weights_HQM) if causal else weights_HQM
        return (weights_HQM / weights_HQM.sum(-1, keepdims=True)).astype(np.float32)

    weights = {}
    for n in range(LAYERS):
        weights[f"encoder_{n}/self_attention"] = draw(S, S)
        weights[f"decoder_{n}/self_attention"] = draw(T, T, causal=True)
        weights[f"decoder_{n}/cross_attention"] = draw(T, S)
    return Attention(weights, [*source, "#2"], ["#1", *target])


ATTENTION = attention_of()


def content_of(text):
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text)
    return json.loads(found)


def test_the_page_holds_all_weights_and_nothing_from_elsewhere():
    text = page(ATTENTION, {"run": "x"})
    assert not re.search(r"(src|href)=(?!\"data:)|https?:|url\(|@import", text)
    layers = content_of(text)["layers"]
    assert [len(of_kind) for of_kind in layers.values()] == [LAYERS] * 3
    for n in range(LAYERS):
        integers = np.frombuffer(base64.b64decode(layers["decoder cross_attention"][n]), "<u2")
        expected = ATTENTION.weights[f"decoder_{n}/cross_attention"]
        np.testing.assert_allclose(integers.reshape(H, T, S) / 65_535, expected, atol=1e-5)


@pytest.mark.process
def test_the_command_writes_the_attention_of_the_runs_own_translation(tmp_path, capsys):
    output = tmp_path / "attention.html"
    flags = [f"--workdir={STORED}", "--source=1 2 3", f"--output={output}"]
    assert main(["jformer", "attention", *flags]) == 0
    translation = jformer.load(STORED).translate(["1 2 3"])[0]
    assert capsys.readouterr().out == translation + "\n"
    content = content_of(output.read_text(encoding="utf-8"))
    assert content["about"]["translation"] == translation
    assert "".join(content["target"]).replace("␣", " ") == translation
    assert main(["jformer", "attention", *flags, "--target=one"]) == 0
    assert capsys.readouterr().out == ""
    content = content_of(output.read_text(encoding="utf-8"))
    assert (content["about"]["target"], "".join(content["target"])) == ("one", "one")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output=x.html"], "--source"),
        (["--source=1"], "--output"),
    ],
)
def test_a_mistake_is_one_line_before_the_run_is_opened(
    tmp_path, monkeypatch, capsys, flags, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jformer.run.load", None)
    assert main(["jformer", "attention", f"--workdir={STORED}", *flags]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_hostile_tokens_stay_within_the_data():
    text = page(attention_of(HOSTILE, HOSTILE))
    assert text.count("<script") == page(ATTENTION).count("<script")
    assert HOSTILE[1] in content_of(text)["source"]
