"""Public corpora by name, from a folder with their files as they were published."""

import dataclasses
import itertools
from pathlib import Path

from jformer.config import DataConfig
from jformer.data.corpora import Corpus, look_for, open_files
from jformer.errors import UserError


@dataclasses.dataclass(frozen=True)
class Layout:
    """Prefixes of the files of a corpus, in its folder or in one directly within it.

    {pair} is "en-de" or "de-en" and {joined} "ende" or "deen", whichever is there; {direction} is
    "ende" from English to German alone, {side} "src" for the source's file and "ref" for the other.
    """

    train: tuple[str, ...]  # parts, in this order
    validation: str
    tests: dict[str, str]  # by split; the first must be there, of the others what is there counts
    french: tuple[str, ...] = ()  # more parts, where French is one of the languages

    def splits(self, data: DataConfig, with_train: bool = True) -> dict[str, tuple[str, ...]]:
        """The prefixes of each split."""
        french = self.french if "fr" in (data.source_language, data.target_language) else ()
        splits = {"train": self.train + french} if with_train else {}
        splits["validation"] = (self.validation,)
        return splits | {name: (prefix,) for name, prefix in self.tests.items()}

    def needed(self, data: DataConfig, with_train: bool = True) -> list[str]:
        """The prefixes that cannot be done without."""
        optional = [*self.tests.values()][1:]
        prefixes = itertools.chain.from_iterable(self.splits(data, with_train).values())
        return [prefix for prefix in prefixes if prefix not in optional]


# What fairseq's script leaves: words in its folder tmp, and sub-words in the one above.
PREPARED = Layout(("train",), "valid", {"test": "test"})

# Of several layouts of a corpus the first that is in the folder counts.
LAYOUTS = {
    "multi30k": [
        Layout(
            ("train",),
            "val",
            {
                "test_2016_flickr": "test_2016_flickr",
                "test_2017_flickr": "test_2017_flickr",
                "test_2017_mscoco": "test_2017_mscoco",
                "test_2018_flickr": "test_2018_flickr",
            },
        )
    ],
    "iwslt14": [
        Layout(
            ("train.tags.{pair}",),
            "IWSLT14.TED.dev2010.{pair}",
            {f"tst{year}": f"IWSLT14.TED.tst{year}.{{pair}}" for year in (2012, 2011, 2010)},
        ),
        PREPARED,
    ],
    "iwslt17": [
        Layout(
            ("train.tags.{pair}",),
            "IWSLT17.TED.dev2010.{pair}",
            {f"tst{year}": f"IWSLT17.TED.tst{year}.{{pair}}" for year in range(2015, 2009, -1)},
        ),
        PREPARED,
    ],
    "wmt14": [
        Layout(
            ("europarl-v7.{pair}", "commoncrawl.{pair}", "news-commentary-v9.{pair}"),
            "newstest2013",
            {"newstest2014": "newstest2014-{joined}-{side}"},
            french=("undoc.2000.{pair}", "giga-{joined}.release2.fixed"),
        ),
        Layout(("train",), "newstest2013", {"newstest2014": "newstest2014"}),  # Stanford's
    ],
    "wmt16": [
        Layout(
            ("europarl-v7.{pair}", "commoncrawl.{pair}", "news-commentary-v11.{pair}"),
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
    """The corpora of each split, of the files in `config.data.directory`."""
    folder = Path(data.directory)
    if not folder.is_dir():
        raise UserError(f"config.data.directory={folder}: is no directory")
    folders = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    missing = []
    for layout in LAYOUTS[data.name]:
        splits = layout.splits(data, with_train)
        prefixes = itertools.chain.from_iterable(splits.values())
        found = {p: pair for p in prefixes if (pair := find_pair(p, folders, data))}
        missing.append([p for p in layout.needed(data, with_train) if p not in found])
        if not missing[-1]:
            there = {name: ps for name, ps in splits.items() if found.keys() >= {*ps}}
            return {name: [found[prefix] for prefix in ps] for name, ps in there.items()}
    raise UserError(
        f"config.data.directory={folder}: lacks the pairs {listed(missing, data)}; {ENDINGS}"
    )


def find_pair(prefix: str, folders: list[Path], data: DataConfig) -> Corpus | None:
    pair = [data.source_language, data.target_language]
    for ordered, folder in itertools.product((pair, pair[::-1]), folders):
        source, target = (look_for(str(folder / name)) for name in names(prefix, ordered, data))
        if source and target:
            return open_files(source, target)
    return None


def names(prefix: str, pair: list[str], data: DataConfig) -> list[str]:
    """Of the source's file and the target's; `pair` is their languages as the prefix has them."""
    source, target = data.source_language, data.target_language
    words = {"pair": "-".join(pair), "joined": "".join(pair), "direction": source + target}
    sides = (("src", source), ("ref", target))
    return [f"{prefix.format(side=side, **words)}.{language}" for side, language in sides]


def wanted(data: DataConfig) -> str:
    """Which files to put into `config.data.directory`."""
    layouts = [layout.needed(data) for layout in LAYOUTS[data.name]]
    return (
        f"put {listed(layouts, data)} into a folder, {ENDINGS}, "
        f"and set --config.data.directory=FOLDER"
    )


def listed(layouts: list[list[str]], data: DataConfig) -> str:
    """The files of each layout, in the spelling that is published for most: with English last."""
    pair = sorted((data.source_language, data.target_language), key="en".__eq__)
    pairs = [[" and ".join(names(prefix, pair, data)) for prefix in layout] for layout in layouts]
    return "; or ".join(", ".join(layout) for layout in pairs)
