"""Runs side by side, as a table and as a page."""

import json
import re

import pytest

from configs.small import get_config as small_base
from jformer.config import freeze, write_config
from jformer.data.vocabulary import Vocabulary
from jformer.extras.report import find_runs, markdown, read_rows, table
from jformer.main import main
from jformer.schema import replaced

pytestmark = pytest.mark.process

BASE = freeze(small_base())


@pytest.fixture
def _plotly():
    pytest.importorskip("plotly", reason="needs the extra report")


def changed(changes):
    """The base with flat changes, as a sweep makes it."""
    nested = {}
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = value
    return replaced(BASE, nested)


@pytest.fixture
def write_run(tmp_path):
    """A run directory as training leaves it, or in the midst of it."""

    def write_run(name, changes=None, steps=2400, bleu=None, seconds=75.0):
        workdir = tmp_path / "runs" / name
        workdir.mkdir(parents=True)
        write_config(changed(changes or {}), workdir / "config.json")
        Vocabulary.train(["one two three", "eins zwei"], 260).save(workdir / "vocabulary.json")
        lines = [
            {"step": 1200, "split": "train", "nll": 2.5, "flops": 1.5e12, "seconds": seconds / 2},
            {"step": 1200, "split": "validation", "nll": 2.25},
            {"step": 2400, "split": "train", "nll": 2.25, "flops": 3.26e12, "seconds": seconds},
            {"step": 2400, "split": "validation", "nll": 2.125},
        ]
        lines = [json.dumps(line) + "\n" for line in lines if line["step"] <= steps]
        (workdir / "metrics.jsonl").write_text("".join(lines) + '{"step": 2500, "spl')
        if bleu:
            of_case = {"bleu": bleu, "bleu_lowercase": bleu + 1}
            scores = {"validation": {**of_case, "chrf": 2 * bleu, "perplexity": 8.5}}
            (workdir / "results.json").write_text(json.dumps(scores))
        return workdir

    return write_run


def cells(rows):
    """The rows of the table by what they change, as {heading: cell}."""
    heading, *lines = table(rows)
    found = [dict(zip(heading, line, strict=True)) for line in lines]
    return {row["changed"]: row for row in found}


def test_a_row_has_what_differs_from_the_most_common_with_its_scores(write_run, tmp_path):
    write_run("model.num_heads=2", {"model.num_heads": 2}, bleu=31.0)
    write_run("z, the base", bleu=30.0)
    write_run("model.dropout=0.5", {"model.dropout": 0.5}, bleu=29.0, seconds=3675)
    found = cells(read_rows(find_runs([tmp_path / "runs"])))
    assert list(found) == ["base", "dropout=0.5", "num_heads=2"]
    assert found["dropout=0.5"] == {
        "run": str(tmp_path / "runs" / "model.dropout=0.5"), "changed": "dropout=0.5",
        "state": "complete",
        "validation NLL": "2.125",
        "validation BLEU": "29.00", "validation chrF": "58.00", "validation PPL": "8.500",
        "parameters": "1,417,216", "FLOPs": "3.3e+12", "time": "1:01:15",
    }  # fmt: skip


def test_a_run_that_is_going_on_has_its_step_and_what_is_known(write_run, tmp_path):
    write_run("base", bleu=30.0)
    write_run("model.num_heads=1", {"model.num_heads": 1})
    write_run("model.num_heads=2", {"model.num_heads": 2}, steps=1200)
    just_begun = write_run("model.num_heads=4", {"model.num_heads": 4}, steps=0)
    (just_begun / "vocabulary.json").unlink()
    found = cells(read_rows(find_runs([tmp_path / "runs"])))
    states = {name: (row["state"], row["validation NLL"]) for name, row in found.items()}
    assert states == {
        "base": ("complete", "2.125"),
        "num_heads=1": ("trained", "2.125"),  # not scored yet
        "num_heads=2": ("step 1,200 of 2,400", "2.250"),
        "num_heads=4": ("step 0 of 2,400", "-"),
    }
    assert found["num_heads=4"]["parameters"] == found["num_heads=4"]["time"] == "-"


def test_runs_of_one_config_are_a_row_with_their_spread(write_run, tmp_path):
    for seed, bleu in enumerate([30.0, 31.0, 32.0]):
        # Where a run's data lies changes nothing.
        write_run(f"seed={seed}", {"seed": seed, "data.directory": f"{seed}"}, bleu=bleu)
    write_run("model.num_heads=2", {"model.num_heads": 2}, bleu=29.0)
    found = cells(read_rows(find_runs([tmp_path / "runs"])))
    assert {name: row["seeds"] for name, row in found.items()} == {"base": "3", "num_heads=2": "1"}
    assert found["base"]["validation BLEU"] == "31.00 ± 1.00"
    assert found["num_heads=2"]["validation BLEU"] == "29.00"


def test_the_papers_figures_stand_beside_the_rows_that_are_the_papers(write_run, tmp_path):
    write_run("base", bleu=30.0)
    write_run("model.num_layers=1", {"model.num_layers": 1}, bleu=25.0)
    write_run("model.num_layers=5", {"model.num_layers": 5}, bleu=31.0)
    found = cells(read_rows(find_runs([tmp_path / "runs"])))
    papers = {name: [row[h] for h in row if h.startswith("paper")] for name, row in found.items()}
    assert papers == {
        "base": ["base", "25.8", "4.92", "65 M"],
        "num_layers=1": ["CN2", "23.7", "6.11", "36 M"],
        "num_layers=5": ["", "", "", ""],
    }


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
    expected = markdown(read_rows(find_runs([tmp_path / "runs"])))
    damaged = write_run("model.num_heads=2", {"model.num_heads": 2}, bleu=31.0)
    (damaged / name).unlink()
    (damaged / name).mkdir() if content is None else (damaged / name).write_bytes(content)
    assert main(["jformer", "report", str(tmp_path / "runs")]) == 0
    told = capsys.readouterr()
    assert told.out == expected + "\n"
    assert told.err.startswith(str(damaged))
    assert message in told.err
    assert told.err.count("\n") == 1


@pytest.mark.usefixtures("_plotly")
def test_the_command_prints_markdown_and_writes_a_page(write_run, tmp_path, capsys):
    write_run("base", bleu=30.0)
    write_run("data.train=x", {"data.train": "<b>&a"}, bleu=31.0)
    output = tmp_path / "report.html"
    assert main(["jformer", "report", str(tmp_path / "runs"), f"--output={output}"]) == 0
    rows = read_rows(find_runs([tmp_path / "runs"]))
    assert capsys.readouterr().out == markdown(rows) + "\n"
    *lines, nothing, base = markdown(rows).splitlines()
    assert lines[0].startswith("| run | changed | state |")
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert (nothing, base) == ("", "base: train=")
    text = output.read_text()
    assert "train=&lt;b&gt;&amp;a" in text
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.search(r"(src|href)=\"(?!data:)", outside)  # it needs nothing but itself
    assert not re.search(r"<script[^>]*src", text)
