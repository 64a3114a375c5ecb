"""Opens the text that a config names: a named data set, files, or pairs in memory.

To add a data set, add an entry to `DATASETS` here, and its name to `NAMED_DATASETS` in
components.py.
"""

import dataclasses
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jformer.components import find, name_of, naming_failures_in, parse
from jformer.config import Config, DataConfig
from jformer.data.corpora import (
    Corpus,
    Report,
    Split,
    in_memory,
    load_tables,
    open_corpus,
    open_files,
    open_table,
    read,
)
from jformer.data.phrases import read_phrases
from jformer.errors import UserError

log = logging.getLogger(__name__)
Corpora = dict[str, list[Corpus]]  # of each split


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A named data set, as files in a folder and as a repository of the Hugging Face hub.

    `files` has the prefixes of the files of each split, separated by spaces. The files are in the
    folder or in its direct subfolders. Test sets after the first are optional.

    In prefixes and subfolders, {source} and {target} are the languages, and {other} is the other
    language than English. {side} is "src" for the source and "ref" for the target, and {archive} is
    the pair of languages in either order.
    """

    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    french: str = ""  # more training files if French is one of the languages
    repository: str = ""  # OWNER/NAME@COMMIT, so that the content cannot change
    subfolder: str = ""  # of the repository, with the files of a language pair
    test: str = "test"  # our name for the repository's split `test`


EUROPARL_CRAWL = "europarl-v7.{other}-en commoncrawl.{other}-en"


def iwslt(number: int, years: Iterable[int]) -> dict[str, str]:
    """Return the files of an IWSLT's TED talks, which have one archive per direction."""
    talks = f"IWSLT{number}.TED.{{}}.{{archive}}"
    tests = {f"tst{year}": talks.replace("{}", f"tst{year}") for year in years}
    return {"train": "train.tags.{archive}", "validation": talks.replace("{}", "dev2010"), **tests}


DATASETS = {
    "multi30k": Dataset(
        files={
            "train": "train",
            "validation": "val",
            "test_2016_flickr": "test_2016_flickr",
            "test_2017_flickr": "test_2017_flickr",
            "test_2017_mscoco": "test_2017_mscoco",
            "test_2018_flickr": "test_2018_flickr",
        },
        repository="bentrevett/multi30k@37e118600232bb5298ca011a8a7e7a44e863c36a",
        test="test_2016_flickr",
    ),
    "iwslt14": Dataset(
        files=iwslt(14, (2012, 2011, 2010)),
        repository="bbaaaa/iwslt14-de-en@5d811de19f17af7e20474f9017d946d34c8d9112",
        subfolder="{other}-en",
    ),
    "iwslt17": Dataset(
        files=iwslt(17, range(2015, 2009, -1)),
        repository="IWSLT/iwslt2017@ada3f7e1378fe8ea9b0f4d70c5f8b973fd79ccf7",
        subfolder="iwslt2017-{source}-{target}",
    ),
    "wmt14": Dataset(
        files={
            "train": f"{EUROPARL_CRAWL} news-commentary-v9.{{other}}-en",
            "validation": "newstest2013",
            "newstest2014": "newstest2014-{other}en-{side}",
        },
        french="undoc.2000.fr-en giga-fren.release2.fixed",
        repository="wmt/wmt14@b199e406369ec1b7634206d3ded5ba45de2fe696",
        test="newstest2014",
    ),
    "wmt16": Dataset(
        files={
            "train": f"{EUROPARL_CRAWL} news-commentary-v11.{{other}}-en",
            "validation": "newstest2015-{source}{target}-{side}",
            "newstest2016": "newstest2016-{source}{target}-{side}",
        },
        repository="wmt/wmt16@41d8a4013aa1489f28fea60ec0932af246086482",
        test="newstest2016",
    ),
    "tatoeba": Dataset(
        files={"train": "train", "validation": "val", "test": "test"},
        repository="sentence-transformers/parallel-sentences-tatoeba"
        "@9a586f5cf4b772046b0e77583ee361ff68681b9b",
    ),
    "hub": Dataset(),
}


