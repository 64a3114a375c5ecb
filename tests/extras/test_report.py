"""Runs side by side, as a table and as a page."""

import json
import re

import pytest

from configs.small import get_config as small_base
from jformer.config import freeze, write_config
from jformer.data.vocabulary import Vocabulary
from jformer.extras.report import compare, find_runs, markdown
from jformer.files import write_sums
from jformer.main import main
from jformer.schema import replaced

pytestmark = pytest.mark.process

BASE = freeze(small_base())


@pytest.fixture
def write_run(tmp_path):
    """A run directory as training leaves it, or in the midst of it."""

    def write_run(name, changes=None, steps=2400, seconds=75.0, code="", text="", **scores):
        workdir = tmp_path / "runs" / name
        workdir.mkdir(parents=True)
        write_config(replaced(BASE, changes or {}), workdir / "config.json")
        Vocabulary.train(["one two three", "eins zwei"], 260).save(workdir / "vocabulary.json")
        lines = [
            {"step": 1200, "split": "train", "nll": 2.5, "flops": 1.5e12, "seconds": seconds / 2},
            {"step": 1200, "split": "validation", "nll": 2.25},
            {"step": 2400, "split": "train", "nll": 2.25, "flops": 3.26e12, "seconds": seconds},
            {"step": 2400, "split": "validation", "nll": 2.125},
        ]
        lines = [json.dumps(line) + "\n" for line in lines if line["step"] <= steps]
        (workdir / "metrics.jsonl").write_text("".join(lines) + '{"step": 2500, "spl')
        if scores:
            found = {"checkpoint": "average", "step": 2400, "seconds": 1.5, **scores}
            (workdir / "results.json").write_text(json.dumps({"validation": found}))
        if code or text:
            checkpoint = workdir / "checkpoints" / "2400"
            texts = {
                "metadata": {"vocabulary_hash": "", "versions": {"source": code}},
                "position": {"text": [["train.en", text]]},
            }
            for item, content in texts.items():
                (checkpoint / item).mkdir(parents=True)
                (checkpoint / item / "metadata").write_text(json.dumps(content))
            write_sums(checkpoint, "*/*")
        return workdir

    return write_run


@pytest.fixture
def report(tmp_path):
    """The rows of the table by what they change, as {heading: cell}."""

    def report():
        heading, *lines = compare(find_runs([tmp_path / "runs"])).table
        found = [dict(zip(heading, line, strict=True)) for line in lines]
        return {row["changed"]: row for row in found}

    return report


def test_a_row_has_what_differs_from_the_most_common_with_its_scores(write_run, report):
    write_run("sweep/model.num_heads=2", {"model.num_heads": 2}, bleu=31.0, perplexity=8.0)
    write_run("z, the base", bleu=30.0, perplexity=9.0)
    write_run("a/b/dropout", {"model.dropout": 0.5}, bleu=29.0, perplexity=7.0, seconds=3675)
    found = report()
    assert list(found) == ["base", "dropout=0.5", "num_heads=2"]
    assert found["dropout=0.5"] == {
        "run": "a/b/dropout", "changed": "dropout=0.5", "seeds": "1", "steps": "2,400 of 2,400",
        "parameters": "1,417,216", "train FLOPs": "3.3e+12", "train time": "1:01:15",
        "validation NLL": "**2.125**",
        "validation BLEU (average)": "29.00", "validation PPL (average)": "**7.000**",
    }  # fmt: skip
    assert found["num_heads=2"]["validation BLEU (average)"] == "**31.00**"


def test_a_run_that_is_going_on_has_its_step_and_what_is_known(write_run, report):
    write_run("base", bleu=30.0)
    write_run("model.num_heads=1", {"model.num_heads": 1})
    write_run("model.num_heads=2", {"model.num_heads": 2}, steps=1200)
    just_begun = write_run("model.num_heads=4", {"model.num_heads": 4}, steps=0)
    (just_begun / "vocabulary.json").unlink()
    found = report()
    states = {name: (row["steps"], row["validation NLL"]) for name, row in found.items()}
    assert states == {
        "base": ("2,400 of 2,400", "**2.125**"),
        "num_heads=1": ("2,400 of 2,400", "**2.125**"),  # not scored yet
        "num_heads=2": ("1,200 of 2,400", "2.250"),
        "num_heads=4": ("0 of 2,400", "-"),
    }
    assert found["num_heads=4"]["parameters"] == found["num_heads=4"]["train time"] == "-"


