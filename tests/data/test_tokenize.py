"""Text to ids: once, whole or not at all, and found again only while nothing has changed."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from jformer.config import EOS, Config, DataConfig
from jformer.data import tokenize as tokenize_module
from jformer.data.cache import content_hash
from jformer.data.datasets import open_corpora
from jformer.data.ragged import Ragged
from jformer.data.tokenize import (
    append_eos,
    make_vocabularies,
    tokenize,
    tokenize_corpora,
    trainable,
)
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError
from tests.conftest import number_words, write_split

DATA = DataConfig(name="files", train="", validation="x", vocabulary_size=300, max_length=48)


def write(prefix, sources, targets):
    for language, lines in (("en", sources), ("de", targets)):
        Path(f"{prefix}.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def prepared(data):
    """The corpora's tokens, with the vocabulary that they are in."""
    opened = dataclasses.replace(data, validation=data.train.split(",")[0])
    corpora = open_corpora(Config(data=opened))
    content = content_hash(corpora["train"])
    vocabularies = make_vocabularies(corpora["train"], content, data)
    return tokenize_corpora(corpora["train"], content, vocabularies, data), vocabularies


@pytest.fixture
def data(tmp_path):
    write_split(tmp_path / "train", number_words(100, 160))
    return dataclasses.replace(DATA, train=str(tmp_path / "train"), cache=str(tmp_path / "cache"))


def entries(data):
    return sorted(path.name for path in Path(data.cache).iterdir() if path.is_dir())


def test_the_parts_in_which_text_is_read_do_not_show_in_the_ids(data, monkeypatch, tmp_path):
    write_split(tmp_path / "more", number_words(300, 353))
    data = dataclasses.replace(
        data, train=f"{data.train},{tmp_path / 'more'}", long_pairs="truncate", max_length=9
    )
    (whole, _), folder = prepared(data), str(tmp_path / "again")
    monkeypatch.setattr(tokenize_module, "CHUNK", 7)
    parts, _ = prepared(dataclasses.replace(data, cache=folder))
    for one, other in zip(whole.pairs, parts.pairs, strict=True):
        assert one.flat.tolist() == other.flat.tolist()
        assert one.offsets.tolist() == other.offsets.tolist()
    assert whole.lines.tolist() == parts.lines.tolist()
    assert whole.report.lines() == parts.report.lines()
    assert whole.ends == parts.ends == [60, 113]


def test_the_ids_are_those_of_the_text_with_its_end(data):
    tokenized, vocabularies = prepared(data)
    expected = tokenize(number_words(100, 160), vocabularies)
    for side in ("sources", "targets"):
        cached, made = getattr(tokenized.pairs, side), getattr(expected, side)
        assert cached.flat.tolist() == made.flat.tolist()
        assert cached.offsets.tolist() == made.offsets.tolist()
    end = expected.targets.offsets[1]
    assert expected.targets.flat[end - 1] == EOS
    assert vocabularies.target.decode(expected.targets.flat[:end]) == "one zero zero"


def test_what_is_made_is_found_again(data):
    prepared(data)
    before = {path: path.stat().st_mtime_ns for path in Path(data.cache).rglob("*.*")}
    prepared(data)
    after = {path: path.stat().st_mtime_ns for path in Path(data.cache).rglob("*.*")}
    assert after == before


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, ["tokens", "vocabulary"]),
        ({"vocabulary_size": 290}, ["tokens", "vocabulary"]),
        ({"tokenizer": "byte_bpe(normalization='nfkc')"}, ["tokens", "vocabulary"]),
        ({"bad_lines": "skip"}, ["tokens", "vocabulary"]),
        ({"long_pairs": "truncate"}, ["tokens"]),
        ({"batching": "packed"}, []),
        ({"max_length": 20}, []),
        ({"augment": "bpe_dropout(p=0.1)"}, ["tokens"]),
    ],
    ids=str,
)
def test_whatever_the_ids_depend_on_makes_an_entry_of_its_own(data, change, kinds):
    prepared(data)
    before = entries(data)
    if not change:  # one letter of the text, in a file of the same size and age
        path = Path(f"{data.train}.de")
        age = path.stat().st_mtime_ns
        path.write_text(path.read_text().replace("nine", "nin3", 1))
        os.utime(path, ns=(age, age))
    prepared(dataclasses.replace(data, **change))
    new = [name for name in entries(data) if name not in before]
    assert sorted(name.partition("-")[0] for name in new) == kinds


