"""Text to ids: made once, whole or not at all, and found again as long as nothing has changed."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jformer.config import EOS, Config, DataConfig
from jformer.data import tokens as module
from jformer.data.datasets import open_corpora
from jformer.data.tokens import make_vocabularies, tokenize, tokenize_corpora
from jformer.data.vocabulary import Vocabulary
from jformer.errors import UserError
from tests.conftest import number_words, write_split

DATA = DataConfig(name="files", train="", validation="x", vocabulary_size=300, max_length=48)


def write(prefix, sources, targets):
    for language, lines in (("en", sources), ("de", targets)):
        Path(f"{prefix}.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def prepared(data):
    """The corpora's tokens, with their vocabularies."""
    opened = dataclasses.replace(data, validation=data.train.split(",")[0])
    corpora = open_corpora(Config(data=opened))["train"]
    vocabularies = make_vocabularies(corpora, data)
    return tokenize_corpora(corpora, vocabularies, opened), vocabularies


@pytest.fixture
def data(tmp_path):
    write_split(tmp_path / "train", number_words(100, 160))
    return dataclasses.replace(DATA, train=str(tmp_path / "train"), cache=str(tmp_path / "cache"))


def entries(data):
    return sorted(path.name for path in Path(data.cache).iterdir() if path.is_dir())


def entry(data, kind="tokens"):
    (folder,) = (path for path in Path(data.cache).glob(f"{kind}-*") if path.is_dir())
    return folder


def test_the_parts_in_which_text_is_read_do_not_change_the_ids(data, monkeypatch, tmp_path):
    write_split(tmp_path / "more", number_words(300, 353))
    data = dataclasses.replace(data, train=f"{data.train},{tmp_path / 'more'}", max_length=9)
    (whole, _), folder = prepared(data), str(tmp_path / "again")
    monkeypatch.setattr(module, "CHUNK", 7)
    parts, _ = prepared(dataclasses.replace(data, cache=folder))
    for one, other in zip(whole.pairs, parts.pairs, strict=True):
        assert one.rows() == other.rows()
    assert whole.places.tolist() == parts.places.tolist()
    assert whole.report == parts.report


def test_the_ids_are_those_of_the_text_with_its_end(data):
    tokenized, vocabularies = prepared(data)
    expected = tokenize(number_words(100, 160), vocabularies, data)
    for side in ("sources", "targets"):
        assert getattr(tokenized.pairs, side).rows() == getattr(expected, side).rows()
    end = expected.targets.offsets[1]
    assert expected.targets.flat[end - 1] == EOS
    assert vocabularies.target.decode(expected.targets.flat[:end]) == "one zero zero"


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, ["tokens", "vocabulary"]),
        ({"tokenizer": "byte_bpe(normalization='nfkc')"}, ["tokens", "vocabulary"]),
        ({"bad_lines": "skip"}, ["tokens", "vocabulary"]),
        ({"max_length": 30}, []),
        ({"augment": "bpe_dropout(p=0.1)"}, []),
    ],
    ids=str,
)
def test_everything_that_decides_the_ids_makes_an_entry_of_its_own(data, change, kinds):
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


def test_text_that_moves_keeps_its_entry(data, tmp_path):
    write(data.train, ["1", "", "3"], ["one", "two", "three"])
    prepared(data)
    before = entries(data)
    (tmp_path / "moved").mkdir()
    for language in ("en", "de"):
        shutil.move(f"{data.train}.{language}", tmp_path / "moved")
    moved = dataclasses.replace(data, train=str(tmp_path / "moved" / "train"))
    tokenized, _ = prepared(moved)
    assert entries(data) == before
    assert tokenized.places.tolist() == [[0, 1], [0, 3]]


def test_the_same_columns_read_for_other_languages_are_other_pairs(data, tmp_path):
    columns = "".join(f"{n}\tword {n}\n" for n in range(100, 160))
    (tmp_path / "all.tsv").write_text("en\tde\n" + columns)
    named = dataclasses.replace(data, train=str(tmp_path / "all.tsv"))
    there, vocabularies = prepared(named)
    swapped = dataclasses.replace(named, source_language="de", target_language="en")
    back, _ = prepared(swapped)
    assert vocabularies.source.decode(there.pairs.sources.flat) == "100"
    assert vocabularies.source.decode(back.pairs.sources.flat) == "word 100"