def test_runs_of_one_config_are_a_row_with_their_spread(write_run, report):
    for seed, bleu in enumerate([30.0, 31.0, 32.0]):
        # Where its data lies and how often it saves change nothing about a run.
        changes = {"data.directory": f"{seed}", "data.cache": f"{seed}", "train.keep_every": seed}
        write_run(f"seed={seed}", {"seed": seed, **changes}, bleu=bleu)
    write_run("model.num_heads=2", {"model.num_heads": 2}, bleu=29.0)
    found = report()
    assert {name: row["seeds"] for name, row in found.items()} == {"base": "3", "num_heads=2": "1"}
    assert found["base"]["validation BLEU (average)"] == "**31.00 ± 1.00**"
    assert found["num_heads=2"]["validation BLEU (average)"] == "29.00"


def test_runs_of_other_code_or_text_are_rows_of_their_own(write_run, report):
    for name, code, text in (("a", "1", "x"), ("b", "1", "x"), ("c", "2", "x"), ("d", "1", "y")):
        write_run(name, code=code, text=text)
    write_run("no checkpoint yet")
    rows = [(row["run"], row["changed"].partition("=")[0]) for row in report().values()]
    assert rows == [("a, b, no checkpoint yet", "base"), ("c", "code"), ("d", "text")]


def test_scores_of_different_checkpoints_or_searches_are_in_different_columns(write_run, report):
    write_run("average", bleu=30.0)
    write_run("last", {"model.num_heads": 2}, bleu=31.0, checkpoint="last")
    write_run("earlier", {"model.num_heads": 4}, bleu=32.0, checkpoint="last", step=1200)
    write_run("greedy", {"model.num_heads": 1}, bleu=29.0, decode={"beam_size": 1, "n_best": 1})
    cells = {name: [*row.values()][-4:] for name, row in report().items()}
    assert cells == {
        "base": ["30.00", "-", "-", "-"],
        "num_heads=1": ["-", "-", "29.00", "-"],
        "num_heads=2": ["-", "-", "-", "31.00"],
        "num_heads=4": ["-", "32.00", "-", "-"],
    }
    heading = [*report()["base"]]
    assert heading[-4:] == [
        "validation BLEU (average)",
        "validation BLEU (last, step 1,200)",
        "validation BLEU (average, beam_size=1)",
        "validation BLEU (last)",
    ]


def test_keys_with_the_same_last_part_are_printed_in_full(write_run, report):
    write_run("base")
    write_run("data", {"data.max_length": 30})
    write_run("decode", {"decode.max_length": 30, "model.dropout": 0.5})
    assert [*report()] == ["base", "data.max_length=30", "dropout=0.5, decode.max_length=30"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("results.json", b'{"validation": ', "results.json: "),
        ("metrics.jsonl", None, "metrics.jsonl"),
    ],
)
def test_a_damaged_run_is_left_out_with_a_warning(
    write_run, tmp_path, capsys, name, content, message
):
    write_run("base", bleu=30.0)
    expected = markdown(compare(find_runs([tmp_path / "runs"])))
    damaged = write_run("model.num_heads=2", {"model.num_heads": 2}, bleu=31.0)
    (damaged / name).unlink()
    (damaged / name).mkdir() if content is None else (damaged / name).write_bytes(content)
    assert main(["jformer", "report", str(tmp_path / "runs")]) == 0
    told = capsys.readouterr()
    assert told.out == expected + "\n"
    assert told.err.startswith(str(damaged))
    assert message in told.err
    assert told.err.count("\n") == 1


def test_the_command_prints_markdown_and_writes_a_page(write_run, tmp_path, capsys):
    pytest.importorskip("plotly", reason="needs the extra report")
    write_run("base", bleu=30.0)
    write_run("<b>&a", {"data.source_language": "<b>&a"}, bleu=31.0)
    output = tmp_path / "report.html"
    assert main(["jformer", "report", str(tmp_path / "runs"), f"--output={output}"]) == 0
    printed = capsys.readouterr().out
    assert printed == markdown(compare(find_runs([tmp_path / "runs"]))) + "\n"
    *lines, nothing, base = printed.splitlines()
    assert lines[0].startswith("| run | changed | seeds | steps |")
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert (nothing, base) == ("", "base: source_language=<b>&a")
    text = output.read_text()
    assert "source_language=&lt;b&gt;&amp;a" in text
    assert "<td><b>31.00</b></td>" in text
    assert '"name":"base"' in text  # in the legend
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.search(r"(src|href)=\"(?!data:)", outside)  # it needs nothing but itself
    assert not re.search(r"<script[^>]*src", text)
