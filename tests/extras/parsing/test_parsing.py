"""A parser from a treebank to its scores, through the commands, as Section 6.3 has it."""

import json
import random

import pytest

import jformer
from jformer.data.corpora import Split
from jformer.extras.parsing.bracketing import bracketing
from jformer.extras.parsing.trees import Tree, read_trees, trees_in
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


def test_training_ends_with_the_bracketing_scores_of_each_test_set(parser):
    results = json.loads((parser / "results.json").read_text())
    assert results.keys() == {"served", "toy.test"}
    scores = results["toy.test"]
    assert 0 < scores["f1"] <= 100
    assert scores["well_formed"] == 100
    assert {"perplexity", "crossing_brackets"} <= scores.keys()
    # The trees of this parser have numbers in place of tags.
    assert not {"bleu", "chrf", "tag_accuracy"} & scores.keys()


def test_f1_of_validation_chooses_the_best_checkpoint(parser, treebank):
    rows = [json.loads(line) for line in (parser / "metrics.jsonl").read_text().splitlines()]
    f1_at = {row["step"]: row["f1"] for row in rows if row["split"] == "validation"}
    assert f1_at.keys() == {20, 40}
    best = jformer.load(parser, "best")
    gold = [*read_trees(treebank / "toy.dev.mrg")]
    outputs = best.translate([" ".join(tree.words()) for tree in gold])
    found = [*trees_in([text.encode() for text in outputs], "out")]
    assert bracketing(found, gold)["f1"] == f1_at[best.step] == max(f1_at.values())


def test_translate_writes_a_tree_of_the_words_of_each_line(parser, run, tmp_path):
    lines = ["the cat sees a dog near the fox .", "unheard words 17", ""]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    files = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}"]
    assert main(["jformer", "translate", f"--workdir={parser}", *files]) == 0
    *parsed, blank = (tmp_path / "out").read_text().split("\n")[:-1]
    assert blank == ""
    trees = [*trees_in([line.encode() for line in parsed], "out")]
    assert [tree.words() for tree in trees] == [line.split() for line in lines[:-1]]
    assert run.translate(lines) == [*parsed, ""]


def test_without_the_constraint_outputs_are_repaired_and_counted(parser, run, treebank, capsys):
    data = f"--data={treebank / 'toy.test.mrg'}"
    free = "--config.decode.constraint=none"
    assert main(["jformer", "evaluate", f"--workdir={parser}", data, free]) == 0
    (scores,) = json.loads(capsys.readouterr().out.splitlines()[-1]).values()
    assert 0 <= scores["well_formed"] < 100
    found = run.hypotheses(["the cat sees the dog ."] * 2, constraint="none")
    assert found[0][0].well_formed in (True, False)
    (tree,) = trees_in([found[0][0].text.encode()], "out")
    assert tree.words() == ["the", "cat", "sees", "the", "dog", "."]


def test_gold_trees_are_scored_by_the_model_and_shown_before_training(parser, treebank, capfd):
    assert main(["jformer", "score", f"--workdir={parser}", f"--data={treebank}/toy.dev.mrg"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 20
    for tags, shown in (("number", "(S|(NP|1|2|)NP|(VP|3|"), ("keep", "(S|(NP|DT|NN|)NP|(VP|VBZ|")):
        name = f"--config.data.name=parsing(tags={tags!r})"
        assert main(["jformer", "data", *flags(treebank), name]) == 0
        assert shown in capfd.readouterr().out


def test_a_tree_in_penn_bracketing_has_the_score_of_the_linearised_one(run):
    words = "the cat sees a dog ."
    penn = "(S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (DT a) (NN dog))) (. .))"
    linearised = "(S (NP 1 2 )NP (VP 3 (NP 4 5 )NP )VP 6 )S"
    found, expected = run.score([words] * 2, [penn, linearised])
    assert found == expected
    tokens = run.attention(words, linearised).target_tokens
    assert run.attention(words, penn).target_tokens == tokens


def test_round_brackets_among_the_words_are_those_of_treebanks(run):
    words = "the cat ( sees ) ."
    ((found,),) = run.hypotheses([words])
    (read,) = trees_in([found.text.encode()], "out")
    assert read.words() == ["the", "cat", "-LRB-", "sees", "-RRB-", "."]
    (scored,) = run.score([words], [found.text])
    assert scored.log_prob == pytest.approx(found.log_prob, abs=1e-4)
    assert len(run.attention(words, found.text).source_tokens) == len(read.words()) + 1


def test_words_beyond_the_limit_of_a_source_are_attached_and_reported(run):
    words = ["the"] * 70
    ((found,),) = run.hypotheses([" ".join(words)])
    assert found.well_formed is False
    (tree,) = trees_in([found.text.encode()], "out")
    assert tree.words() == words
    assert len(tree.children) == 1 + 70 - 59  # the tree of 59 words, and the others beside it


def test_scores_are_of_the_tags_that_tell_punctuation():
    rows = [[Tree("S", (Tree("NN", word="a"), Tree(tag, word="b")))] for tag in ("NN", ",")]
    one, other = (Split(["a b"], ["(S 1 2 )S"], gold=trees) for trees in rows)
    assert one.sha256 != other.sha256


def test_a_report_has_a_column_for_f1_and_none_for_bleu(parser, tmp_path, capsys):
    assert main(["jformer", "report", str(parser)]) == 0
    out = capsys.readouterr().out
    assert "toy.test F1" in out
    assert "BLEU" not in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a))\n(S (NN a)", "toy.dev.mrg:2: "),
        ("(S a (NN b))", "toy.dev.mrg:1: "),
    ],
)
def test_a_tree_that_is_none_is_one_line_before_a_run_is_made(
    treebank, tmp_path, capsys, text, message
):
    for name in ("toy.train.mrg", "toy.test.mrg"):
        (tmp_path / name).write_text((treebank / name).read_text())
    (tmp_path / "toy.dev.mrg").write_text(text)
    assert main(["jformer", *flags(tmp_path), f"--workdir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_second_reference_is_refused(parser, treebank, capsys):
    command = ["jformer", "evaluate", f"--workdir={parser}"]
    data = f"--data={treebank}/toy.test.mrg"
    assert main([*command, data, f"--references={treebank}/toy.test.mrg"]) == 2
    assert "--references=" in capsys.readouterr().err


def test_two_parsers_are_compared_by_f1(parser, treebank, capsys):
    command = ["jformer", "evaluate", f"--workdir={parser}", f"--data={treebank}/toy.test.mrg"]
    assert main([*command, f"--against={parser}@20"]) == 0
    (scores,) = json.loads(capsys.readouterr().out.splitlines()[-1]).values()
    ours, theirs = scores["against"]["f1"]["systems"]
    assert ours["score"] == scores["f1"] != theirs["score"]
