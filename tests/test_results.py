"""Scores of a run: as sacreBLEU computes them, kept beside what they were made with."""

import dataclasses
import gzip
import json
import re
import shutil

import pytest

from jformer.commands.evaluate import table
from jformer.evaluation.scores import LABELS, score
from jformer.main import main
from jformer.results import known_scores, own_test_sets
from jformer.run import load
from jformer.rundir import read_scores
from tests.conftest import number_words, small_flags, write_split
from tests.test_stream import WORKDIR, as_file

pytestmark = pytest.mark.process

PAIRS = number_words(992, 1012)  # some of them known


@pytest.fixture
def workdir(tmp_path):
    """A copy to write results into."""
    return shutil.copytree(WORKDIR, tmp_path / "run")


@pytest.fixture
def evaluate(workdir, capfd):
    """The table and the scores of `main evaluate`."""

    def evaluate(*flags):
        capfd.readouterr()
        assert main(["jformer", "evaluate", f"--workdir={workdir}", *map(str, flags)]) == 0
        scores = json.loads(capfd.readouterr().out)
        return table(scores, LABELS), scores

    return evaluate


@pytest.fixture
def pairs(tmp_path):
    """A prefix, of pairs that the run knows in part."""
    write_split(tmp_path / "pairs", PAIRS)
    return tmp_path / "pairs"


def test_scores_are_those_of_the_outputs_printed_as_a_table_and_kept_beside_others(
    evaluate, workdir, pairs, tmp_path
):
    other, out = {"other": {"bleu": 1.0}}, tmp_path / "out"
    (workdir / "results.json").write_text(json.dumps(other))
    files = [f"--input={pairs}.en", f"--output={out}"]
    assert main(["jformer", "translate", f"--workdir={workdir}", *files]) == 0
    table, scores = evaluate(f"--data={pairs}")
    assert read_scores(workdir) == {**other, **scores}
    found = scores[str(pairs)]
    assert (found["step"], found["checkpoint"], found["ensemble"]) == (3000, "last", {})
    assert found["decode"]["beam_size"] == 4
    assert 20 < found["bleu"] < 90
    expected = score(out.read_text().splitlines(), [PAIRS.targets], "de")
    assert {name: found[name] for name in expected} == json.loads(json.dumps(expected))
    (row,) = (line for line in table.splitlines() if line.startswith("BLEU  "))
    assert row.split()[-1] == f"{found['bleu']:.2f}"
    assert found["signature"] in table


def test_a_tsv_file_and_several_references_are_scored(evaluate, pairs, tmp_path):
    tsv = tmp_path / "pairs.tsv"
    rows = zip(PAIRS.sources, PAIRS.targets, strict=True)
    tsv.write_bytes(as_file("\t".join(row) for row in rows))
    bleu = evaluate(f"--data={tsv}")[1][str(tsv)]["bleu"]
    assert evaluate(f"--data={pairs}")[1][str(pairs)]["bleu"] == bleu
    (tmp_path / "second").write_bytes(as_file(["nothing like it"] * 20))
    with gzip.open(tmp_path / "third.gz", "wb") as file:
        file.write(as_file(["one two three four"] * 20))
    more = f"--references={tmp_path / 'second'},{tmp_path / 'third.gz'}"
    _, scores = evaluate(f"--data={pairs}", more)
    assert "nrefs:3" in scores[str(pairs)]["signature"]
    assert scores[str(pairs)]["bleu"] >= bleu


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (
            ["--data={}/pairs", "--references={}/pairs.de,{}/second"],
            ["{}/second", "3 lines", "{}/pairs", "20"],
        ),
        (["--data={}/empty"], ["{}/empty.en"]),
        (["--data={}/pairs", "--against={}/run@10"], ["{}/run", "step 10"]),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_scored(
    workdir, pairs, tmp_path, capfd, flags, named
):
    (tmp_path / "second").write_text("x\n" * 3)
    for language in ("en", "de"):
        (tmp_path / f"empty.{language}").write_text("")
    (workdir / "results.json").unlink(missing_ok=True)
    flags = [flag.replace("{}", str(tmp_path)) for flag in flags]
    capfd.readouterr()
    assert main(["jformer", "evaluate", f"--workdir={workdir}", *flags]) == 2
    told = capfd.readouterr()
    assert all(name.replace("{}", str(tmp_path)) in told.err for name in named)
    assert told.err.startswith("jformer: ")
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert not (workdir / "results.json").exists()