def test_the_same_columns_read_for_other_languages_are_other_pairs(data, tmp_path):
    columns = "".join(f"{n}\tword {n}\n" for n in range(100, 160))
    (tmp_path / "all.tsv").write_text("en\tde\n" + columns)
    named = dataclasses.replace(data, train=str(tmp_path / "all.tsv"))
    there, vocabularies = prepared(named)
    swapped = dataclasses.replace(named, source_language="de", target_language="en")
    back, _ = prepared(swapped)
    assert vocabularies.source.decode(there.pairs.sources.flat) == "100"
    assert vocabularies.source.decode(back.pairs.sources.flat) == "word 100"


def test_the_same_bytes_under_a_name_that_says_markup_are_other_pairs(data, tmp_path):
    talks = dataclasses.replace(data, train=str(tmp_path / "train.tags.en-de"))
    for prefix in (data.train, talks.train):
        write(prefix, ["<url>x</url>", "1"], ["<url>x</url>", "2"])
    assert prepared(data)[0].lines.tolist() == [1, 2]
    assert prepared(talks)[0].lines.tolist() == [2]


def test_the_places_in_a_report_are_those_of_the_files_that_were_asked_for(data, tmp_path):
    moved = dataclasses.replace(data, train=str(tmp_path / "moved"))
    for prefix in (data.train, moved.train):
        write(prefix, ["1", ""], ["one", "two"])
    for asked in (data, moved):
        report = prepared(asked)[0].report
        assert report.decisions["empty"]["first"] == [f"{asked.train}.en:2"]


def test_pairs_with_an_empty_side_are_left_out_with_their_places(data):
    write(data.train, ["a", "", "b", " ", "c"], ["x", "y", "\t", "y", "z"])
    tokenized, _ = prepared(data)
    assert tokenized.lines.tolist() == [1, 5]
    assert tokenized.report.skipped() == {"empty": 3}
    first = tokenized.report.decisions["empty"]["first"]
    assert first == [f"{data.train}.en:{n}" for n in (2, 3, 4)]


def test_long_pairs_are_skipped_with_their_places(data):
    write(data.train, ["1", "", "2" * 60, "3"], ["x", "y", "x", "4" * 60])
    short = dataclasses.replace(data, max_length=20)
    tokenized, _ = prepared(short)
    assert trainable(tokenized, short).tolist() == [0]
    assert tokenized.report.skipped() == {"empty": 1, "too_long": 2}
    assert tokenized.report.decisions["too_long"]["first"] == [
        f"{data.train}.en:{n}" for n in (3, 4)
    ]


def test_long_pairs_are_cut_where_the_config_says_so(data):
    write(data.train, ["1", "2" * 60], ["3" * 9, "y"])
    cut = dataclasses.replace(data, max_length=7, long_pairs="truncate")
    tokenized, _ = prepared(cut)
    whole, _ = prepared(data)
    assert tokenized.pairs.sources.lengths.tolist() == [2, 7]
    assert tokenized.pairs.sources.flat[[1, 8]].tolist() == [EOS, EOS]
    assert tokenized.pairs.sources.flat[2:8].tolist() == whole.pairs.sources.flat[2:8].tolist()
    assert trainable(tokenized, cut).tolist() == [0, 1]
    assert tokenized.report.decisions["truncated"]["count"] == 2


