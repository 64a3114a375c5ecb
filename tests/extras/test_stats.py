"""Corpus statistics: their figures are those of the text and of the batches."""

import json
from pathlib import Path

import numpy as np
import pytest

from jformer.config import Config, DataConfig, TrainConfig
from jformer.data.corpora import Split
from jformer.data.datasets import open_corpora, read_split
from jformer.extras.stats import corpus_statistics, length_statistics, page
from jformer.main import main
from tests.conftest import file_flags, number_words, write_split

ODD = ["1\u20282 3", "4\u200b5 6", "7\u200b8 9"]


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("look")
    split = number_words(100, 300)
    sources, targets = [*split.sources, "", *ODD, "1" * 60], [*split.targets, "x", *ODD, "y"]
    for name, lines in (("a.en", sources), ("a.de", targets), ("b.en", ["1", "ß"]), ("b.de", "12")):
        (directory / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    data = DataConfig(
        name="files", train=str(directory / "a"), validation=str(directory / "b"),
        vocabulary_size=300, max_length=48, cache=str(directory / "cache"),
    )  # fmt: skip
    corpora = open_corpora(Config(data=data))
    validation = read_split(corpora["validation"], data)
    config = Config(data=data, train=TrainConfig(batch_tokens=256))
    return corpus_statistics(config, corpora["train"], {"validation": validation})


def test_it_counts_what_is_trained_on_and_what_is_skipped_by_reason(facts):
    assert facts["pairs"] == 203
    assert facts["skipped"] == {"empty": 1, "too_long": 1}
    assert facts["scored"] == {"validation": 2}
    assert [Path(place).name for place in facts["decisions"]["too_long"]["first"]] == ["a.en:205"]


def test_lengths_are_summed_up_by_their_mean_and_quantiles():
    """Of 100 texts of 1 to 100 tokens."""
    found = length_statistics(np.random.default_rng(0).permutation(100) + 1)
    assert found == {"mean": 50.5, "median": 50, "p95": 95, "max": 100}


def test_odd_characters_are_named_with_their_first_place(facts):
    odd = facts["odd_characters"]
    assert list(odd) == ["U+200B", "U+2028"]  # the most frequent first
    assert (odd["U+200B"]["count"], odd["U+200B"]["kind"]) == (4, "zero width space")
    assert Path(odd["U+2028"]["first"]).name == "a.en:202"


def test_used_entries_of_the_vocabulary_are_counted(facts):
    vocabulary = facts["vocabulary"]
    assert vocabulary["source"]["used"] < vocabulary["target"]["used"]  # digits against words
    assert 0 < vocabulary["source"]["used"] < vocabulary["source"]["entries"] <= 300


def test_padding_is_told_for_both_batchings(facts):
    assert all(0 < layout["token_utilization"] < 1 for layout in facts["batchings"].values())
    assert len(facts["batchings"]["packed"]["shapes"]) == 1
    assert facts["batchings"]["buckets"]["batches"] > facts["batchings"]["packed"]["batches"]


@pytest.mark.parametrize("multiple", [3, 4])
def test_the_lengths_of_shapes_are_multiples_of_the_key(corpus_directory, capsys, multiple):
    arguments = ["jformer", "data", "--config=configs/tiny.py:files", *file_flags(corpus_directory)]
    arguments += ["--config.data.vocabulary_size=300", "--format=json"]
    assert main([*arguments, f"--config.data.length_multiple={multiple}"]) == 0
    lengths = np.array(json.loads(capsys.readouterr().out)["batchings"]["buckets"]["shapes"])[:, 1:]
    assert np.all(lengths % multiple == 0)
    assert np.any(lengths % (7 - multiple))


def test_examples_are_the_pieces_of_the_text(facts):
    assert len(facts["examples"]) == 10
    source, target = facts["examples"][0]
    assert "".join(source) == "1 0 0</s>"
    assert "".join(target) == "one zero zero</s>"


def test_the_page_shows_it_all(facts):
    text = page(facts)
    for part in (
        "203 pairs per epoch",
        "zero width space",
        "buckets: ",
        "packed: ",
        "1| |0| |0|</s>",
    ):
        assert part in text


def test_suspicious_pairs_and_test_sentences_in_the_training_text_are_counted(tmp_path, capsys):
    known = number_words(100, 110)
    odd = [
        ("1 0 0", "one zero zero"),
        (" 1 0 1 ", "one zero one"),
        ("17", "17"),
        ("1", "nine " * 40),
    ]
    train = Split(
        *map(list, zip(*zip(known.sources, known.targets, strict=True), *odd, strict=True))
    )
    write_split(tmp_path / "train", train)
    write_split(tmp_path / "validation", number_words(108, 112))
    write_split(tmp_path / "test", Split(["9 9", "1 0 0 "], ["nine nine", "another"]))
    arguments = ["jformer", "data", "--config=configs/tiny.py:files", *file_flags(tmp_path)]
    arguments += ["--config.data.vocabulary_size=300", f"--config.data.cache={tmp_path}"]
    assert main([*arguments, "--format=json"]) == 0
    facts = json.loads(capsys.readouterr().out.replace(f"{tmp_path}/", ""))
    assert facts["suspicious"] == {
        "duplicate": {"count": 2, "first": ["train.en:11", "train.en:12"]},
        "source_is_target": {"count": 1, "first": ["train.en:13"]},
        "length_ratio": {"count": 1, "first": ["train.en:14"]},
    }
    assert facts["in_training"] == {
        "validation": {"count": 2, "first": ["validation.en:1", "validation.en:2"]},
        "test": {"count": 1, "first": ["test.en:2"]},
    }
    assert main(arguments) == 0
    lines = capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()
    for entry in (*facts["suspicious"].values(), *facts["in_training"].values()):
        (line,) = [line for line in lines if f"({', '.join(entry['first'])})" in line]
        assert line.startswith(f"{entry['count']} ")