def test_pairs_with_an_empty_side_or_too_long_are_skipped_and_reported_by_line(data):
    write(data.train, ["1", "", "b", " ", "2" * 60, "3"], ["x", "y", "\t", "y", "x", "4" * 60])
    tokenized, _ = prepared(dataclasses.replace(data, max_length=20))
    assert tokenized.places.tolist() == [[0, 1], [0, 5], [0, 6]]
    assert tokenized.rows.tolist() == [0]
    assert tokenized.report.decisions == {
        reason: {"count": len(lines), "first": [f"{data.train}.en:{line}" for line in lines]}
        for reason, lines in (("empty", (2, 3, 4)), ("above_max_length", (5, 6)))
    }


def test_a_corpus_without_a_pair_to_train_on_is_refused(data):
    for sources, reason in (([], ""), ([""], "empty"), (["1" * 99], "above_max_length")):
        write(data.train, sources, ["a"] * len(sources))
        with pytest.raises(UserError, match=rf"train\.en: .*{reason}"):
            prepared(data)


def test_mixed_corpora_count_by_their_weights(data, tmp_path):
    write(tmp_path / "more", ["7", "8"], ["seven", "eight"])
    mixed = dataclasses.replace(data, train=f"{data.train},{tmp_path / 'more'}", weights="1,3")
    tokenized, _ = prepared(mixed)
    assert np.bincount(tokenized.places[:, 0]).tolist() == [60, 2]
    assert np.bincount(tokenized.rows).tolist() == [1] * 60 + [3] * 2
    assert tokenized.places[59:].tolist() == [[0, 60], [1, 1], [1, 2]]


def test_an_external_vocabulary_is_used_as_it_is_and_read_again_if_it_changes(data, tmp_path):
    path = tmp_path / "tokenizer.json"
    Vocabulary.train(["seven eight"] * 9, 290).save(path)
    external = dataclasses.replace(data, vocabulary=str(path))
    _, vocabularies = prepared(external)
    assert vocabularies.target.hash == Vocabulary.load(path).hash
    Vocabulary.train(["nine ten"] * 9, 290).save(path)
    assert prepared(external)[1].target.hash != vocabularies.target.hash
    path.unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json: "):
        prepared(external)


@pytest.mark.parametrize("name", ["source", "index"])
def test_a_file_that_is_cut_is_an_error_that_names_the_folder_to_delete(data, name):
    prepared(data)
    path = entry(data) / name
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UserError, match=rf"^{entry(data)}: .*\bdelete\b"):
        prepared(data)


def test_a_cache_beyond_its_size_loses_the_tokens_not_used_for_the_longest_time(data, monkeypatch):
    Path(data.cache).mkdir()
    others = [dataclasses.replace(data, vocabulary_size=size) for size in (280, 285, 290)]
    folders = []
    for age, other in zip((30, 20, 10), others, strict=True):
        before = entries(data)
        prepared(other)
        (name,) = (x for x in entries(data) if x not in before and x.startswith("tokens"))
        folders.append(Path(data.cache) / name)
        os.utime(folders[-1], (time.time() - age,) * 2)
    prepared(others[0])  # uses its entry
    size = sum(path.stat().st_size for path in folders[0].iterdir())
    monkeypatch.setattr(module, "MAX_CACHE_BYTES", 1.5 * size)
    prepared(data)
    assert [folder.exists() for folder in folders] == [True, False, False]


def test_a_cache_that_cannot_be_written_is_named(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"config\.data\.cache=.*file/x: "):
        prepared(dataclasses.replace(data, cache=str(tmp_path / "file" / "x")))


def start(data, cache, **environment):
    """A process of its own that prints a hash of vocabulary, batches and report."""
    command = [sys.executable, "-m", "tests.data.batches_hash", data.train, str(cache)]
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
    """The text is long enough for the kill to come in the middle of it."""
    write_split(Path(data.train), number_words(10_000, 20_000))
    killed = start(data, data.cache)
    while not list(Path(data.cache).glob("tokens-*.partial/source")):
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


def test_another_text_of_the_hub_is_another_entry(data, tmp_path, monkeypatch):
    package = pytest.importorskip("datasets", reason="needs the extra hub")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    hub = dataclasses.replace(data, name="hub", directory=str(folder), train="")
    for text in ("some text", "another one"):
        table = sys.modules["pyarrow"].table({"en": [text] * 9, "de": [text.upper()] * 9})
        for split in ("train", "validation"):
            parquet.write_table(table, folder / f"{split}.parquet")
        tokenized, vocabularies = prepared(hub)
        assert vocabularies.source.decode(tokenized.pairs.sources.flat) == text
