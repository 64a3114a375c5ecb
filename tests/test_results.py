"""Scores of a run: as sacreBLEU computes them, kept beside what they were made with."""

import dataclasses
import gzip
import json
import re
import shutil
import subprocess
import sys

import jax
import pytest

from jformer.commands.evaluate import table
from jformer.evaluation.scorer import TestSet as Pairs
from jformer.evaluation.scores import LABELS
from jformer.main import main
from jformer.results import identity, known_scores, own_test_sets, read_results
from jformer.run import load
from tests.conftest import number_words, small_flags, write_split
from tests.test_stream import as_file, learnt

pytestmark = pytest.mark.process

__all__ = ["learnt"]  # a fixture

PAIRS = number_words(1292, 1312)  # some of them known


@pytest.fixture
def workdir(learnt, tmp_path):
    """A copy to write results into."""
    return shutil.copytree(learnt, tmp_path / "run")


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


def test_scores_are_printed_as_a_table_and_kept_beside_others(evaluate, workdir, pairs):
    other = {"other": {"bleu": 1.0}}
    (workdir / "results.json").write_text(json.dumps(other))
    text, scores = evaluate(f"--data={pairs}")
    assert list(scores) == [str(pairs)]
    assert read_results(workdir) == {**other, **scores}
    found = scores[str(pairs)]
    assert 20 < found["bleu"] < 90
    assert (found["step"], found["checkpoint"], found["ensemble"]) == (300, "last", [])
    assert found["decode"]["beam_size"] == 2
    (row,) = (line for line in text.splitlines() if line.startswith("BLEU  "))
    assert row.split()[-1] == f"{found['bleu']:.2f}"
    assert found["signature"] in text


def test_the_score_of_an_output_file_is_what_sacrebleu_finds(evaluate, workdir, pairs, tmp_path):
    files = [f"--input={pairs}.en", f"--output={tmp_path / 'out'}"]
    assert main(["jformer", "translate", f"--workdir={workdir}", *files]) == 0
    command = [sys.executable, "-m", "sacrebleu", f"{pairs}.de", "-i", str(tmp_path / "out")]
    told = subprocess.run(
        [*command, "-m", "bleu", "chrf", "ter", "--confidence", "-w", "6"],
        capture_output=True, check=True,
    )  # fmt: skip
    bleu, chrf, ter = json.loads(told.stdout)
    scores = evaluate(f"--data={pairs}")[1][str(pairs)]
    assert scores["bleu"] == pytest.approx(bleu["score"], abs=1e-6)
    assert scores["signature"] == bleu["signature"]
    mean, half = (float(bleu[key]) for key in ("confidence_mean", "confidence_var"))
    interval = [max(mean - half, 0), min(mean + half, 100)]
    assert scores["bleu_interval"] == pytest.approx(interval, abs=1e-5)
    without = re.compile(r"bs:1000\|seed:12345\|")
    for name, other in (("chrf", chrf), ("ter", ter)):
        assert scores[name] == pytest.approx(other["score"], abs=1e-6)
        assert scores[f"signature_{name}"] == without.sub("", other["signature"])


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
        (["--references={}/second"], ["--references={}/second: ", "--data="]),
        (
            ["--data={}/pairs", "--references={}/pairs.de,{}/second"],
            ["{}/second", "3 lines", "{}/pairs", "20"],
        ),
        (["--data={}/pairs", "--references={}/none"], ["{}/none: "]),
        (["--data=sacrebleu:nosuch"], ["nosuch: ", "sacrebleu --list"]),
        (["--data={}/none"], ["{}/none.en: "]),
        (["--data={}/empty"], ["{}/empty.en", "{}/empty.de"]),
        (["--data={}/pairs", "--against={}/none"], ["{}/none/config.json: "]),
        (["--data={}/pairs", "--against={}/run@10"], ["{}/run", "step 10"]),
        (["--data={}/pairs", "--ensemble={}/none"], ["{}/none/config.json: "]),
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


def test_two_checkpoints_are_compared_by_the_paired_bootstrap(evaluate, workdir, pairs):
    text, scores = evaluate(f"--data={pairs}", f"--against={workdir}@150", "--checkpoint=300")
    against = scores[str(pairs)]["against"]
    names = [f"{workdir}@300", f"{workdir}@150"]
    for metric in ("bleu", "chrf", "ter"):
        ours, theirs = against[metric]["systems"]
        assert [ours["name"], theirs["name"]] == names
        assert ours["score"] == pytest.approx(scores[str(pairs)][metric])
        assert 0 < against[metric]["p_value"] <= 1
    assert "paired bootstrap" in text
    assert names[1] in text