def test_two_runs_are_compared_by_the_paired_bootstrap(evaluate, workdir, pairs, trained_workdir):
    against = f"--against={trained_workdir}@9"
    table, scores = evaluate(f"--data={pairs}", against, "--config.decode.max_length=7")
    found = scores[str(pairs)]
    names = [f"{workdir}@last", f"{trained_workdir}@9"]
    for metric in ("bleu", "chrf", "ter"):
        ours, theirs = found["against"][metric]["systems"]
        assert [ours["name"], theirs["name"]] == names
        assert ours["score"] == pytest.approx(found[metric])
        assert 0 < found["against"][metric]["p_value"] < 0.05
    assert names[1] in table


def test_an_ensemble_is_scored_as_one(trained_workdir, pairs, tmp_path, capfd):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    data = [f"--workdir={workdir}", f"--data={pairs}", "--checkpoint=9"]
    for flags in ([], [f"--ensemble={workdir}@12"]):
        assert main(["jformer", "evaluate", *data, *flags]) == 0
    alone, found = (
        json.loads(line)[str(pairs)]
        for line in capfd.readouterr().out.splitlines()
        if line.startswith("{")
    )
    assert found["ensemble"] == {f"{workdir}@12": [12]}
    assert found["perplexity"] != alone["perplexity"]


def test_scores_that_cannot_be_kept_are_printed_with_a_warning(workdir, pairs, capfd):
    before = read_scores(workdir)
    # No file can be written there, not even by root.
    (workdir / "results.json.partial").mkdir()
    (workdir / "results.json.partial" / "x").touch()
    assert main(["jformer", "evaluate", f"--workdir={workdir}", f"--data={pairs}"]) == 0
    printed = capfd.readouterr()
    ((name, scores),) = json.loads(printed.out.splitlines()[-1]).items()
    assert scores["bleu"] > 0
    assert re.search(rf"{workdir / 'results.json'}: .*{name}\b.*Is a directory", printed.err)
    assert read_scores(workdir) == before


def test_damaged_results_are_named_before_anything_is_scored(
    trained_workdir, corpus_directory, tmp_path, capfd, monkeypatch
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    path = workdir / "results.json"
    path.write_bytes(b'{"test": {"bleu": 3')
    monkeypatch.setattr("jformer.results.score_all", None)  # the work, which must not begin
    for command in (["evaluate", f"--workdir={workdir}"], small_flags(corpus_directory, workdir)):
        capfd.readouterr()
        assert main(["jformer", *command]) == 2
        told = capfd.readouterr()
        assert told.err.splitlines()[-1].startswith(f"jformer: {path}: ")
        assert told.out == ""


def test_only_scores_that_were_made_alike_are_known(trained_workdir, tmp_path):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    own = {"test": read_scores(workdir)["test"]}  # other tests may have scored more there
    (workdir / "results.json").write_text(json.dumps(own))
    run = load(workdir)
    tests = own_test_sets(run.config)
    assert known_scores(run, tests) == own
    assert known_scores(run.with_decode(batch_size=7, read_ahead=3), tests) == own
    assert known_scores(run.with_decode(beam_size=1), tests) == {}
    assert known_scores(load(workdir, 9), tests) == {}
    assert known_scores(load(workdir, ensemble=[f"{workdir}@9"]), tests) == {}
    other_text = dataclasses.replace(tests["test"], targets=tests["test"].sources)
    assert known_scores(run, {"test": other_text}) == {}
    (workdir / "results.json").unlink()
    assert known_scores(run, tests) == {}
