"""Opens the text that a config names: a named data set, files, or pairs in memory.

To add a named data set, add it to datasets.toml, and its name to `NAMED_DATASETS` in components.py.
"""

import gzip
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jformer.components import find, name_of, naming_failures_in, parse
from jformer.config import Config, DataConfig
from jformer.data.corpora import (
    Corpus,
    Split,
    in_memory,
    open_corpus,
    open_files,
    open_tables,
    read,
)
from jformer.errors import UserError

Corpora = dict[str, list[Corpus]]  # of each split
Pairs = list[tuple[str, str]]  # of source and target

PHRASES = Path(__file__).with_name("phrases.tsv.gz")  # its columns: split, English, German


def read_datasets() -> dict[str, dict[str, Any]]:
    """Return the named data sets by name; datasets.toml explains their fields."""
    return tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))


def open_named(config: Config, with_train: bool, *, repository: str = "") -> Corpora:
    """Open a named data set from the folder `config.data.directory`, or else from the hub.

    The folder contains the data set's files or Parquet files. `repository` is OWNER/NAME or
    OWNER/NAME@REVISION. The split `dev` is another name for `validation`.
    """
    data = config.data
    dataset = read_datasets()[name_of(data.name)]
    languages = (data.source_language, data.target_language)
    if data.directory:
        folder = Path(data.directory)
        if "files" in dataset and not any(folder.rglob("*.parquet")):
            return open_folder(folder, dataset, data, with_train)
        name = data.directory
        # A relative "json" would be read as a file format.
        tables = open_tables(name, languages, str(folder.absolute()))
    else:
        name, _, revision = (repository or dataset["repository"]).partition("@")
        if not name:
            reason = "set hub(repository='OWNER/NAME') or config.data.directory=FOLDER"
            raise data.wrong("name", reason)
        subfolder = dataset.get("subfolder", "").format(languages=data.languages) or None
        tables = open_tables(name, languages, name, data_dir=subfolder, revision=revision or None)
    splits = {"train": "train", "validation": "validation", "dev": "validation"}
    splits["test"] = dataset.get("test", "test")
    return {splits[name]: [tables[name]] for name in splits if name in tables}


def open_folder(
    folder: Path, dataset: dict[str, Any], data: DataConfig, with_train: bool
) -> Corpora:
    """Open the files of a data set; `UserError` if a required file is missing.

    The files may be in subfolders. Test sets after the first are optional.
    """
    source, target = data.source_language, data.target_language
    foreign = target if source == "en" else source
    splits = dataset.get(f"files_{foreign}", dataset["files"])
    # The last file of a name is taken, the one that is least deep.
    paths = sorted(folder.rglob("*"), key=lambda path: (len(path.parts), path), reverse=True)
    found = {re.sub(r"(\.sgm|\.xml)?(\.gz)?$", "", path.name): path for path in paths}
    archives = [f"{source}-{target}", f"{target}-{source}"]
    archive = next((each for each in archives if any(each in name for name in found)), archives[0])
    words = {"source": source, "target": target, "foreign": foreign, "archive": archive}
    corpora = {}
    for split, prefixes in splits.items():
        sources = [f"{x.format(side='src', **words)}.{source}" for x in prefixes.split()]
        targets = [f"{x.format(side='ref', **words)}.{target}" for x in prefixes.split()]
        missing = [name for name in sources + targets if name not in found]
        if not missing:
            pairs = zip(sources, targets, strict=True)
            corpora[split] = [open_files(found[one], found[other]) for one, other in pairs]
        elif split in [*splits][:3] and (with_train or split != "train"):
            reason = f"lacks {', '.join(missing)}; each may also end in .gz, .sgm or .xml"
            raise data.wrong("directory", reason)
    return corpora


def open_phrases(config: Config, with_train: bool, *, pairs: int = 40_000) -> dict[str, Pairs]:
    """Return the first `pairs` pairs of the built-in corpus, see `read_phrases`."""
    return read_phrases(config.data.source_language, config.data.target_language, pairs)


def read_phrases(source: str, target: str, number: int = 40_000) -> dict[str, Pairs]:
    """Return the first pairs of the built-in corpus by split: phrases of CLDR, see quickstart.md.

    `test` has new combinations of names seen in training. Each phrase of `test_unseen_names` has a
    name that no training phrase has. These two and `validation` have a twentieth of the pairs each.
    `tests/data/make_phrases.py` generated the file.
    """
    if {source, target} != {"en", "de"}:
        reason = f"has en and de, not {source}-{target}; set data.name=files for other text"
        raise UserError(f"config.data.name=phrases: {reason}")
    held_out = min(1000, number // 20)
    sizes = dict.fromkeys(("validation", "test", "test_unseen_names"), held_out)
    sizes["train"] = number - 3 * held_out
    splits: dict[str, Pairs] = {split: [] for split in sizes}
    with gzip.open(PHRASES, "rt", encoding="utf-8") as file:
        for line in file:
            split, english, german = line.rstrip("\n").split("\t")
            if len(splits[split]) < sizes[split]:
                pair = (english, german) if source == "en" else (german, english)
                splits[split].append(pair)
    return splits


def open_split_files(config: Config, with_train: bool) -> Corpora:
    """Open the files of `data.validation` and `data.test`; `open_corpora` adds `data.train`."""
    data = config.data
    languages = data.source_language, data.target_language
    files = {"validation": data.validation, "test": data.test}
    return {split: [open_corpus(file, *languages)] for split, file in files.items() if file}


def open_given(config: Config, with_train: bool) -> Corpora:
    raise UserError(
        "config.data.name=given: requires jformer.train(pairs=...); or set --data=PAIRS"
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
    splits = {name: as_corpora(name, pairs, data) for name, pairs in found.items()}
    training = splits.pop("train", [])
    if not with_train:
        return splits
    scorer = find("config.data.scorer", "scorer", data.scorer)
    training += [scorer.open_pairs(name, config) for name in data.train.split(",") if name]
    if not training:
        raise data.wrong("name", "has no pairs to train on; set config.data.train=PATH")
    return {"train": training, **splits}


def as_corpora(name: str, pairs: Any, data: DataConfig) -> list[Corpus]:
    """Return the corpora of a split, which has corpora or pairs of text."""
    with naming_failures_in(parse(data.name).file):
        pairs = [*pairs]  # it may be a generator
    if pairs and isinstance(pairs[0], Corpus):
        return pairs
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and [*map(type, pair)] == [str, str]):
            raise data.wrong("name", f"{name} must have (source, target) pairs, not {pair!r:.99}")
    return [in_memory(name, Split([pair[0] for pair in pairs], [pair[1] for pair in pairs]))]


def read_split(corpora: list[Corpus]) -> Split:
    """Return all pairs of a split to score; `UserError` for a bad line."""
    pairs = [row[1:] for corpus in corpora for row in read(corpus)]
    if not pairs:
        raise UserError(f"{corpora[0].names[0]}: must have at least one pair")
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
    return training, {name: read_split(split) for name, split in corpora.items()}