def test_more_pairs_than_the_paired_bootstrap_can_hold_are_scored_without_it(
    workdir, pairs, monkeypatch, capfd
):
    for module in ("compare", "scores"):
        monkeypatch.setattr(f"jformer.evaluation.{module}.MAX_PAIRS", 19)
    flags = [f"--workdir={workdir}", f"--data={pairs}", "--checkpoint=300"]
    capfd.readouterr()
    assert main(["jformer", "evaluate", *flags, f"--against={workdir}@150"]) == 0
    told = capfd.readouterr()
    (line,) = (line for line in told.err.splitlines() if "significance" in line)
    assert "20 pairs" in line
    scores = json.loads(told.out)
    found = scores[str(pairs)]
    for metric in ("bleu", "chrf", "ter"):
        ours, theirs = found["against"][metric]["systems"]
        assert ours["score"] == pytest.approx(found[metric])
        assert f"{theirs['score']:.2f}" in table(scores, LABELS)
        assert found["against"][metric]["p_value"] is None
    assert read_results(workdir) == scores


def test_the_other_system_searches_in_the_way_that_was_asked_for(evaluate, workdir, pairs):
    """A run against itself is the same twice, also where its own config would say more."""
    _, scores = evaluate(f"--data={pairs}", f"--against={workdir}", "--config.decode.max_length=2")
    ours, theirs = scores[str(pairs)]["against"]["chrf"]["systems"]
    assert ours["score"] == theirs["score"] < evaluate(f"--data={pairs}")[1][str(pairs)]["chrf"]


def test_an_ensemble_is_scored_as_one(evaluate, workdir, pairs):
    _, alone = evaluate(f"--data={pairs}", "--checkpoint=150")
    _, scores = evaluate(f"--data={pairs}", "--checkpoint=150", f"--ensemble={workdir}@300")
    found = scores[str(pairs)]
    assert found["ensemble"] == [f"{workdir}@300"]
    assert found["perplexity"] != alone[str(pairs)]["perplexity"]
    assert read_results(workdir)[str(pairs)] == found


def test_scores_that_cannot_be_kept_are_printed_with_a_warning(
    trained_workdir, corpus_directory, workdir, pairs, tmp_path, capfd
):
    trained = shutil.copytree(trained_workdir, tmp_path / "trained")
    results = json.loads((trained / "results.json").read_text())
    (trained / "results.json").write_text(json.dumps({"served": results["served"]}))
    commands = {
        workdir: ["evaluate", f"--workdir={workdir}", f"--data={pairs}"],
        trained: small_flags(corpus_directory, trained),
    }
    for folder, command in commands.items():
        # No file can be written there, and root has no way around it.
        (folder / "results.json.partial").mkdir()
        (folder / "results.json.partial" / "x").touch()
        before = read_results(folder)
        capfd.readouterr()
        assert main(["jformer", *command]) == 0
        told = capfd.readouterr()
        ((name, scores),) = json.loads(told.out.splitlines()[-1]).items()
        assert scores["bleu"] >= 0
        (warning,) = (line for line in told.err.splitlines() if "results.json" in line)
        assert re.match(rf"{folder / 'results.json'}: .*{name}\b.*Is a directory", warning)
        assert told.err.index(f"{name}: ") < told.err.index(warning)
        assert read_results(folder) == before


