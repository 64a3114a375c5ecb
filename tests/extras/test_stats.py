"""Corpus statistics: their figures are those of the text and of the batches."""

import json
from pathlib import Path

import numpy as np
import pytest

from jformer.config import Config, DataConfig, TrainConfig
from jformer.data.corpora import Split
from jformer.data.datasets import open_corpora, read_split
from jformer.extras.stats import corpus_statistics, length_statistics, lines_of
from jformer.main import main
from tests.conftest import file_flags, number_words, write_split


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("look")
    split = number_words(100, 300)
    sources, targets = [*split.sources, "", "1" * 60], [*split.targets, "x", "y"]
    for name, lines in (("a.en", sources), ("a.de", targets), ("b.en", ["1", "ß"]), ("b.de", "12")):
        (directory / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    data = DataConfig(
        name="files", train=str(directory / "a"), validation=str(directory / "b"),
        vocabulary_size=300, max_length=48, cache=str(directory / "cache"),
    )  # fmt: skip
    corpora = open_corpora(Config(data=data))
    validation = read_split(corpora["validation"])
    config = Config(data=data, train=TrainConfig(batch_tokens=256))
    return corpus_statistics(config, corpora["train"], {"validation": validation})


def test_it_counts_what_is_trained_on_and_what_is_skipped_by_reason(facts):
    assert facts["pairs_per_epoch"] == 200
    skipped = facts["skipped_or_changed"]
    assert {reason: entry["count"] for reason, entry in skipped.items()} == {
        "empty": 1,
        "above_max_length": 1,
    }
    assert {Path(name).name: count for name, count in facts["pairs"].items()} == {"a.en": 201}
    assert facts["scored"] == {"validation": 2}
    assert [Path(place).name for place in skipped["above_max_length"]["first"]] == ["a.en:202"]


def test_lengths_are_summed_up_by_their_mean_and_quantiles():
    """Of 100 texts of 1 to 100 tokens."""
    found = length_statistics(np.random.default_rng(0).permutation(100) + 1)
    assert found == {"mean": 50.5, "median": 50, "p95": 95, "max": 100}


def test_the_share_of_tokens_is_that_of_both_batchings(facts):
    utilization = facts["token_utilization"]
    assert [*utilization] == ["buckets", "packed"]
    assert all(0.5 < share <= 1 for share in utilization.values())


def test_the_text_has_all_facts(facts):
    text = "\n".join(lines_of(facts))
    assert "pairs_per_epoch: 200\n" in text
    assert "skipped_or_changed:\n    empty:\n        count: 1\n        first: " in text
    assert "sources_in_training_text: none\n" in text


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
        "length_ratio_above_9": {"count": 1, "first": ["train.en:14"]},
    }
    assert facts["sources_in_training_text"] == {
        "validation": {"count": 2, "first": ["validation:1", "validation:2"]},
        "test": {"count": 1, "first": ["test:2"]},
    }


def test_the_number_of_epochs_follows_from_the_batches(facts):
    batches = facts["batches_per_epoch"]
    assert facts["epochs"] == pytest.approx(TrainConfig().steps / batches, abs=0.1)
