"""Public corpora by name, read from a folder with their files as published."""

import dataclasses
import itertools
from pathlib import Path

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

    def splits(self, data: DataConfig, with_train: bool = True) -> dict[str, tuple[str, ...]]:
        """Return the prefixes of each split."""
        french = self.french if "fr" in (data.source_language, data.target_language) else ()
        splits = {"train": self.train + french} if with_train else {}
        splits["validation"] = (self.validation,)
        return splits | {name: (prefix,) for name, prefix in self.tests.items()}

    def needed(self, data: DataConfig, with_train: bool = True) -> list[str]:
        """Return the required prefixes: all but those of the optional test splits."""
        optional = [*self.tests.values()][1:]
        prefixes = itertools.chain.from_iterable(self.splits(data, with_train).values())
        return [prefix for prefix in prefixes if prefix not in optional]


# The output of fairseq's script: words in its folder tmp, and sub-words in the folder above.
PREPARED = Layout(("train",), "valid", {"test": "test"})

# The first layout of a corpus with all required files in the folder is used.
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
    """Return the corpora of each split, from the files in `config.data.directory`."""
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
    """Return the source's and the target's file name; `pair` has the prefix's language order."""
    source, target = data.source_language, data.target_language
    words = {"pair": "-".join(pair), "joined": "".join(pair), "direction": source + target}
    sides = (("src", source), ("ref", target))
    return [f"{prefix.format(side=side, **words)}.{language}" for side, language in sides]


def wanted(data: DataConfig) -> str:
    """Return the advice on which files to put into `config.data.directory`."""
    layouts = [layout.needed(data) for layout in LAYOUTS[data.name]]
    return (
        f"put {listed(layouts, data)} into a folder, {ENDINGS}, "
        f"and set --config.data.directory=FOLDER"
    )


def listed(layouts: list[list[str]], data: DataConfig) -> str:
    """Return the files of each layout in words, spelled as most are published: English last."""
    pair = sorted((data.source_language, data.target_language), key="en".__eq__)
    pairs = [[" and ".join(names(prefix, pair, data)) for prefix in layout] for layout in layouts]
    return "; or ".join(", ".join(layout) for layout in pairs)