def open_named(config: Config, with_train: bool, *, repository: str = "") -> Corpora:
    """Open a named data set from the folder `config.data.directory`, or else from the hub.

    The folder contains the data set's files or Parquet files. `repository` is OWNER/NAME or
    OWNER/NAME@REVISION, and replaces the data set's own repository.
    """
    data = config.data
    dataset = DATASETS[name_of(data.name)]
    repository = repository or dataset.repository
    if data.directory:
        folder = Path(data.directory)
        if not folder.is_dir():
            raise data.wrong("directory", "must be a folder")
        if dataset.files and not any(folder.rglob("*.parquet")):
            return open_folder(folder, dataset, data, with_train)
    elif not repository:
        raise data.wrong("name", "set hub(repository='OWNER/NAME') or config.data.directory=FOLDER")
    return open_tables(dataset, repository, data, with_train)


def open_folder(folder: Path, dataset: Dataset, data: DataConfig, with_train: bool) -> Corpora:
    """Open the files of a data set; `UserError` if a required file is missing."""
    source, target = data.source_language, data.target_language
    found: dict[str, Path] = {}
    for path in [*sorted(folder.glob("*")), *sorted(folder.glob("*/*"))]:
        found.setdefault(re.sub(r"(\.sgm|\.xml)?(\.gz)?$", "", path.name), path)
    archives = [f"{source}-{target}", f"{target}-{source}"]
    archive = next((each for each in archives if any(each in name for name in found)), archives[0])
    corpora: Corpora = {}
    missing: list[str] = []
    for split, prefixes in dataset.files.items():
        if split == "train" and not with_train:
            continue
        if split == "train" and "fr" in (source, target):
            prefixes = f"{prefixes} {dataset.french}"
        sources = [f"{fill(x, data, 'src', archive)}.{source}" for x in prefixes.split()]
        targets = [f"{fill(x, data, 'ref', archive)}.{target}" for x in prefixes.split()]
        absent = [name for name in [*sources, *targets] if name not in found]
        if not absent:
            files = zip(sources, targets, strict=True)
            corpora[split] = [open_files(found[one], found[other]) for one, other in files]
        elif split in [*dataset.files][:3]:
            missing += absent
    if missing:
        raise data.wrong(
            "directory",
            f"lacks {', '.join(missing)} (each may end in .gz, .sgm or .xml). To download the data "
            f"set, `pip install datasets` and leave config.data.directory empty. For files with "
            f"other names, set config.data.name=files",
        )
    return corpora


def fill(pattern: str, data: DataConfig, side: str = "", archive: str = "") -> str:
    """Return a pattern of a `Dataset` with the languages of the config."""
    source, target = data.source_language, data.target_language
    other = target if source == "en" else source
    return pattern.format(source=source, target=target, other=other, side=side, archive=archive)


def open_tables(dataset: Dataset, repository: str, data: DataConfig, with_train: bool) -> Corpora:
    """Open Parquet files in `data.directory`, or else a repository of the hub.

    The split `test` is optional, and `dev` is another name for `validation`.
    """
    languages = (data.source_language, data.target_language)
    if data.directory:
        name = data.directory
        folder = str(Path(name).absolute())  # a relative "json" would be read as a file format
        tables = load_tables(f"config.data.directory={name}", languages, folder)
    else:
        name, _, revision = repository.partition("@")
        tables = load_tables(
            name,
            languages,
            name,
            "; or set config.data.directory=FOLDER (see docs/data.md)",
            data_dir=fill(dataset.subfolder, data) or None,
            revision=revision or None,
        )
    validation = "dev" if "dev" in tables else "validation"
    splits = {"train": "train", "validation": validation, dataset.test: "test"}
    corpora: Corpora = {}
    for split, published in splits.items():
        if (split == "train" and not with_train) or (published == "test" and "test" not in tables):
            continue
        if published not in tables:
            raise UserError(f"{name}: must have the split {published}; it has {', '.join(tables)}")
        files = tuple(Path(file["filename"]) for file in tables[published].cache_files)
        corpora[split] = [open_table(tables[published], f"{name}/{published}", files, languages)]
    return corpora