@pytest.mark.parametrize("content", [b'{"test": {"bleu": 3', b"\xff", b"[]", None])
def test_damaged_results_are_named_before_anything_is_scored(
    trained_workdir, corpus_directory, tmp_path, capfd, monkeypatch, content
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    path = workdir / "results.json"
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    monkeypatch.setattr("jformer.run.load", None)  # the work, which must not begin
    monkeypatch.setattr("jformer.training.loop.train", None)
    for command in (["evaluate", f"--workdir={workdir}"], small_flags(corpus_directory, workdir)):
        capfd.readouterr()
        assert main(["jformer", *command]) == 2
        told = capfd.readouterr()
        assert told.err.startswith(f"jformer: {path}: ")
        assert told.err.count("\n") == 1
        assert told.out == ""


def test_only_scores_that_were_made_alike_are_known(trained_workdir, tmp_path):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    own = {"test": read_results(workdir)["test"]}  # other tests may have scored more there
    (workdir / "results.json").write_text(json.dumps(own))
    run = load(workdir)
    tests = own_test_sets(run.config)
    assert known_scores(run, tests) == own
    assert known_scores(run.with_decode(batch_size=7, read_ahead=3), tests) == own
    assert known_scores(run.with_decode(beam_size=1), tests) == {}
    assert known_scores(load(workdir, 9), tests) == {}
    assert known_scores(dataclasses.replace(run, bleu_tokenizer="char"), tests) == {}
    assert known_scores(load(workdir, ensemble=[f"{workdir}@9"]), tests) == {}
    other_seed = jax.tree.map(lambda leaf: leaf + 1, run.params)  # trained anew in its place
    assert known_scores(dataclasses.replace(run, params=other_seed), tests) == {}
    (workdir / "results.json").unlink()
    assert known_scores(run, tests) == {}


def test_in_bfloat16_a_score_is_of_its_batch_size_too(trained_workdir, tmp_path):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    config = json.loads((workdir / "config.json").read_text())
    config["model"]["dtype"] = "bfloat16"
    (workdir / "config.json").write_text(json.dumps(config))
    test = {"test": Pairs(["4 2 0"], [["four two zero"]])}
    run = load(workdir)
    (workdir / "results.json").write_text(json.dumps({"test": identity(run, test["test"])}))
    assert known_scores(run, test)
    assert not known_scores(run.with_decode(batch_size=7), test)


@pytest.fixture
def printed(capfd):
    """The scores of the test split that a command prints, and whether they were made anew."""

    def printed(*arguments):
        capfd.readouterr()
        assert main([*arguments]) == 0
        told = capfd.readouterr()
        return json.loads(told.out.splitlines()[-1])["test"], "scoring test" in told.err

    return printed


def test_training_again_scores_anew_what_is_another_text_by_now(
    trained_workdir, corpus_directory, tmp_path, printed
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    train = ["jformer", *small_flags(corpus_directory, workdir)]
    first, _ = printed(*train)
    assert printed(*train) == (first, False)
    for language in ("en", "de"):  # the sources, or the references alone
        path = corpus_directory / f"test.{language}"
        before = path.read_bytes()
        path.write_bytes(before.replace(b"2", b"7").replace(b"two", b"a"))
        try:
            other, anew = printed(*train)
            assert anew
            assert other["perplexity"] != first["perplexity"]
            assert printed(*train) == (other, False)
        finally:
            path.write_bytes(before)
    # What was kept by a version that did not say what it had scored.
    results = read_results(workdir)
    del results["test"]["text_sha256"]
    (workdir / "results.json").write_text(json.dumps({"test": {**results["test"], "bleu": 99.0}}))
    again, anew = printed(*train)
    assert anew
    assert {**again, "seconds": 0} == {**first, "seconds": 0}


def test_training_again_prints_the_scores_of_its_own_search(
    trained_workdir, corpus_directory, tmp_path, printed
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    train = ["jformer", *small_flags(corpus_directory, workdir)]
    greedy = "--config.decode.beam_size=1"

    own = read_results(workdir)["test"]
    other, _ = printed("jformer", "evaluate", f"--workdir={workdir}", greedy)
    assert printed(*train, greedy) == (other, False)
    again, anew = printed(*train)
    assert anew
    assert {**again, "seconds": 0} == {**own, "seconds": 0}
    assert own["decode"]["beam_size"] == 2
    assert other["decode"]["beam_size"] == 1


def test_a_complete_run_whose_schedule_ends_with_it_is_not_told_to_take_more_steps(
    corpus_directory, tmp_path, capfd
):
    schedule = ["--config.optimizer.schedule=linear", "--config.optimizer.warmup_steps=2"]
    flags = [*small_flags(corpus_directory, tmp_path / "run"), *schedule]
    assert main(["jformer", *flags]) == 0
    capfd.readouterr()
    assert main(["jformer", *flags]) == 0
    message = capfd.readouterr().err
    assert f"config.train.init_from={tmp_path / 'run'}" in message
    assert "config.train.steps=" not in message
    assert main(["jformer", *flags, "--config.train.steps=24"]) == 2
