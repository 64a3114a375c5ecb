"""Named data sets under their published names and as Parquet files, and data sets of one's own.

Every file has its own name as its text. The package `datasets` is the real one, without a network.
"""

import gzip
import re
import socket
import sys

import pytest

from jformer import components
from jformer.components import NAMED_DATASETS
from jformer.config import Config, DataConfig
from jformer.data.corpora import read
from jformer.data.datasets import PHRASES, open_corpora, open_data, read_datasets, read_phrases
from jformer.errors import UserError
from tests.data import make_phrases

# As unpacked from the archives: a folder of each kind of file. PAIR is the archive's, DIRECTION and
# SIDE are the reader's.
MULTI30K = {
    "train": ["train.LANG"],
    "validation": ["val.LANG"],
    **{
        f"test_{name}": [f"test_{name}.LANG"]
        for name in ("2016_flickr", "2017_flickr", "2017_mscoco", "2018_flickr")
    },
}
IWSLT14 = {
    "train": ["PAIR/train.tags.PAIR.LANG"],
    "validation": ["PAIR/IWSLT14.TED.dev2010.PAIR.LANG.xml"],
    **{f"tst{y}": [f"PAIR/IWSLT14.TED.tst{y}.PAIR.LANG.xml"] for y in (2012, 2011, 2010)},
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

# Data set, languages as in the archive's name, files.
PUBLISHED = [
    ("multi30k", "en-de", MULTI30K),
    ("iwslt14", "de-en", IWSLT14),
    ("wmt16", "de-en", WMT16),
]


def config(name, directory="", pair="en-de", **keys) -> Config:
    source, target = pair.split("-")
    return Config(
        data=DataConfig(
            name=name,
            directory=str(directory),
            source_language=source,
            target_language=target,
            **keys,
        )
    )


def texts(config, with_train=True):
    """The pairs of each part of each split."""
    return {
        split: [[pair[1:] for pair in read(part)] for part in parts]
        for split, parts in open_corpora(config, with_train).items()
    }


def message(config, **arguments):
    with pytest.raises(UserError) as caught:
        open_data(config, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Files in a folder


def both(file, pair, archive="de-en"):
    """The names of the source's file and the target's."""
    source, target = pair.split("-")
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


def write_all(directory, files, pair="en-de", archive="de-en", packed=False):
    for file in (file for parts in files.values() for file in parts):
        for name in both(file, pair, archive):
            write(directory, name, packed)


@pytest.mark.parametrize(("reverse", "packed"), [(False, False), (True, True)])
@pytest.mark.parametrize(("name", "archive", "files"), PUBLISHED)
def test_published_files_are_found_in_either_direction(
    tmp_path, name, archive, files, reverse, packed
):
    pair = "-".join(archive.split("-")[:: -1 if reverse else 1])
    write_all(tmp_path, files, pair, archive, packed)
    found = texts(config(name, tmp_path, pair))
    assert found == {
        split: [[both(file, pair, archive)] for file in parts] for split, parts in files.items()
    }
    assert list(texts(config(name, tmp_path, pair), with_train=False)) == [*found][1:]


def test_every_named_data_set_is_a_component_and_pinned_to_a_commit():
    datasets = read_datasets()
    assert {*datasets} == {*NAMED_DATASETS, "hub"}
    for name in NAMED_DATASETS:
        assert re.fullmatch(r"\w.+/.+@[0-9a-f]{40}", datasets[name]["repository"]), name


def test_the_config_s_direction_is_preferred_and_test_sets_beyond_the_first_are_optional(tmp_path):
    for archive in ("de-en", "en-de"):
        write_all(tmp_path, IWSLT14, archive=archive)
    (tmp_path / "de-en" / "IWSLT14.TED.tst2011.de-en.en.xml").unlink()
    found = open_corpora(config("iwslt14", tmp_path, "de-en"))
    assert [*found] == ["train", "validation", "tst2012", "tst2010"]
    assert {path.parent.name for path in found["tst2012"][0].files} == {"de-en"}


@pytest.mark.parametrize(
    ("name", "pair", "files", "absent"),
    [
        ("multi30k", "en-fr", MULTI30K, "test_2016_flickr.en"),
        ("iwslt14", "de-en", IWSLT14, "de-en/train.tags.de-en.de"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused_with_its_name(tmp_path, name, pair, files, absent):
    write_all(tmp_path, files, pair, pair)
    (tmp_path / absent).unlink()
    text = message(config(name, tmp_path, pair))
    missing = absent.rpartition("/")[2]
    assert re.match(rf"config\.data\.directory={tmp_path}: lacks {re.escape(missing)};", text)


def test_more_training_text_extends_a_named_data_set_and_only_to_train(tmp_path):
    write_all(tmp_path, {"all": ["train.LANG", "val.LANG", "test.LANG", "more.LANG"]})
    extended = config("tatoeba", tmp_path, train=str(tmp_path / "more"))
    found = texts(extended)
    assert found["train"] == [[both("train.LANG", "en-de")], [both("more.LANG", "en-de")]]
    assert found["validation"] == [[both("val.LANG", "en-de")]]
    assert "train" not in texts(extended, with_train=False)


# Parquet files and repositories


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """The package, with a cache of this test's own and without a network."""
    package = pytest.importorskip("datasets", reason="requires the extra hub")
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(package.config, "HF_HUB_OFFLINE", True)

    def refuse(*address):
        raise OSError("a test asked the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return package


@pytest.fixture
def folder(tmp_path, datasets):
    path = tmp_path / "corpus"
    path.mkdir()
    return path


def nested(text):
    return {"translation": [{"de": f"{text} de", "en": f"{text} en"}]}


def sided(text):
    return {"english": [f"{text} en"], "non_english": [f"{text} de"]}


def write_table(path, columns):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def write_splits(folder, *splits, columns=nested, file="{}.parquet"):
    """A file for each split, with the split's name as its text."""
    for split in splits or ("train", "validation", "test"):
        write_table(folder / file.format(split), columns(split))


@pytest.mark.parametrize(("columns", "pair"), [(nested, "en-de"), (sided, "de-en")])
def test_a_folder_of_parquet_files_is_read_in_either_direction(folder, columns, pair):
    write_splits(folder, columns=columns)
    a, b = pair.split("-")
    assert texts(config("hub", folder, pair)) == {
        split: [[(f"{split} {a}", f"{split} {b}")]] for split in ("train", "validation", "test")
    }


@pytest.mark.parametrize(("name", "test"), [("multi30k", "test_2016_flickr"), ("tatoeba", "test")])
def test_parquet_files_are_found_under_the_hub_s_names_for_a_named_data_set(folder, name, test):
    write_splits(folder, file="{}-00000-of-00001.parquet")
    assert texts(config(name, folder)) == {
        split: [[(f"{published} en", f"{published} de")]]
        for split, published in (("train", "train"), ("validation", "validation"), (test, "test"))
    }


def test_without_a_network_one_line_names_repository_reason_and_directory(datasets):
    text = message(config("hub(repository='somebody/something@v2')"))
    assert re.match(r"somebody/something: .*OfflineModeIsEnabled.*config\.data\.directory=", text)


def test_without_the_package_one_line_names_it_and_the_repository(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    text = message(config("tatoeba"))
    assert re.match(r"sentence-transformers/.*pip install datasets\b.*config\.data\.direct", text)


@pytest.mark.parametrize(
    ("name", "pair", "expected"),
    [
        ("iwslt14", "de-en", ("bbaaaa/iwslt14-de-en", "de-en")),
        ("wmt14", "en-fr", ("wmt/wmt14", None)),
        ("wmt14(repository='a/mirror@refs/pr/1')", "en-de", ("a/mirror", None)),
    ],
)
def test_a_repository_is_loaded_by_the_name_of_its_pair_or_by_default(
    datasets, monkeypatch, name, pair, expected
):
    asked, (path, subfolder) = [], expected
    pinned = read_datasets()[components.name_of(name)]["repository"].partition("@")[2]

    def load_dataset(path, configuration, data_dir, revision):
        asked.append((path, configuration, data_dir))
        assert revision == ("refs/pr/1" if "mirror" in name else pinned)
        raise ValueError("unknown configuration")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message(config(name, pair=pair))
    reverse = "-".join(pair.split("-")[::-1])
    assert asked == [(path, each, subfolder) for each in (pair, reverse, None)]


# Data sets of one's own

OWN = """
def load(config, with_train, *, split_seed=0):
    pairs = [(f"{split_seed} {i}", f"eins {i}") for i in range(3)]
    train = (pair for pair in pairs) if with_train else []
    return {"train": train, "validation": pairs[:1], "my_test": [list(pairs[1])]}

def broken(config, with_train):
    return {"train": (1 / 0 for _ in range(3)), "validation": [("a", "b")]}

def a_list(config, with_train):
    return [("a", "b")]

"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "my_data.py"
    path.write_text(OWN)
    components.allow(str(path))
    return path


def test_a_data_set_in_a_file_has_lists_or_generators_of_pairs(own):
    training, splits = open_data(config(f"{own}:load(split_seed=1)"))
    pairs = [pair[1:] for pair in read(training[0])]
    assert pairs == [("1 0", "eins 0"), ("1 1", "eins 1"), ("1 2", "eins 2")]
    assert {name: split.sources for name, split in splits.items()} == {
        "validation": ["1 0"],
        "my_test": ["1 1"],
    }
    assert list(open_corpora(config(f"{own}:load"), with_train=False)) == ["validation", "my_test"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("broken", ":8: ZeroDivisionError"),
        ("a_list", "dict"),
    ],
)
def test_a_mistake_in_a_data_set_of_ones_own_is_one_line(own, function, reason):
    assert re.search(rf"{own}.*{reason}", message(config(f"{own}:{function}")))


def test_pairs_of_a_call_are_the_data_set_given():
    pairs = [("a", "b"), ("c", "d")]
    training, splits = open_data(config("given"), {"train": pairs, "validation": pairs[:1]})
    assert [pair[1:] for pair in read(training[0])] == pairs
    assert splits["validation"].targets == ["b"]
    assert "jformer.train" in message(config("given"))


def test_files_are_a_data_set_and_its_test_split_is_optional(tmp_path):
    for split in ("train", "val"):
        write_all(tmp_path, {"all": [f"{split}.LANG"]})
    prefixes = {"train": str(tmp_path / "train"), "validation": str(tmp_path / "val")}
    assert texts(config("files", **prefixes)) == {
        "train": [[("train.en", "train.de")]],
        "validation": [[("val.en", "val.de")]],
    }


# The built-in corpus


def test_the_stored_file_is_that_of_its_generator():
    with gzip.open(PHRASES, "rt", encoding="utf-8") as file:
        assert list(file) == list(make_phrases.lines())


def test_no_english_phrase_is_in_two_splits():
    phrases = [pair[0] for pairs in read_phrases("en", "de").values() for pair in pairs]
    assert len(phrases) == len(set(phrases)) == 40_000


def test_each_phrase_of_test_unseen_names_has_a_name_that_no_other_split_has():
    splits = read_phrases("en", "de")
    has_unseen_name = make_phrases.any_of(make_phrases.unseen_names())
    assert all(has_unseen_name(english) for english, _ in splits.pop("test_unseen_names"))
    assert not any(has_unseen_name(english) for pairs in splits.values() for english, _ in pairs)


def test_a_part_of_the_corpus_is_its_beginning_in_either_direction():
    whole, part = read_phrases("en", "de"), read_phrases("de", "en", 1000)
    sizes = {"validation": 50, "test": 50, "test_unseen_names": 50, "train": 850}
    for name, pairs in whole.items():
        assert part[name] == [pair[::-1] for pair in pairs[: sizes[name]]]


def test_other_languages_are_refused():
    with pytest.raises(UserError, match=r"phrases.*en-xx"):
        read_phrases("en", "xx")