def test_cutting_leaves_what_is_short_enough():
    starts = np.array([True, False, True, False, False])
    texts = append_eos(Ragged.from_rows([[5, 6], [], [7, 8, 9]], starts), limit=3)
    assert texts.rows() == [[5, 6, EOS], [EOS], [7, 8, EOS]]
    assert texts.word_starts.tolist() == [True, False, True, True, True, False, True]


def test_a_corpus_of_which_nothing_is_left_is_refused(data):
    write(data.train, [""], ["a"])
    with pytest.raises(UserError, match=r"train\.en: .*\b1 pairs? skipped.*\bempty\b"):
        prepared(data)
    write(data.train, ["1" * 99], ["a"])
    with pytest.raises(UserError, match=r"\b1 pairs? skipped.*config\.data\.max_length\b"):
        trainable(prepared(data)[0], data)


def test_mixed_corpora_count_by_their_weights(data, tmp_path):
    write(tmp_path / "more", ["7", "8"], ["seven", "eight"])
    mixed = dataclasses.replace(data, train=f"{data.train},{tmp_path / 'more'}", weights="1,3")
    tokenized, _ = prepared(mixed)
    assert tokenized.ends == [60, 62]
    assert np.bincount(trainable(tokenized, mixed)).tolist() == [1] * 60 + [3] * 2
    assert [tokenized.place(pair) for pair in (59, 60, 61)] == [
        f"{data.train}.en:60", f"{tmp_path / 'more'}.en:1", f"{tmp_path / 'more'}.en:2"
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"config\.data\.weights=1,3,5: .*\b3\b.*\b2\b"):
        trainable(tokenized, dataclasses.replace(mixed, weights="1,3,5"))


def test_a_vocabulary_is_learned_from_a_sample_of_a_large_corpus(data, caplog, monkeypatch):
    write(data.train, ["a", "b"] * 50, ["c", "d"] * 50)
    with caplog.at_level("INFO"):
        monkeypatch.setattr(tokenize_module, "VOCABULARY_SAMPLE", 50)
        prepared(data)
    assert re.search(r"\b2.*\b100 pairs", caplog.text)


def test_of_a_corpus_a_little_larger_than_the_sample_every_second_pair_is_learned_from(
    data, monkeypatch
):
    write(data.train, ["four", "nine"] * 50, ["vier", "neun"] * 50)
    monkeypatch.setattr(tokenize_module, "VOCABULARY_SAMPLE", 60)
    _, vocabularies = prepared(data)
    lengths = [len(ids) for ids in vocabularies.target.encode(["four", "vier", "nine", "neun"])]
    assert lengths == [1, 1, 4, 4]


def test_two_languages_can_have_a_vocabulary_each(data):
    _, vocabularies = prepared(dataclasses.replace(data, joint_vocabulary=False))
    assert vocabularies.source is not vocabularies.target
    assert len(vocabularies.target.encode(["seven"])[0]) < len(
        vocabularies.source.encode(["seven"])[0]
    )


def test_a_vocabulary_that_is_brought_along_is_taken_as_it_is(data, tmp_path):
    Vocabulary.train(["seven eight"] * 9, 290).save(tmp_path / "tokenizer.json")
    brought = dataclasses.replace(data, vocabulary=str(tmp_path / "tokenizer.json"))
    _, vocabularies = prepared(brought)
    assert vocabularies.target.hash == Vocabulary.load(tmp_path / "tokenizer.json").hash
    Vocabulary.train(["nine ten"] * 9, 290).save(tmp_path / "tokenizer.json")
    assert prepared(brought)[1].target.hash != vocabularies.target.hash


def test_ids_that_16_bits_do_not_hold_come_back_whole(data, tmp_path):
    words = {f"w{n}": n for n in range(2**16 + 7)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "words.json"))
    text = [f"w{n} w1" for n in (2, 2**16 - 4, 2**16 - 3, 2**16 + 6)]
    write(data.train, text, text[::-1])
    tokenized, _ = prepared(dataclasses.replace(data, vocabulary=str(tmp_path / "words.json")))
    ids = (5, 2**16 - 1, 2**16, 2**16 + 9)
    for side, numbers in ((tokenized.pairs.sources, ids), (tokenized.pairs.targets, ids[::-1])):
        assert side.flat.tolist() == [i for number in numbers for i in (number, 4, EOS)]


