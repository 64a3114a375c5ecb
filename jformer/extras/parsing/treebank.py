"""The files of a treebank: one folder with all splits, or patterns for each split."""

import re
from pathlib import Path
from typing import Literal

from jformer.config import Config, DataConfig
from jformer.data.corpora import Corpus
from jformer.errors import UserError
from jformer.extras.parsing.trees import open_trees

SPLITS = {
    "train": ("train",),
    "validation": ("dev", "val", "valid", "validation"),
    "test": ("test",),
}
# The sections of the Wall Street Journal in the Penn Treebank.
SECTIONS = {f"{n:02}": "train" for n in range(2, 22)} | {"22": "validation", "23": "test"}
ENDINGS = (".mrg", ".mrg.gz")


def open_treebank(
    config: Config, with_train: bool, *, tags: Literal["XX", "keep", "number"] = "XX"
) -> dict[str, list[Corpus]]:
    """Return the corpora of train, validation and each test set, by the name of a split.

    In a folder, the name of a file or of its folder determines the split: "train", "dev" or "test"
    between dots, hyphens or underscores, or else the number of a section of the Wall Street
    Journal. The part of a file's name before the split is its corpus: "gum.train.mrg" and
    "gum.test.mrg" belong to the corpus gum, whose test set is "gum.test". `tags` selects the token
    of a word in a linearised tree: XX, its tag (keep), or its number (number).
    """
    data = config.data
    if data.is_lowercase:
        raise data.wrong("target_tokenizer", "lower case would change the labels of trees")
    files = in_folder(Path(data.directory)) if data.directory else of_patterns(data)
    splits: dict[str, list[Corpus]] = {}
    for split, of_split in files.items():
        corpora = {name: open_trees(paths, tags) for name, paths in of_split.items()}
        if split == "test":
            tests = {f"{name}.test" if name else "test": [one] for name, one in corpora.items()}
            splits |= tests
        elif with_train or split != "train":
            splits[split] = [*corpora.values()]
    return splits


def in_folder(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Return the files of each split and corpus in a folder and its subfolders."""
    if not folder.is_dir():
        raise UserError(f"config.data.directory={folder}: must be a folder")
    found: dict[str, dict[str, list[Path]]] = {split: {} for split in SPLITS}
    for path in sorted(p for p in folder.rglob("*.mrg*") if p.name.endswith(ENDINGS)):
        split, corpus = split_of(path.relative_to(folder))
        if split:
            found[split].setdefault(corpus, []).append(path)
    if lacking := [split for split in ("train", "validation") if not found[split]]:
        names = " or ".join("/".join(SPLITS[split]) for split in lacking)
        raise UserError(
            f"config.data.directory={folder}: must have a .mrg or .mrg.gz file with {names} in its "
            f"name or its folder's name, or a section of the Wall Street Journal for it"
        )
    return found


def split_of(path: Path) -> tuple[str, str]:
    """Return the split of a file, or "" without one, and the corpus that its name begins with."""
    parts = path.name, *reversed(path.parts[:-1])
    for part in parts:
        words = re.split(r"[._-]", part)
        for split, names in SPLITS.items():
            for place, word in enumerate(words):
                if word.lower() in names:
                    return split, ".".join(words[:place]) if part is path.name else ""
    sections = [SECTIONS[part] for part in parts if part in SECTIONS]
    return (sections or [""])[0], ""


def of_patterns(data: DataConfig) -> dict[str, dict[str, list[Path]]]:
    """Return the files of the patterns in data.validation and data.test."""
    if not (data.train and data.validation):
        raise UserError(
            "config.data.name=parsing: set config.data.directory=FOLDER, or config.data.train=PATH "
            "and config.data.validation=PATH"
        )
    patterns = {"validation": data.validation, "test": data.test}
    return {
        split: {"": [path for pattern in given.split(",") if pattern for path in matching(pattern)]}
        for split, given in patterns.items()
        if given
    }


def matching(pattern: str) -> list[Path]:
    """Return the files of a pattern such as wsj/0[2-9]/*.mrg, in order."""
    path = Path(pattern)
    if path.is_file():
        return [path]
    found = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    if not found:
        raise UserError(f"{pattern}: no file matches")
    return found
