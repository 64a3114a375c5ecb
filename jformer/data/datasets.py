"""Public corpora by name, read from a folder with their files as published."""

import dataclasses
import itertools
from collections.abc import Iterable
from pathlib import Path

from jformer.components import name_of
from jformer.config import DataConfig
from jformer.data.corpora import Corpus, look_for, open_files
from jformer.errors import UserError


@dataclasses.dataclass(frozen=True)
class Layout:
    """File name prefixes of a corpus, whose files are in its folder or in a direct subfolder.

    {pair} is "en-de" or "de-en" and {joined} is "ende" or "deen", whichever exists; {direction} is
    "ende" only for English to German; {side} is "src" for the source and "ref" for the target.
    """

    train: tuple[str, ...]  # parts, concatenated in this order
    validation: str
    tests: dict[str, str]  # by split; the first is required, the others are optional
    french: tuple[str, ...] = ()  # more training parts if French is one of the languages

    def splits(self, data: DataConfig, with_train: bool) -> dict[str, tuple[str, ...]]:
        """Return the prefixes of each split."""
        french = self.french if "fr" in (data.source_language, data.target_language) else ()
        splits = {"train": self.train + french} if with_train else {}
        splits["validation"] = (self.validation,)
        return splits | {name: (prefix,) for name, prefix in self.tests.items()}


def iwslt(number: int, years: Iterable[int]) -> list[Layout]:
    """Return the layouts of the TED talks of an IWSLT, with a test set for each year."""
    tests = {f"tst{year}": f"IWSLT{number}.TED.tst{year}.{{pair}}" for year in years}
    validation = f"IWSLT{number}.TED.dev2010.{{pair}}"
    # fairseq's script puts words into its folder tmp, and sub-words into the folder above.
    prepared = Layout(("train",), "valid", {"test": "test"})
    return [Layout(("train.tags.{pair}",), validation, tests), prepared]


EUROPARL_CRAWL = ("europarl-v7.{pair}", "commoncrawl.{pair}")
MULTI30K_TESTS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")

# The first layout of a corpus with all required files in the folder is used.
LAYOUTS = {
    "multi30k": [Layout(("train",), "val", {name: name for name in MULTI30K_TESTS})],
    "iwslt14": iwslt(14, (2012, 2011, 2010)),
    "iwslt17": iwslt(17, range(2015, 2009, -1)),
    "wmt14": [
        Layout(
            (*EUROPARL_CRAWL, "news-commentary-v9.{pair}"),
            "newstest2013",
            {"newstest2014": "newstest2014-{joined}-{side}"},
            french=("undoc.2000.{pair}", "giga-{joined}.release2.fixed"),
        ),
        Layout(("train",), "newstest2013", {"newstest2014": "newstest2014"}),  # Stanford's
    ],
    "wmt16": [
        Layout(
            (*EUROPARL_CRAWL, "news-commentary-v11.{pair}"),
            "newstest2015-{direction}-{side}",
            {"newstest2016": "newstest2016-{direction}-{side}"},
        ),
        # Google's wmt16_en_de, tokenized.
        Layout(("train.tok.clean",), "newstest2015.tok", {"newstest2016": "newstest2016.tok"}),
    ],
    "tatoeba": [Layout(("train",), "val", {"test": "test"})],
}
ENDINGS = "each also with .gz, .sgm or .xml at its end"


def open_folder(data: DataConfig, with_train: bool) -> dict[str, list[Corpus]]:
    """Return the corpora of each split, from the files in `config.data.directory`."""
    folder = Path(data.directory)
    if not folder.is_dir():
        raise UserError(f"config.data.directory={folder}: is no directory")
    folders = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    missing = []
    for layout in LAYOUTS[name_of(data.name)]:
        splits, lacking = find_splits(layout, folders, data, with_train)
        if not lacking:
            return splits
        missing.append(lacking)
    raise UserError(
        f"config.data.directory={folder}: lacks the pairs {listed(missing, data)}; {ENDINGS}"
    )


def find_splits(
    layout: Layout, folders: list[Path], data: DataConfig, with_train: bool
) -> tuple[dict[str, list[Corpus]], list[str]]:
    """Return the corpora of each split that is there, and the required prefixes that are not."""
    splits, lacking = {}, []
    for split, prefixes in layout.splits(data, with_train).items():
        found = {p: pair for p in prefixes if (pair := find_pair(p, folders, data))}
        if len(found) == len(prefixes):
            splits[split] = [*found.values()]
        elif split not in [*layout.tests][1:]:
            lacking += [prefix for prefix in prefixes if prefix not in found]
    return splits, lacking


def find_pair(prefix: str, folders: list[Path], data: DataConfig) -> Corpus | None:
    pair = [data.source_language, data.target_language]
    for ordered, folder in itertools.product((pair, pair[::-1]), folders):
        source, target = (look_for(str(folder / name)) for name in names(prefix, ordered, data))
        if source and target:
            return open_files(source, target)
    return None


def names(prefix: str, pair: list[str], data: DataConfig) -> list[str]:
    """Return the source's and the target's file name; `pair` has the prefix's language order."""
    source, target = data.source_language, data.target_language
    words = {"pair": "-".join(pair), "joined": "".join(pair), "direction": source + target}
    sides = (("src", source), ("ref", target))
    return [f"{prefix.format(side=side, **words)}.{language}" for side, language in sides]


def wanted(data: DataConfig) -> str:
    """Return the advice on which files to put into `config.data.directory`."""
    needed = [
        find_splits(layout, [], data, with_train=True)[1] for layout in LAYOUTS[name_of(data.name)]
    ]
    return (
        f"put {listed(needed, data)} into a folder, {ENDINGS}, and set config.data.directory=FOLDER"
    )


def listed(layouts: list[list[str]], data: DataConfig) -> str:
    """Return the files of each layout in words, spelled as most are published: English last."""
    pair = sorted((data.source_language, data.target_language), key="en".__eq__)
    pairs = [[" and ".join(names(prefix, pair, data)) for prefix in layout] for layout in layouts]
    return "; or ".join(", ".join(layout) for layout in pairs)
