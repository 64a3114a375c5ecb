"""Files as they come: real bytes, real faults, one clear line each."""

import gzip

import pytest

from jformer.config import DataConfig, UserError
from jformer.data.corpora import load_splits, read_pair


def write(directory, **files):
    for name, content in files.items():
        (directory / name.replace("_", ".")).write_bytes(content)
    return str(directory / "x")


def test_only_a_line_feed_ends_a_line(tmp_path):
    odd = "a\u2028b\u0085c\x0b\x0c\x00\rd"
    prefix = write(tmp_path, x_en=f"{odd}\nsecond".encode(), x_de=b"eins\nzwei\n")
    pair = read_pair(prefix, "en", "de")
    assert pair.sources == [odd, "second"]
    assert pair.targets == ["eins", "zwei"]


def test_plain_and_gzip_files_read_alike(tmp_path):
    prefix = write(tmp_path, x_en=b"one\ntwo\n")
    (tmp_path / "x.de.gz").write_bytes(gzip.compress("eins\nzwölf\n".encode()))
    assert read_pair(prefix, "en", "de").targets == ["eins", "zwölf"]


def test_empty_lines_keep_their_place(tmp_path):
    prefix = write(tmp_path, x_en=b"\none\n\n", x_de=b"\neins\n\n")
    assert read_pair(prefix, "en", "de").sources == ["", "one", ""]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"x_en": b"a\nb\n", "x_de": b"a\n"}, r"x\.en has 2 lines and .*x\.de has 1"),
        ({"x_en": b"a\n"}, r"x\.de: no such file, and no .*x\.de\.gz"),
        ({"x_en": b"a\nb\xff\n", "x_de": b"a\nb\n"}, r"x\.en:2: not UTF-8 \(byte 0xff at"),
        ({"x_en": b"a\n", "x_de.gz": gzip.compress(b"text" * 99)[:-12]}, r"x\.de\.gz: damaged"),
        ({"x_en": b"a\n", "x_de.gz": b"not gzip"}, r"x\.de\.gz: damaged gzip"),
    ],
)  # fmt: skip
def test_a_faulty_file_is_named_with_what_is_wrong(tmp_path, files, message):
    with pytest.raises(UserError, match=message) as caught:
        read_pair(write(tmp_path, **files), "en", "de")
    assert "\n" not in str(caught.value)


def test_a_directory_in_place_of_a_file_is_named(tmp_path):
    (tmp_path / "x.en").mkdir()
    with pytest.raises(UserError, match=r"x\.en: is a directory"):
        read_pair(str(tmp_path / "x"), "en", "de")


def test_a_corpus_without_sentences_is_refused(tmp_path):
    prefix = write(tmp_path, x_en=b"", x_de=b"")
    with pytest.raises(UserError, match=r"x\.de: are empty; sentences are needed"):
        load_splits(DataConfig(name="files", train=prefix, validation=prefix), seed=0)


def test_multi30k_is_found_under_its_public_names(tmp_path):
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("en", "fr"):
            (tmp_path / f"{name}.{language}").write_text(f"{name} {language}\n")
    config = DataConfig(name="multi30k", directory=str(tmp_path), target_language="fr")
    splits = load_splits(config, seed=0)
    assert {name: split.targets for name, split in splits.items()} == {
        "train": ["train fr"],
        "validation": ["val fr"],
        "test_2016_flickr": ["test_2016_flickr fr"],
    }


def test_files_without_a_test_prefix_have_no_test_split(corpus_directory):
    config = DataConfig(
        name="files",
        train=str(corpus_directory / "train"),
        validation=str(corpus_directory / "validation"),
    )
    assert list(load_splits(config, seed=0)) == ["train", "validation"]
