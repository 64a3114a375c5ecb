"""A vocabulary from elsewhere, or a damaged one: one line, before memory or time is spent."""

import json
import re
import shutil

import pytest

from jformer.main import main
from tests.conftest import number_words, small_flags, write_split

LETTERS = {letter: i for i, letter in enumerate("abc")}


def tokenizer(kind, vocab, **settings):
    model = {"type": kind, "vocab": vocab, **settings}
    if kind == "WordPiece":
        model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    nothing = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    cut = {"type": "Whitespace"}
    return nothing | {"version": "1.0", "added_tokens": [], "pre_tokenizer": cut, "model": model}


def words(**more):
    return tokenizer("WordLevel", {**LETTERS, "<unk>": 3, **more}, unk_token="<unk>")


def bpe(vocab, unk_token=None, merges=()):
    return tokenizer("BPE", vocab, unk_token=unk_token, merges=list(merges))


MALFORMED = {
    "WordPiece without its unknown entry": (
        tokenizer("WordPiece", LETTERS, unk_token="[UNK]"), "Missing [UNK] token",
    ),
    "words without their unknown entry": (
        tokenizer("WordLevel", LETTERS, unk_token="<unk>"), "Missing [UNK] token",
    ),
    "Unigram without an unknown entry": (
        tokenizer("Unigram", [["a", -1.0], ["b", -2.0]], unk_id=None), "`unk_id` is missing",
    ),
    "Unigram with an unknown entry beyond its end": (
        tokenizer("Unigram", [["a", -1.0], ["b", -2.0]], unk_id=7), "UnkIdNotInVocabulary",
    ),
    "BPE without its unknown entry": (bpe(LETTERS, "<unk>"), "Unk token `<unk>` not found"),
    "BPE without the result of a merge": (bpe(LETTERS, merges=[["a", "b"]]), "'ab'"),
    "BPE without a part of a merge": (bpe(LETTERS, merges=["a d"]), "'d'"),
    "BPE without entries": (bpe({}), "vocabulary"),
    "an id of 2^31": (words(z=2**31), "2147483648"),
    "an id of 10^12": (words(z=10**12), "1000000000000"),
    "an id below 0": (words(z=-1), "integer `-1`"),
    "an id that is none": (words(z="3"), " id"),
    "more holes than entries": (words(z=5000), "5000"),
    "an id twice": (words(z=0), " id"),
    "a list": ([], "expected struct Tokenizer"),
    "no object for the model": (tokenizer("BPE", None) | {"model": 7}, "ModelUntagged"),
}  # fmt: skip
TEXTS = {name: (json.dumps(document), told) for name, (document, told) in MALFORMED.items()}
TEXTS["deep nesting"] = "[" * 100_000 + "]" * 100_000, "nested"
TEXTS["no JSON"] = "{", "line 1 column 2"


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("text") / "train"
    write_split(prefix, number_words(100, 110))
    return prefix


@pytest.mark.parametrize("name", TEXTS)
def test_a_malformed_tokenizer_to_bring_along_is_one_line(name, train, tmp_path, capsys):
    content, told = TEXTS[name]
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    command = [
        "jformer", "data", "--config=configs/tiny.py:files", f"--config.data.train={train}",
        f"--config.data.validation={train}", f"--config.data.cache={tmp_path / 'cache'}",
        f"--config.data.vocabulary={path}",
    ]  # fmt: skip
    assert main(command) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert re.match(rf"jformer: {path}: .*tokenizer\.json\b.*\.model\b", error)
    assert told in error


@pytest.mark.process
@pytest.mark.parametrize("name", ["an id of 2^31", "more holes than entries", "deep nesting"])
def test_a_damaged_vocabulary_of_a_run_is_one_line(name, trained_workdir, tmp_path, capsys):
    content, told = TEXTS[name]
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    (workdir / "vocabulary.json").write_text(content)
    assert main(["jformer", "translate", f"--workdir={workdir}"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"jformer: {workdir / 'vocabulary.json'}: ")
    assert told in error


@pytest.mark.process
def test_a_resume_with_a_damaged_vocabulary_is_one_line(
    trained_workdir, corpus_directory, tmp_path, capsys
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    (workdir / "vocabulary.json").write_text(TEXTS["an id of 2^31"][0])
    more = "--config.train.steps=15"
    assert main(["jformer", *small_flags(corpus_directory, workdir), more]) == 2
    assert f"{workdir}/vocabulary.json: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("unk_token", [None, "a"])
def test_what_can_encode_any_text_needs_no_unknown_entry(unk_token, train, tmp_path):
    """A BPE that names none leaves out what it lacks, which `data` counts."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(bpe({**LETTERS, "1": 3}, unk_token)))
    command = [
        "jformer", "data", "--config=configs/tiny.py:files", f"--config.data.train={train}",
        f"--config.data.validation={train}", f"--config.data.cache={tmp_path / 'cache'}",
        f"--config.data.vocabulary={path}",
    ]  # fmt: skip
    assert main(command) == 0
