"""Corpora under the names that they are published by; every file holds its own name as its text."""

import dataclasses
import gzip
import re

import pytest

from jformer.config import DataConfig
from jformer.config.data import NAMED
from jformer.data.corpora import Report, read
from jformer.data.datasets import LAYOUTS, open_folder, wanted
from jformer.data.hub import HUB
from jformer.data.pipeline import open_corpora
from jformer.errors import UserError

# As unpacked from the archives. PAIR is the archive's, DIRECTION and SIDE are the reader's.
MULTI30K = {
    "train": ["train.LANG"],
    "validation": ["val.LANG"],
    "test_2016_flickr": ["test_2016_flickr.LANG"],
    "test_2017_flickr": ["test_2017_flickr.LANG"],
    "test_2017_mscoco": ["test_2017_mscoco.LANG"],
    "test_2018_flickr": ["test_2018_flickr.LANG"],
}
IWSLT14 = {
    "train": ["PAIR/train.tags.PAIR.LANG"],
    "validation": ["PAIR/IWSLT14.TED.dev2010.PAIR.LANG.xml"],
    "tst2012": ["PAIR/IWSLT14.TED.tst2012.PAIR.LANG.xml"],
    "tst2011": ["PAIR/IWSLT14.TED.tst2011.PAIR.LANG.xml"],
    "tst2010": ["PAIR/IWSLT14.TED.tst2010.PAIR.LANG.xml"],
}
IWSLT17 = {
    "train": ["PAIR/train.tags.PAIR.LANG"],
    "validation": ["PAIR/IWSLT17.TED.dev2010.PAIR.LANG.xml"],
    "tst2015": ["PAIR/IWSLT17.TED.tst2015.PAIR.LANG.xml"],
    "tst2014": ["PAIR/IWSLT17.TED.tst2014.PAIR.LANG.xml"],
    "tst2013": ["PAIR/IWSLT17.TED.tst2013.PAIR.LANG.xml"],
    "tst2012": ["PAIR/IWSLT17.TED.tst2012.PAIR.LANG.xml"],
    "tst2011": ["PAIR/IWSLT17.TED.tst2011.PAIR.LANG.xml"],
    "tst2010": ["PAIR/IWSLT17.TED.tst2010.PAIR.LANG.xml"],
}
FAIRSEQ = {"train": ["train.LANG"], "validation": ["valid.LANG"], "test": ["test.LANG"]}
WMT14_GERMAN = {
    "train": [
        "training/europarl-v7.de-en.LANG",
        "commoncrawl.de-en.LANG",
        "training/news-commentary-v9.de-en.LANG",
    ],
    "validation": ["dev/newstest2013.LANG"],
    "newstest2014": ["test-full/newstest2014-deen-SIDE.LANG.sgm"],
}
WMT14_FRENCH = {
    "train": [
        "training/europarl-v7.fr-en.LANG",
        "commoncrawl.fr-en.LANG",
        "training/news-commentary-v9.fr-en.LANG",
        "un/undoc.2000.fr-en.LANG",
        "giga-fren.release2.fixed.LANG",
    ],
    "validation": ["dev/newstest2013.LANG"],
    "newstest2014": ["test-full/newstest2014-fren-SIDE.LANG.sgm"],
}
STANFORD = {
    "train": ["train.LANG"],
    "validation": ["newstest2013.LANG"],
    "newstest2014": ["newstest2014.LANG"],
}
WMT16 = {
    "train": [
        "training/europarl-v7.de-en.LANG",
        "commoncrawl.de-en.LANG",
        "training-parallel-nc-v11/news-commentary-v11.de-en.LANG",
    ],
    "validation": ["dev/newstest2015-DIRECTION-SIDE.LANG.sgm"],
    "newstest2016": ["test/newstest2016-DIRECTION-SIDE.LANG.sgm"],
}
GOOGLE = {
    "train": ["train.tok.clean.LANG"],
    "validation": ["newstest2015.tok.LANG"],
    "newstest2016": ["newstest2016.tok.LANG"],
}
TATOEBA = {"train": ["train.LANG"], "validation": ["val.LANG"], "test": ["test.LANG"]}

