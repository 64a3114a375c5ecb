"""Which files of a treebank are which split."""

import dataclasses
from pathlib import Path

import pytest

from jformer.config import Config, DataConfig
from jformer.data.datasets import open_corpora, read_split
from jformer.errors import UserError
from jformer.extras.parsing.treebank import split_of

PARSING = DataConfig(name="parsing", scorer="trees")


def write(folder, **trees):
    """Write files of one tree, whose word is told by the name's value."""
    for name, word in trees.items():
        path = folder / (name.replace("__", "/").replace("_", ".") + ".mrg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"(S (NN {word}))\n")


def sources(data, with_train=True):
    corpora = open_corpora(Config(data=data), with_train)
    return {
        split: [read_split([one], data).sources for one in of_split]
        for split, of_split in corpora.items()
    }


def test_splits_are_told_by_the_names_of_files_and_a_test_set_by_that_of_its_corpus(tmp_path):
    write(tmp_path, gum_train="a", gum_dev="b", gum_test="c", craft_train="d", craft_test="e")
    (tmp_path / "README.md").write_text("no tree")
    data = dataclasses.replace(PARSING, directory=str(tmp_path))
    assert sources(data) == {
        "train": [["d"], ["a"]],
        "validation": [["b"]],
        "craft.test": [["e"]],
        "gum.test": [["c"]],
    }
    assert sources(data, with_train=False).keys() == {"validation", "craft.test", "gum.test"}


def test_the_sections_of_the_wall_street_journal_are_its_usual_splits(tmp_path):
    for section in range(25):
        write(tmp_path, **{f"wsj__{section:02}__x": f"w{section}"})
    data = dataclasses.replace(PARSING, directory=str(tmp_path))
    expected = {"train": [[f"w{n}" for n in range(2, 22)]], "validation": [["w22"]]}
    assert sources(data) == {**expected, "test": [["w23"]]}


def test_splits_may_be_patterns_of_files_and_each_to_train_on_is_a_corpus(tmp_path):
    write(tmp_path, a1="a", a2="b", b="c", c="d", silver="e")
    names = {"train": f"{tmp_path}/a*.mrg,{tmp_path}/silver.mrg"}
    names |= {"validation": f"{tmp_path}/b.mrg", "test": f"{tmp_path}/c.mrg"}
    found = sources(dataclasses.replace(PARSING, **names))
    assert found == {"train": [["a", "b"], ["e"]], "validation": [["c"]], "test": [["d"]]}


def test_trees_to_train_on_are_added_to_those_of_a_folder(tmp_path):
    write(tmp_path, train="a", dev="b", silver="c")
    data = dataclasses.replace(PARSING, directory=str(tmp_path), train=f"{tmp_path}/silver.mrg")
    assert sources(data) == {"train": [["a"], ["c"]], "validation": [["b"]]}


def test_a_pattern_without_a_file_is_named(tmp_path):
    write(tmp_path, **{"dev/b": "b"})
    dev = f"{tmp_path}/dev/b.mrg"
    data = dataclasses.replace(PARSING, train=f"{tmp_path}/*.mrg", validation=dev)
    with pytest.raises(UserError, match=r"/\*\.mrg: "):
        open_corpora(Config(data=data))


def test_a_folder_that_lacks_a_split_is_told(tmp_path):
    write(tmp_path, train="a")
    data = dataclasses.replace(PARSING, directory=str(tmp_path))
    with pytest.raises(UserError, match=r"\.mrg\b.*\.mrg\.gz\b.*\bdev/val/"):
        open_corpora(Config(data=data))
    with pytest.raises(UserError, match="/nowhere: "):
        sources(dataclasses.replace(PARSING, directory=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("test/02/wsj_0242.mrg", "test"),  # as in OntoNotes, where sections are within splits
        ("dev/english/wsj/10/x.mrg", "validation"),
        ("train/1.mrg", "train"),
        ("wsj/02/x.mrg", "train"),
        ("gum.Train.mrg", "train"),
        ("other/x.mrg", ""),
    ],
)
def test_the_name_of_a_split_comes_before_the_number_of_a_section(path, split):
    assert split_of(Path(path))[0] == split
