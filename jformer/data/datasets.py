"""Opens the text that a config names: a named data set, files, or pairs in memory.

To add a named data set, add it to datasets.toml, and its name to `NAMED_DATASETS` in components.py.
"""

import dataclasses
import logging
import re
import tomllib
from collections.abc import Mapping
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

    datasets.toml has the data sets, and explains the fields. The files are in the folder or in its
    direct subfolders. Test sets after the first are optional.
    """

    repository: str = ""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    french: str = ""
    subfolder: str = ""
    test: str = "test"


def read_datasets() -> dict[str, Dataset]:
    with Path(__file__).with_name("datasets.toml").open("rb") as file:
        return {name: Dataset(**fields) for name, fields in tomllib.load(file).items()}


def open_named(config: Config, with_train: bool, *, repository: str = "") -> Corpora:
    """Open a named data set from the folder `config.data.directory`, or else from the hub.

    The folder contains the data set's files or Parquet files. `repository` is OWNER/NAME or
    OWNER/NAME@REVISION, and replaces the data set's own repository.
    """
    data = config.data
    dataset = read_datasets()[name_of(data.name)]
    repository = repository or dataset.repository
    if data.directory:
        folder = Path(data.directory)
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
            f"lacks {', '.join(missing)} (each may end in .gz, .sgm or .xml); to download the data "
            f"set instead, `pip install datasets` and leave config.data.directory empty",
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
        tables = load_tables(name, languages, folder)
    else:
        name, _, revision = repository.partition("@")
        subfolder = fill(dataset.subfolder, data) or None
        tables = load_tables(name, languages, name, data_dir=subfolder, revision=revision or None)
    validation = "dev" if "dev" in tables else "validation"
    splits = {"train": "train", "validation": validation, dataset.test: "test"}
    corpora: Corpora = {}
    for split, published in splits.items():
        if published in tables and (with_train or split != "train"):
            files = tuple(Path(file["filename"]) for file in tables[published].cache_files)
            table = open_table(tables[published], f"{name}/{published}", files, languages)
            corpora[split] = [table]
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
        reason = f"must be a dict of pairs for train, validation and others, not {found!r:.100}"
        raise data.wrong("name", reason)
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
