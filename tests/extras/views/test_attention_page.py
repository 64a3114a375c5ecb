"""The page of one pair's attention: what it holds, and what a real browser makes of it."""

import base64
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

import jformer
from jformer.decoding.attention import Attention
from jformer.extras.views.attention_page import page
from jformer.main import main
from tests.extras.views.chromium import needs_chromium, open_page

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


def seen(tmp_path, attention, script, *flags, width=1200):
    """Return what `script` returns in the page, in a frame so wide: no window can be a phone's."""
    act = f"""<script>
    const press = (key, more) =>
      document.dispatchEvent(new KeyboardEvent("keydown", {{key, ...more}}));
    const click = (group, n) => document.querySelectorAll(`#${{group}} button`)[n].click();
    const texts = found => [...document.querySelectorAll(found)].map(one => one.textContent);
    const hover = at => document.querySelector(at).dispatchEvent(
      new PointerEvent("pointerover", {{bubbles: true}}));
    const title = () => document.getElementById("shown").textContent;
    const weights = () => [...document.querySelectorAll("tbody tr")].map(
      row => [...row.querySelectorAll("td")].map(cell => Number(cell.ariaLabel)));
    parent.document.getElementById("told").textContent = JSON.stringify((() => {{ {script} }})());
    </script></body>"""
    text = html.escape(page(attention, {"source": "a & b"}).replace("</body>", act))
    frame = f'<iframe width="{width}" height="800" srcdoc="{text}"></iframe>'
    path = tmp_path / "attention.html"
    path.write_text(f'<!doctype html><pre id="told"></pre>{frame}', encoding="utf-8")
    document, logged = open_page(path, *flags)
    assert "CONSOLE" not in logged, logged
    (found,) = re.findall(r'<pre id="told">(.*?)</pre>', document, re.DOTALL)
    return json.loads(html.unescape(found))


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
@needs_chromium
def test_it_opens_on_the_cross_attention_that_aligns_best(tmp_path):
    script = """return {title: title(), weights: weights(), reads: texts("tbody th:first-child"),
        predicts: texts("tbody th:last-child"), columns: texts("thead th[scope=col]"),
        corners: texts(".corner"), meaning: texts("#meaning"), heads: texts("#heads button")}"""
    found = seen(tmp_path, ATTENTION, script)
    assert re.fullmatch(r"Cross-attention\b.*\b2\b.*\b1", found["title"])
    expected = ATTENTION.weights["decoder_1/cross_attention"][0]
    np.testing.assert_allclose(found["weights"], expected, atol=6e-4)
    assert found["reads"] == ["BOS", "x", "y"]
    assert found["predicts"] == ["x", "y", "EOS"]
    assert found["columns"] == ["a", "b", "c", "␣d", "EOS"]
    assert found["corners"] == ["reads", "predicts"]
    assert found["heads"] == ["head 1", "head 2", "mean"]
    assert found["meaning"][0]


@pytest.mark.process
@needs_chromium
def test_hostile_tokens_are_text(tmp_path):
    script = """click("kinds", 0);
    return {names: texts("tbody th"), scripts: document.scripts.length,
            bold: document.querySelectorAll("table b").length}"""
    found = seen(tmp_path, attention_of(HOSTILE, HOSTILE), script)
    shown = [*HOSTILE[:2], "a\\nb", "\\u2028\\u202eسمع", "EOS"]
    assert found == {"names": shown, "scripts": 3, "bold": 0}


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
