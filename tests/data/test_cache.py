"""A damaged entry of the cache is told, and built again: nothing is trained on it."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from jformer.checksums import SUMS, write_sums
from jformer.config import Config, DataConfig, TrainConfig
from jformer.data.batches import iterate, make_batches
from jformer.data.cache import content_hash
from jformer.data.datasets import open_corpora
from jformer.data.tokenize import make_vocabularies, tokenize_corpora, trainable
from jformer.main import main
from tests.conftest import number_words, small_flags, write_split

DATA = DataConfig(
    name="files", train="", validation="", vocabulary_size=300, max_length=48,
    joint_vocabulary=False,
)  # fmt: skip
FILES = [
    "tokens/source.ids", "tokens/target.ids", "tokens/source_offsets.npy",
    "tokens/target_offsets.npy", "tokens/lines.npy", "tokens/meta.json", "tokens/SHA256SUMS",
    "vocabulary/vocabulary.json", "vocabulary/source_vocabulary.json", "vocabulary/SHA256SUMS",
]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    prefix = tmp_path / "train"
    write_split(prefix, number_words(100, 160))
    cache = str(tmp_path / "cache")
    return dataclasses.replace(DATA, train=str(prefix), validation=str(prefix), cache=cache)


def batches_of(data: DataConfig) -> str:
    """A hash of the vocabularies and of the first batches, which a damaged entry would change."""
    config = Config(data=data, train=TrainConfig(batch_tokens=256))
    corpora = open_corpora(config)["train"]
    content = content_hash(corpora)
    vocabularies = make_vocabularies(corpora, content, data)
    tokenized = tokenize_corpora(corpora, content, vocabularies, data)
    batches = make_batches(config, tokenized.pairs, trainable(tokenized, data), vocabularies)
    result = hashlib.sha256(vocabularies.hash.encode())
    for batch, _ in iterate(batches, 12):
        for name in sorted(batch):
            result.update(batch[name].tobytes())
    return result.hexdigest()


def entry_of(data: DataConfig, kind: str) -> Path:
    (folder,) = (path for path in Path(data.cache).glob(f"{kind}-*") if path.is_dir())
    return folder


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def zero_half(path):
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + bytes(len(content) - half))


def raise_ids(path):
    """In the files of ids: the highest that two bytes can hold, which no vocabulary has here."""
    content = bytearray(path.read_bytes())
    content[-2:] = b"\xff\xff"
    path.write_bytes(content)


def append(path):
    with path.open("ab") as file:
        file.write(b"garbage")


def empty(path):
    """As a power cut does."""
    path.write_bytes(b"")


DAMAGES = [cut, zero_half, raise_ids, append, empty, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_whatever_is_damaged_in_an_entry_it_is_told_and_built_again(data, damage, caplog):
    undamaged = batches_of(data)
    whole = Path(data.cache).with_name("whole")
    shutil.copytree(data.cache, whole)
    for name in FILES:
        kind, _, file = name.partition("/")
        folder = entry_of(data, kind)
        damage(folder / file)
        caplog.clear()
        assert batches_of(data) == undamaged, name
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1, name
        assert str(folder) in warnings[0].getMessage()
        assert file == SUMS or file in warnings[0].getMessage()
        for path in folder.iterdir():
            assert path.read_bytes() == (whole / folder.name / path.name).read_bytes(), path


def test_a_file_of_a_file_manager_is_no_damage(data, caplog):
    undamaged = batches_of(data)
    (entry_of(data, "tokens") / ".DS_Store").write_bytes(b"Bud1")
    assert batches_of(data) == undamaged
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_file_in_place_of_an_entry_is_replaced(data, caplog):
    undamaged = batches_of(data)
    folder = entry_of(data, "tokens")
    shutil.rmtree(folder)
    folder.write_text("no folder")
    folder.with_name(f"{folder.name}.partial").write_text("nor this")
    assert batches_of(data) == undamaged
    assert f"{folder}: " in caplog.text


def test_a_large_file_is_checked_without_being_kept_in_memory(data):
    """Of this process's own memory, which is what a job's limit counts first."""
    resource = pytest.importorskip("resource")
    batches_of(data)
    folder = entry_of(data, "tokens")
    size = 2**28
    os.truncate(folder / "source.ids", size)  # a hole in the file: nothing is written
    (folder / SUMS).unlink()
    write_sums(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batches_of(data)
    assert entry_of(data, "tokens").joinpath("source.ids").stat().st_size == size
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < size / 4


def test_an_entry_is_synced_before_it_has_its_name(data, monkeypatch):
    """The order of calls: after a power cut the name must not stand before its content."""
    calls = []
    fsync, rename = os.fsync, Path.rename

    def spy_sync(descriptor):
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def spy_rename(path, target):
        if path.is_dir():
            calls.append(f"rename {path}")
        return rename(path, target)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to name what is synced")
    monkeypatch.setattr(os, "fsync", spy_sync)
    monkeypatch.setattr(Path, "rename", spy_rename)
    batches_of(data)
    folder = entry_of(data, "tokens")
    partial = folder.with_name(f"{folder.name}.partial")
    renamed = calls.index(f"rename {partial}")
    synced = {str(partial / path.name) for path in folder.iterdir()} | {str(partial)}
    assert synced <= {*calls[:renamed]}
    assert data.cache in calls[renamed:]


@pytest.mark.process
def test_training_tells_a_damaged_entry_and_ends_as_without_the_damage(
    corpus_directory, tmp_path, capsys
):
    flags = ["--config.train.steps=4", f"--config.data.cache={tmp_path / 'cache'}"]
    results = []
    for name in ("undamaged", "damaged"):
        assert main(["jformer", *small_flags(corpus_directory, tmp_path / name), *flags]) == 0
        (folder,) = (path for path in (tmp_path / "cache").glob("tokens-*") if path.is_dir())
        messages = [line for line in capsys.readouterr().err.splitlines() if str(folder) in line]
        results.append(json.loads((tmp_path / name / "results.json").read_text()))
        results[-1]["test"].pop("seconds")
        zero_half(folder / "target.ids")
    assert re.match(rf"{folder}: .*target\.ids\b", messages[0])
    assert results[0] == results[1]


def write_parquet(folder, texts):
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(exist_ok=True)
    columns = {"en": texts, "de": [text.upper() for text in texts]}
    for split in ("train", "validation", "test"):
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{split}.parquet")


@pytest.mark.parametrize("in_memory", [0, 2**30])
def test_another_text_of_the_hub_is_another_entry_also_in_memory(
    tmp_path, monkeypatch, capsys, in_memory
):
    """`datasets` keeps a small corpus in memory where IN_MEMORY_MAX_SIZE says so."""
    package = pytest.importorskip("datasets", reason="needs the extra hub")
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(package.config, "IN_MEMORY_MAX_SIZE", in_memory)
    command = [
        "jformer", "data", "--config=configs/tiny.py:hub", "--format=json",
        f"--config.data.directory={tmp_path / 'corpus'}", "--config.data.vocabulary_size=300",
        f"--config.data.cache={tmp_path / 'cache'}",
    ]  # fmt: skip
    shown = []
    for texts in (["some text"] * 9, ["another one"] * 9):
        write_parquet(tmp_path / "corpus", texts)
        assert main(command) == 0
        pieces, _ = json.loads(capsys.readouterr().out)["examples"][0]
        shown.append("".join(pieces))
    assert shown == ["some text</s>", "another one</s>"]
