"""A parser from a treebank to its scores, through the commands, as Section 6.3 has it."""

import json
import random

import pytest

import jformer
from jformer.extras.parsing.trees import trees_in
from jformer.main import main

pytestmark = pytest.mark.process

NOUNS, VERBS = ("cat", "dog", "bird", "fox"), ("sees", "hears")


def noun_phrase(rng):
    noun = f"(NN {rng.choice(NOUNS)})"
    if rng.random() < 0.3:
        return f"(NP (NP (DT a) {noun}) (PP (IN near) (NP (DT the) (NN {rng.choice(NOUNS)}))))"
    return f"(NP-SBJ (DT the) {noun})"


def sentence(rng):
    phrases = noun_phrase(rng), rng.choice(VERBS), noun_phrase(rng)
    return "( (S {} (VP (VBZ {}) {}) (. .)) )".format(*phrases)


@pytest.fixture(scope="module")
def treebank(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("treebank"), random.Random(0)
    for split, number in (("train", 400), ("dev", 20), ("test", 20)):
        lines = [sentence(rng) for _ in range(number)]
        (folder / f"toy.{split}.mrg").write_text("\n".join(lines) + "\n")
    return folder


def flags(treebank):
    return [
        "--config=configs/parsing.py", f"--config.data.directory={treebank}",
        "--config.data.vocabulary_size=300", "--config.data.max_length=60",
        "--config.data.num_buckets=1",
        "--config.model.d_model=16", "--config.model.num_layers=1",
        "--config.model.num_decoder_layers=1", "--config.model.num_heads=2",
        "--config.model.d_ff=32", "--config.train.batch_tokens=512", "--config.train.steps=40",
        "--config.train.evaluate_every=20", "--config.train.checkpoint_every=20",
        "--config.optimizer.warmup_steps=10", "--config.optimizer.learning_rate=0.02",
        "--config.decode.beam_size=2",
        "--config.decode.max_extra_length=40", "--config.decode.batch_size=8",
        "--config.train.metrics_every=20", "--config.train.best_by=f1",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def parser(treebank, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("parser") / "run"
    assert main(["jformer", *flags(treebank), f"--workdir={workdir}"]) == 0
    return workdir


@pytest.fixture(scope="module")
def run(parser):
    return jformer.load(parser)


def scored(capsys, parser, treebank, *options):
    """The scores that `evaluate` prints for the test set."""
    data = f"--data={treebank / 'toy.test.mrg'}"
    assert main(["jformer", "evaluate", f"--workdir={parser}", data, *options]) == 0
    (scores,) = json.loads(capsys.readouterr().out.splitlines()[-1]).values()
    return scores


def test_training_ends_with_f1_of_each_test_set_and_f1_chooses_the_best_checkpoint(parser):
    results = json.loads((parser / "results.json").read_text())
    assert results.keys() == {"served", "toy.test"}
    scores = results["toy.test"]
    assert 0 < scores["f1"] <= 100
    assert scores["well_formed"] == 100
    assert {"perplexity", "f1", "bleu"} & scores.keys() == {"perplexity", "f1"}
    rows = [json.loads(line) for line in (parser / "metrics.jsonl").read_text().splitlines()]
    f1_at = {row["step"]: row["f1"] for row in rows if row["split"] == "validation"}
    assert f1_at.keys() == {20, 40}
    assert f1_at[jformer.load(parser, "best").step] == max(f1_at.values())


def test_translate_writes_a_tree_of_the_words_of_each_line(parser, run, tmp_path):
    # Round brackets are written as in treebanks. Words beyond max_length are added to the root.
    lines = ["the cat sees a dog near the fox .", "unheard ( words )", "the " * 69 + "end", ""]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    files = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}"]
    assert main(["jformer", "translate", f"--workdir={parser}", *files]) == 0
    *parsed, blank = (tmp_path / "out").read_text().split("\n")[:-1]
    assert blank == ""
    trees = [tree.words() for tree in trees_in(parsed, "out")]
    assert trees == [lines[0].split(), ["unheard", "-LRB-", "words", "-RRB-"], lines[2].split()]
    found = run.hypotheses(lines)
    assert [each[0].text for each in found] == [*parsed, ""]
    assert [each[0].well_formed for each in found] == [True, True, False, None]
    (scored,) = run.score(lines[1:2], parsed[1:2])
    assert scored.log_prob == pytest.approx(found[1][0].log_prob, abs=1e-4)


def test_without_the_constraint_outputs_are_repaired_and_counted(parser, treebank, capsys):
    scores = scored(capsys, parser, treebank, "--config.decode.constraint=none")
    assert 0 <= scores["well_formed"] < 100


def test_gold_trees_are_scored_by_the_model(parser, treebank, capfd):
    assert main(["jformer", "score", f"--workdir={parser}", f"--data={treebank}/toy.dev.mrg"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 20


def test_a_tree_in_penn_bracketing_has_the_score_of_the_linearised_one(run):
    words = "the cat sees a dog ."
    penn = "(S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (DT a) (NN dog))) (. .))"
    linearised = "(S (NP 1 2 )NP (VP 3 (NP 4 5 )NP )VP 6 )S"
    found, expected = run.score([words] * 2, [penn, linearised])
    assert found == expected
    tokens = run.attention(words, linearised).target_tokens
    assert run.attention(words, penn).target_tokens == tokens


def test_a_report_has_a_column_for_f1_and_none_for_bleu(parser, tmp_path, capsys):
    assert main(["jformer", "report", str(parser)]) == 0
    out = capsys.readouterr().out
    assert "toy.test F1" in out
    assert "BLEU" not in out


def test_malformed_brackets_are_one_line_before_a_run_is_made(treebank, tmp_path, capsys):
    for name in ("toy.train.mrg", "toy.test.mrg"):
        (tmp_path / name).write_text((treebank / name).read_text())
    (tmp_path / "toy.dev.mrg").write_text("(S (NN a))\n(S (NN a)")
    assert main(["jformer", *flags(tmp_path), f"--workdir={tmp_path / 'run'}"]) == 2
    assert "toy.dev.mrg:2: " in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.json").exists()


def test_two_parsers_are_compared_by_f1(parser, treebank, capsys):
    scores = scored(capsys, parser, treebank, f"--against={parser}@20")
    ours, theirs = scores["against"]["f1"]["systems"]
    assert ours["score"] == scores["f1"] != theirs["score"]