def test_a_vocabulary_to_bring_along_that_is_not_there_is_refused_whatever_the_cache_has(
    data, tmp_path
):
    prepared(data)
    Vocabulary.train(["seven eight"] * 9, 290).save(tmp_path / "here.json")
    here = tmp_path / "here.json"
    for files in ("nowhere.json", f"nowhere.json,{here}", f"{here},nowhere.json"):
        missing = dataclasses.replace(data, joint_vocabulary="," not in files, vocabulary=files)
        with pytest.raises(UserError, match=r"nowhere\.json: .*tokenizer\.json"):
            prepared(missing)


def test_a_cache_that_cannot_be_written_is_named(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"config\.data\.cache=.*file/x: "):
        prepared(dataclasses.replace(data, cache=str(tmp_path / "file" / "x")))


@pytest.mark.skipif(sys.platform != "linux", reason="a file that nobody can read")
def test_training_text_that_cannot_be_read_is_named(data, tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"mem.{language}").symlink_to("/proc/self/mem")
    with pytest.raises(UserError, match=r"/mem\.en: .*Input/output error"):
        prepared(dataclasses.replace(data, train=str(tmp_path / "mem")))


def start(data, cache, batching="packed", **environment):
    """A process of its own that prints a hash of vocabulary, batches and report."""
    command = [sys.executable, "-m", "tests.data.batches_hash", data.train, str(cache), batching]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


@pytest.mark.process
def test_neither_hash_seed_nor_locale_nor_threads_nor_devices_change_the_batches(data, tmp_path):
    processes = [
        start(data, tmp_path / "1", PYTHONHASHSEED="1", RAYON_NUM_THREADS="1", LC_ALL="C"),
        start(
            data, tmp_path / "2", PYTHONHASHSEED="2", RAYON_NUM_THREADS="3", LC_ALL="de_DE.UTF-8",
            JAX_NUM_CPU_DEVICES="8", TZ="Asia/Tokyo",
        ),
    ]  # fmt: skip
    hashes = [process.communicate()[0] for process in processes]
    assert len(hashes[0]) == 65
    assert hashes[0] == hashes[1]


@pytest.mark.process
def test_two_runs_at_once_make_one_entry(data):
    processes = [start(data, data.cache) for _ in range(2)]
    hashes = {process.communicate()[0] for process in processes}
    assert len(hashes) == 1
    assert [process.returncode for process in processes] == [0, 0]
    assert [name.partition("-")[0] for name in entries(data)] == ["tokens", "vocabulary"]


@pytest.mark.process
def test_a_run_killed_while_it_writes_leaves_no_half_entry(data, tmp_path):
    """Long enough a text that the kill comes in the middle of it."""
    write_split(Path(data.train), number_words(10_000, 40_000))
    killed = start(data, data.cache)
    while not list(Path(data.cache).glob("tokens-*.partial/source.ids")):
        assert killed.poll() is None, "the run ended before it could be killed"
        time.sleep(0.002)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert [name.partition("-")[0] for name in entries(data)] == ["tokens", "vocabulary"]
    assert entries(data)[0].endswith(".partial")
    again, fresh = start(data, data.cache), start(data, tmp_path / "fresh")
    assert again.communicate()[0] == fresh.communicate()[0]
    assert not list(Path(data.cache).glob("*.partial"))


def test_separate_vocabularies_are_loaded_as_they_were_saved(data, tmp_path):
    _, vocabularies = prepared(dataclasses.replace(data, joint_vocabulary=False))
    vocabularies.save(tmp_path)
    assert Vocabularies.load(tmp_path, joint=False).hash == vocabularies.hash