def open_phrases(config: Config, with_train: bool, *, pairs: int = 40_000) -> Corpora:
    """Open the first `pairs` pairs of the built-in corpus, see phrases.py."""
    splits = read_phrases(config.data.source_language, config.data.target_language, pairs)
    return {name: [in_memory(name, Split(*texts))] for name, texts in splits.items()}


def open_split_files(config: Config, with_train: bool) -> Corpora:
    """Open the files of `data.validation` and `data.test`; `open_corpora` adds `data.train`."""
    data = config.data
    languages = data.source_language, data.target_language
    files = {"validation": data.validation, "test": data.test}
    return {split: [open_corpus(file, *languages)] for split, file in files.items() if file}


def open_given(config: Config, with_train: bool) -> Corpora:
    raise UserError(
        "config.data.name=given: requires the pairs of jformer.train(pairs=..., "
        "validation=...); to score other pairs, set --data=PAIRS"
    )


def open_corpora(
    config: Config, with_train: bool = True, given: Mapping[str, Any] | None = None
) -> Corpora:
    """Return the corpora of `train`, `validation` and, by name, the splits scored at the end.

    Files are located here and read later. The corpora of `data.train` extend the data set, which is
    `given` or named by `data.name`.
    """
    data = config.data
    dataset = find("config.data.name", "dataset", data.name)
    found = given or dataset(config, with_train)
    if not isinstance(found, Mapping) or "validation" not in found:
        reason = "must return a dict of splits, with pairs for at least train and validation"
        raise data.wrong("name", f"{reason}; it returned {found!r:.100}")
    splits = {
        name: as_corpora(name, pairs, data)
        for name, pairs in found.items()
        if with_train or name != "train"
    }
    if not with_train:
        return splits
    scorer = find("config.data.scorer", "scorer", data.scorer)
    more = [scorer.open_pairs(name, config) for name in data.train.split(",") if name]
    training = splits.pop("train", []) + more
    if not training:
        raise data.wrong("name", "has no pairs to train on; set config.data.train=PATH")
    return {"train": training, **splits}


def as_corpora(name: str, pairs: Any, data: DataConfig) -> list[Corpus]:
    """Return the corpora of a split, which has corpora or pairs of text."""
    with naming_failures_in(parse(data.name).file):
        pairs = [*pairs]  # it may be a generator
    if pairs and isinstance(pairs[0], Corpus):
        return pairs
    for number, pair in enumerate(pairs):
        if not (isinstance(pair, tuple | list) and [*map(type, pair)] == [str, str]):
            raise data.wrong("name", f"{name}[{number}] must be (source, target), not {pair!r:.99}")
    return [in_memory(name, Split([pair[0] for pair in pairs], [pair[1] for pair in pairs]))]


def read_split(corpora: list[Corpus], data: DataConfig) -> Split:
    """Return all pairs of a split to score: bad bytes may be replaced, but no pair is skipped."""
    report = Report()
    pairs = [
        (source, target)
        for corpus in corpora
        for _, source, target in read(corpus, data.bad_lines, report, strict=True)
    ]
    if not pairs:
        raise UserError(f"{corpora[0].names[0]}: must have at least one pair")
    if report.decisions:
        log.info("%s", "; ".join(report.lines()))
    sources, targets = map(list, zip(*pairs, strict=True))
    gold = [each for corpus in corpora if corpus.gold for each in corpus.gold()]
    return Split(sources, targets, gold)


def open_data(
    config: Config, given: Mapping[str, Any] | None = None
) -> tuple[list[Corpus], dict[str, Split]]:
    """Return the training corpora, to be read later, and the text of the other splits."""
    corpora = open_corpora(config, given=given)
    training = corpora.pop("train")
    config.data.corpus_weights(len(training))  # raises before any work if the number is wrong
    return training, {name: read_split(split, config.data) for name, split in corpora.items()}