# Corpus, number of its layout, languages as in the archive's name, files.
PUBLISHED = [
    ("multi30k", 0, "en-de", MULTI30K),
    ("multi30k", 0, "en-fr", MULTI30K),
    ("iwslt14", 0, "de-en", IWSLT14),
    ("iwslt14", 0, "en-fr", IWSLT14),
    ("iwslt14", 1, "de-en", FAIRSEQ),
    ("iwslt17", 0, "en-de", IWSLT17),
    ("iwslt17", 0, "fr-en", IWSLT17),
    ("iwslt17", 1, "de-en", FAIRSEQ),
    ("wmt14", 0, "de-en", WMT14_GERMAN),
    ("wmt14", 0, "fr-en", WMT14_FRENCH),
    ("wmt14", 1, "en-de", STANFORD),
    ("wmt16", 0, "de-en", WMT16),
    ("wmt16", 1, "en-de", GOOGLE),
    ("tatoeba", 0, "en-de", TATOEBA),
    ("tatoeba", 0, "en-fr", TATOEBA),
]


def config(directory, name, pair="en-de") -> DataConfig:
    source, target = pair.split("-")
    return DataConfig(
        name=name, directory=str(directory), source_language=source, target_language=target
    )


def both(file, data, archive="de-en"):
    """The names of the source's file and the target's."""
    source, target = data.source_language, data.target_language
    file = file.replace("PAIR", archive).replace("DIRECTION", source + target)
    return tuple(
        file.replace("SIDE", side).replace("LANG", language)
        for side, language in (("src", source), ("ref", target))
    )


def write(directory, file, packed=False):
    if file.endswith((".sgm", ".xml")):
        text = f'<doc>\n<title>markup</title>\n<seg id="1"> {file} </seg>\n</doc>\n'
    elif ".tags." in file:
        text = f"<url>markup</url>\n{file}\n"
    else:
        text = f"{file}\n"
    path = directory / (f"{file}.gz" if packed else file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


def write_all(directory, files, data, archive="de-en", packed=False):
    for file in (file for parts in files.values() for file in parts):
        for name in both(file, data, archive):
            write(directory, name, packed)


def texts(corpora):
    """The pairs of each part of each split."""
    return {
        split: [[pair[1:] for pair in read(part, "error", Report())] for part in parts]
        for split, parts in corpora.items()
    }


def message(data, with_train=True):
    with pytest.raises(UserError) as caught:
        open_folder(data, with_train)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("name", "number", "archive", "files"), PUBLISHED)
def test_published_files_are_found_in_either_direction(
    tmp_path, monkeypatch, name, number, archive, files, reverse, packed
):
    monkeypatch.setitem(LAYOUTS, name, [LAYOUTS[name][number]])
    data = config(tmp_path, name, "-".join(archive.split("-")[:: -1 if reverse else 1]))
    write_all(tmp_path, files, data, archive, packed)
    assert texts(open_folder(data, with_train=True)) == {
        split: [[both(file, data, archive)] for file in parts] for split, parts in files.items()
    }


def test_every_layout_is_read_by_a_test():
    assert {(name, number) for name, number, _, _ in PUBLISHED} == {
        (name, number) for name, layouts in LAYOUTS.items() for number in range(len(layouts))
    }


def test_every_named_corpus_is_in_both_tables():
    assert {*LAYOUTS} == {*HUB} == {*NAMED}


def test_every_layout_has_something_to_score():
    assert all(layout.tests for layouts in LAYOUTS.values() for layout in layouts)


def test_every_hub_repository_is_pinned_to_a_commit():
    for hub in HUB.values():
        assert re.fullmatch(r"[0-9a-f]{40}", hub.revision), hub.repository


def test_parts_of_the_training_text_come_in_the_order_of_the_table(tmp_path):
    data = config(tmp_path, "wmt14")
    write_all(tmp_path, WMT14_GERMAN, data)
    found = [part.files[0].name for part in open_folder(data, with_train=True)["train"]]
    assert found == ["europarl-v7.de-en.en", "commoncrawl.de-en.en", "news-commentary-v9.de-en.en"]


def test_of_two_layouts_in_a_folder_the_first_counts(tmp_path):
    data = config(tmp_path, "wmt14")
    write_all(tmp_path, STANFORD, data)
    assert len(open_folder(data, with_train=True)["train"]) == 1
    write_all(tmp_path, WMT14_GERMAN, data)
    assert len(open_folder(data, with_train=True)["train"]) == 3


def test_of_archives_for_both_directions_that_of_the_direction_counts(tmp_path):
    for archive in ("de-en", "en-de"):
        write_all(tmp_path, IWSLT17, config(tmp_path, "iwslt17"), archive)
    for pair in ("de-en", "en-de"):
        (part,) = open_folder(config(tmp_path, "iwslt17", pair), with_train=True)["tst2015"]
        assert {path.parent.name for path in part.files} == {pair}


