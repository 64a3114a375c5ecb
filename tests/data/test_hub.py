"""Data sets by the package `datasets`: the real loader, on folders that the tests write."""

import re
import socket
import sys

import pytest

from jformer.config import DataConfig
from jformer.data.corpora import Report, read
from jformer.data.hub import HUB, choose, open_hub
from jformer.errors import UserError


@pytest.fixture(autouse=True)
def _nothing_is_sent(monkeypatch):
    asked = []

    def refuse(*address):
        asked.append(address)
        raise OSError("a test asked the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield
    assert not asked


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """The package, with a cache of this test's own."""
    package = pytest.importorskip("datasets", reason="needs the extra hub")
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return package


@pytest.fixture
def folder(tmp_path, datasets):
    path = tmp_path / "corpus"
    path.mkdir()
    return path


def config(name="hub", hub="", pair="en-de") -> DataConfig:
    source, target = pair.split("-")
    return DataConfig(name=name, hub=str(hub), source_language=source, target_language=target)


def nested(text):
    return {"translation": [{"de": f"{text} de", "en": f"{text} en"}]}


def flat(text):
    return {"en": [f"{text} en"], "de": [f"{text} de"], "number": [7]}


def sided(text):
    return {"english": [f"{text} en"], "non_english": [f"{text} de"]}


def write(path, columns):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def write_splits(folder, *splits, columns=nested):
    """SPLIT.parquet, each with its own name as text."""
    for split in splits or ("train", "validation", "test"):
        write(folder / f"{split}.parquet", columns(split))


def write_configurations(folder, pairs, splits):
    """As on the hub: README.md says which files are of which pair and split."""
    card = ["---", "configs:"]
    for pair in pairs:
        card += [f"- config_name: {pair}", "  data_files:"]
        for split in splits:
            write(folder / f"{pair}.{split}.parquet", nested(f"{pair} {split}"))
            card += [f"  - split: {split}", f"    path: {pair}.{split}.parquet"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))


def texts(data, with_train=True):
    """The one pair of each split."""
    found = {}
    for split, (corpus,) in open_hub(data, with_train).items():
        ((_, *pair),) = read(corpus, "error", Report())
        found[split] = tuple(pair)
    return found


def message(data):
    with pytest.raises(UserError) as caught:
        open_hub(data, with_train=True)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("columns", [nested, flat, sided])
@pytest.mark.parametrize("pair", ["en-de", "de-en"])
def test_a_folder_of_parquet_files_is_read_in_either_direction(folder, columns, pair):
    write_splits(folder, columns=columns)
    a, b = pair.split("-")
    assert texts(config(hub=folder, pair=pair)) == {
        split: (f"{split} {a}", f"{split} {b}") for split in ("train", "validation", "test")
    }


@pytest.mark.parametrize("file", ["{}-00000-of-00001.parquet", "{}/0000.parquet"])
def test_files_may_be_named_as_the_hub_names_them(folder, file):
    for split in ("train", "validation", "test"):
        write(folder / file.format(split), nested(split))
    assert texts(config(hub=folder))["validation"] == ("validation en", "validation de")


@pytest.mark.parametrize(
    ("name", "scored"),
    [
        ("multi30k", "test_2016_flickr"),
        ("iwslt14", "test"),
        ("iwslt17", "test"),
        ("wmt14", "newstest2014"),
        ("wmt16", "newstest2016"),
    ],
)
def test_a_folder_in_place_of_a_named_corpus_has_the_names_of_its_splits(folder, name, scored):
    write_splits(folder)
    assert texts(config(name, folder)) == {
        ours: (f"{theirs} en", f"{theirs} de")
        for ours, theirs in (("train", "train"), ("validation", "validation"), (scored, "test"))
    }


def test_dev_in_a_file_s_name_is_the_validation_split(folder):
    write_splits(folder, "train", "dev")
    assert list(texts(config("tatoeba", folder))) == ["train", "validation"]


@pytest.mark.parametrize(
    ("name", "within"), [("hub", "en-de"), ("hub", "de-en"), ("iwslt17", "iwslt2017-en-de")]
)
def test_a_folder_may_have_a_folder_for_the_pair(folder, name, within):
    for other in ("fr-en", "iwslt2017-de-en"):
        write(folder / other / "train.parquet", nested("another"))
    write_splits(folder / within)
    assert texts(config(name, folder))["train"] == ("train en", "train de")


@pytest.mark.parametrize("pair", ["en-de", "de-en"])
def test_a_folder_may_have_a_configuration_for_the_pair(folder, pair):
    write_configurations(folder, ("de-en", "fr-en"), ("train", "validation", "test"))
    a, b = pair.split("-")
    assert texts(config(hub=folder, pair=pair))["test"] == (f"de-en test {a}", f"de-en test {b}")


def test_the_validation_pairs_of_tatoeba_are_in_dev(folder):
    write_configurations(folder, ("en-de", "en-fr"), ("train", "dev"))
    assert texts(config("tatoeba", folder))["validation"] == ("en-de dev en", "en-de dev de")


def test_a_folder_with_other_pairs_alone_is_told_in_one_line(folder):
    write_configurations(folder, ("fr-en", "ro-en"), ("train", "validation", "test"))
    assert "['fr-en', 'ro-en']" in message(config(hub=folder))


def test_a_folder_with_the_name_of_a_format_is_a_folder(folder, monkeypatch):
    write_splits(folder / "json")
    monkeypatch.chdir(folder)
    assert texts(config(hub="json"))["train"] == ("train en", "train de")


def test_scoring_gives_no_training_text(folder):
    write_splits(folder)
    assert list(texts(config(hub=folder), with_train=False)) == ["validation", "test"]


