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
from jformer.errors import RunError, UserError
from jformer.extras.views import attention_page
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


def test_a_weight_that_bfloat16_rounds_above_1_is_shown_as_1():
    above = {"decoder_0/cross_attention": np.full((1, 1, 1), 1.0078125, np.float32)}
    (encoded,) = content_of(page(Attention(above, ["#2"], ["#1"])))["layers"][
        "decoder cross_attention"
    ]
    assert np.frombuffer(base64.b64decode(encoded), "<u2").tolist() == [65_535]


def test_a_space_is_drawn_and_what_cannot_be_seen_has_its_code():
    shown = content_of(page(attention_of([" a b", "\n", "\u2028", "ü"])))["source"]
    assert shown == ["␣a␣b", "\\n", "\\u2028", "ü"]


def test_more_weights_than_a_page_can_have_are_refused(monkeypatch):
    monkeypatch.setattr(attention_page, "MOST_WEIGHTS", 10)
    with pytest.raises(UserError, match=r"\d+ weights"):
        page(ATTENTION)


def test_weights_that_are_no_numbers_are_told():
    broken = {"decoder_0/cross_attention": np.full((H, T, S), np.nan, np.float32)}
    with pytest.raises(RunError):
        page(Attention(broken, ["a"], ["b"]))


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
def test_clicks_and_keys_choose_kind_layer_and_head(tmp_path):
    script = """const titles = [];
    const after = act => { act(); titles.push(title()); };
    after(() => click("kinds", 0));
    after(() => click("layers", 2));
    after(() => click("heads", 1));
    const encoder = weights();
    for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "2"])
      after(() => press(key));
    after(() => press("ArrowRight", {ctrlKey: true}));
    const pressed = texts("button[aria-pressed=true]"), mean = weights();
    return {titles, encoder, mean, pressed}"""
    found = seen(tmp_path, ATTENTION, script)
    encoder, decoder = "Encoder self-attention", "Decoder self-attention"
    assert found["titles"] == [
        f"{encoder}, layer 2, head 1",
        f"{encoder}, layer 3, head 1",
        f"{encoder}, layer 3, head 2",
        f"{encoder}, layer 3, mean",
        f"{encoder}, layer 3, head 1",
        f"{encoder}, layer 3, mean",
        f"{encoder}, layer 1, mean",
        f"{encoder}, layer 3, mean",
        f"{decoder}, layer 3, mean",
        f"{decoder}, layer 3, mean",
    ]
    assert found["pressed"] == [decoder, "3", "mean"]
    expected = ATTENTION.weights["encoder_2/self_attention"][1]
    np.testing.assert_allclose(found["encoder"], expected, atol=6e-4)
    expected = ATTENTION.weights["decoder_2/self_attention"].mean(axis=0)
    np.testing.assert_allclose(found["mean"], expected, atol=6e-4)


@pytest.mark.process
@needs_chromium
def test_pointing_tells_weights_and_marks_row_and_column(tmp_path):
    script = """const on = () => document.querySelectorAll("td.on").length;
    const told = () => [texts("#readout")[0], on()];
    hover("tbody tr:nth-child(2) td:nth-child(4)");
    const found = [told()];
    hover("tbody tr:nth-child(2) th"); found.push(told());
    hover("thead th:nth-child(4)"); found.push(told());
    press("ArrowDown", {shiftKey: true}); found.push(told());
    return found"""
    weights_TS = ATTENTION.weights["decoder_1/cross_attention"][0]
    cell, row, column, moved = seen(tmp_path, ATTENTION, script)
    assert re.fullmatch(rf"{weights_TS[1, 2]:.3f}\b.*\bx .*\by\b.*\bc", cell[0])
    assert cell[1] == T + S - 1
    most = weights_TS[1].argmax()
    assert re.match(r"x .*\by\b", row[0])
    assert f" {['a', 'b', 'c', '␣d', 'EOS'][most]}\xa0{weights_TS[1, most]:.3f}" in row[0]
    assert column[0].startswith("c ")
    assert (row[1], column[1]) == (S, T)
    assert re.fullmatch(rf"{weights_TS[0, 2]:.3f}\b.*\bBOS .*\bx\b.*\bc", moved[0])


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
@needs_chromium
def test_a_phone_scrolls_the_matrix_and_not_the_page(tmp_path):
    long = attention_of(["word", "x" * 60] * 40, ["Wort"] * 60)
    script = """const whole = document.documentElement;
    return kinds.map((_, kind) => {
      click("kinds", kind);
      hover("tbody th");
      const hidden = whole.scrollWidth - whole.clientWidth;
      return [innerWidth, hidden, box.clientWidth, box.scrollWidth]; })"""
    for inner, hidden, shown, matrix in seen(tmp_path, long, script, width=360):
        assert (inner, hidden) == (360, 0)
        assert shown < 360 < matrix


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
        (
            ["--source=1", "--output=/dev/null/x.html"],
            "--output=/dev/null/x.html: ",
        ),
        (["--source=1\udcff", "--output=x.html"], "--source: character 2 "),
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