def test_test_sets_beyond_the_first_are_optional(tmp_path):
    data = config(tmp_path, "multi30k")
    write_all(tmp_path, MULTI30K, data)
    for file in ("test_2017_flickr.en", "test_2017_flickr.de", "test_2018_flickr.de"):
        (tmp_path / file).unlink()
    assert list(open_folder(data, with_train=True)) == [
        "train",
        "validation",
        "test_2016_flickr",
        "test_2017_mscoco",
    ]


def test_scoring_needs_no_training_text(tmp_path):
    data = config(tmp_path, "tatoeba")
    write_all(tmp_path, {**TATOEBA, "train": []}, data)
    assert list(open_folder(data, with_train=False)) == ["validation", "test"]
    assert re.search(r"train\.en\b.*train\.de\b", message(data))


@pytest.mark.parametrize(
    ("name", "pair", "files", "absent", "told"),
    [
        ("multi30k", "en-de", MULTI30K, "val.de", r"val\.en .*\bval\.de\b"),
        (
            "multi30k",
            "en-fr",
            MULTI30K,
            "test_2016_flickr.en",
            r"test_2016_flickr\.en .*\btest_2016_flickr",
        ),
        (
            "iwslt14",
            "de-en",
            IWSLT14,
            "de-en/train.tags.de-en.de",
            r"\.de-en\.de .*\btrain",
        ),
        (
            "wmt14",
            "en-de",
            WMT14_GERMAN,
            "commoncrawl.de-en.en",
            r"commoncrawl\.de-en\.en .*\bcommoncrawl",
        ),
        (
            "wmt14",
            "fr-en",
            WMT14_FRENCH,
            "giga-fren.release2.fixed.en",
            "giga-fren.release2.fixed.fr",
        ),
        (
            "wmt16",
            "en-de",
            WMT16,
            "test/newstest2016-ende-ref.de.sgm",
            r"newstest2016-ende-src\.en .*\bnewstest2016-ende-ref\.de",
        ),
    ],
)
def test_a_folder_that_lacks_a_file_is_told_which(tmp_path, name, pair, files, absent, told):
    data = config(tmp_path, name, pair)
    write_all(tmp_path, files, data, pair)
    (tmp_path / absent).unlink()
    text = message(data)
    assert re.match(rf"config\.data\.directory={tmp_path}: .*{told}", text)
    # Nothing that is there, of the same layout; the files of another follow.
    assert ", " not in text.partition("; ")[0]


def test_an_empty_folder_lacks_the_needed_files_of_every_layout(tmp_path):
    text = message(config(tmp_path, "iwslt14"))
    assert text.startswith(f"config.data.directory={tmp_path}: ")
    names = ["train.tags.de-en", "IWSLT14.TED.dev2010.de-en", "IWSLT14.TED.tst2012.de-en"]
    names += ["train", "valid", "test"]
    sides = [f"{name}.{side}" for name in names for side in ("en", "de")]
    assert re.findall(r"[\w.-]+\.(?:en|de)\b", text.removeprefix(str(tmp_path))) == sides
    assert all(ending in text for ending in (".gz", ".sgm", ".xml"))


def test_a_directory_that_is_none_is_named(tmp_path):
    assert "/nowhere: " in message(config(tmp_path / "nowhere", "multi30k"))


@pytest.mark.parametrize("pair", ["en-de", "de-en"])
def test_what_is_wanted_has_its_published_spelling_in_either_direction(pair):
    text = wanted(config("", "wmt14", pair))
    for file in ("europarl-v7.de-en.de", "newstest2013.en", "config.data.directory=FOLDER"):
        assert file in text
    assert ("newstest2014-deen-src.en" in text) == (pair == "en-de")


def test_more_training_text_comes_behind_that_of_a_named_corpus_and_only_to_train(tmp_path):
    data = config(tmp_path, "tatoeba")
    write_all(tmp_path, {"all": ["train.LANG", "val.LANG", "test.LANG", "more.LANG"]}, data)
    data = dataclasses.replace(data, train=str(tmp_path / "more"))
    found = texts(open_corpora(data, seed=0))
    assert found["train"] == [[both("train.LANG", data)], [both("more.LANG", data)]]
    assert found["validation"] == [[both("val.LANG", data)]]
    assert "train" not in open_corpora(data, seed=0, with_train=False)