def test_a_file_that_changed_is_read_anew(folder):
    write_splits(folder)
    before = open_hub(config(hub=folder), with_train=True)
    write(folder / "train.parquet", nested("other"))
    assert texts(config(hub=folder))["train"] == ("other en", "other de")
    after = open_hub(config(hub=folder), with_train=True)
    assert before["train"][0].files != after["train"][0].files


def test_a_corpus_has_the_files_that_its_text_is_in(folder):
    write_splits(folder)
    (corpus,) = open_hub(config(hub=folder), with_train=True)["test"]
    (file,) = corpus.files
    assert b"test en" in file.read_bytes()


def test_a_split_that_is_not_there_is_told_with_those_that_are(folder):
    write_splits(folder, "train", "validation")
    names = r"\['train', 'validation'\].*\btest\b"
    assert re.match(rf"{folder}: .*{names}", message(config(hub=folder)))


@pytest.mark.parametrize(
    ("columns", "has"),
    [
        (nested, "['translation.de', 'translation.en']"),
        (flat, "['en', 'de', 'number']"),
        (sided, "['english', 'non_english']"),
    ],
)
def test_a_language_that_is_not_there_is_told_with_the_columns(folder, columns, has):
    write_splits(folder, columns=columns)
    text = message(config(hub=folder, pair="de-fr"))
    assert re.match(rf"{folder}/train: .*{re.escape(has)}.*\bde\b.*\bfr\b", text)


@pytest.mark.parametrize(
    ("content", "reason"),
    [({}, "doesn't contain any data files"), ({"train.parquet": b"x"}, "Parquet file size is 1")],
    ids=["empty", "damaged"],
)
def test_a_folder_that_cannot_be_loaded_is_told_with_the_reason(folder, content, reason):
    for name, octets in content.items():
        (folder / name).write_bytes(octets)
    text = message(config(hub=folder))
    assert text.startswith(f"config.data.hub={folder}: ")
    assert reason in text
    files = r"train\.parquet.*validation\.parquet.*test\.parquet"
    assert re.search(rf"{files}.*\ben\b.*\bde\b.*config\.data\.hub=FOLDER$", text)


@pytest.mark.parametrize("hub", ["/nowhere/at/all", "./nowhere"])
def test_a_folder_that_is_none_is_named(datasets, hub):
    assert message(config(hub=hub)).startswith(f"config.data.hub={hub}: ")


def test_without_a_network_one_line_names_repository_reason_and_files(datasets, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    text = message(config("multi30k"))
    assert re.match(r"bentrevett/multi30k\b.*OfflineModeIsEnabled.*config\.data\.directory=", text)
    stems = ("train", "val", "test_2016_flickr")
    names = [f"{stem}.{side}" for stem in stems for side in ("en", "de")]
    assert all(name in text for name in (*names, ".gz", ".sgm", ".xml"))


def test_without_a_network_a_repository_of_ones_own_is_named(datasets, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    text = message(config(hub="somebody/something@v2"))
    assert "config.data.hub=somebody/something@v2: " in text
    assert "config.data.hub=FOLDER" in text


def test_without_the_package_one_line_names_it_and_the_files(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    text = message(config("tatoeba"))
    assert re.match(r"config\.data\.name=tatoeba: .*\bsentence-transformers/", text)
    assert re.search(r"pip install datasets\b.*train\.en\b.*train\.de\b.*val\.en\b", text)


def test_without_the_package_there_is_no_other_way_to_a_repository(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    text = message(config(hub="somebody/something"))
    assert re.match(r"config\.data\.name=hub: .*somebody/something\b.*pip install datasets$", text)


@pytest.mark.parametrize(
    ("name", "pair", "configuration", "folder"),
    [
        ("multi30k", "de-en", "", ""),
        ("iwslt14", "en-de", "", "de-en"),
        ("iwslt14", "de-en", "", "de-en"),
        ("iwslt17", "en-de", "", "iwslt2017-en-de"),
        ("iwslt17", "fr-en", "", "iwslt2017-fr-en"),
        ("wmt14", "en-fr", "fr-en", ""),
        ("wmt14", "de-en", "de-en", ""),
        ("wmt16", "en-ro", "ro-en", ""),
        ("tatoeba", "de-en", "en-de", ""),
    ],
)
def test_each_named_corpus_has_its_own_name_for_a_pair(name, pair, configuration, folder):
    hub = choose(config(name, pair=pair))
    assert (hub.configurations, hub.folder) == ((configuration,), folder)
    assert (hub.repository, hub.revision) == (HUB[name].repository, HUB[name].revision)


@pytest.mark.parametrize(
    ("hub", "revision"),
    [
        ("a/mirror", ""),
        ("a/mirror@v2", "v2"),
        ("a/mirror@refs/convert/parquet", "refs/convert/parquet"),
    ],
)
def test_another_repository_has_a_revision_of_its_own(hub, revision):
    chosen = choose(config("wmt14", hub))
    assert (chosen.repository, chosen.revision) == ("a/mirror", revision)
    assert chosen.configurations == ("de-en",)


def test_the_loader_is_asked_for_the_pinned_revision_of_the_pair(datasets, monkeypatch):
    asked = []

    def load_dataset(*arguments, **options):
        asked.append((*arguments, options))
        raise ConnectionError("enough")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in ("wmt14", "iwslt17", "multi30k"):
        message(config(name))
    revisions = [HUB[name].revision for name in ("wmt14", "iwslt17", "multi30k")]
    assert asked == [
        ("wmt/wmt14", {"name": "de-en", "data_dir": None, "revision": revisions[0]}),
        (
            "IWSLT/iwslt2017",
            {"name": None, "data_dir": "iwslt2017-en-de", "revision": revisions[1]},
        ),
        ("bentrevett/multi30k", {"name": None, "data_dir": None, "revision": revisions[2]}),
    ]
