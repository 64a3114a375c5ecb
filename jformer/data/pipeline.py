"""The data of a config: the corpora that it names, and its training batches."""

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jformer import components
from jformer.components import find, name_of
from jformer.config import Config, DataConfig
from jformer.data import phrases
from jformer.data.batches import Augment, Batches
from jformer.data.corpora import Corpus, Report, Split, in_memory, open_corpus, read
from jformer.data.datasets import open_folder
from jformer.data.hub import open_hub
from jformer.data.layout import Buckets, Packing
from jformer.data.tokens import TokenPairs
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError

log = logging.getLogger(__name__)

SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character of UTF-16


def open_corpora(config: Config, with_train: bool = True) -> dict[str, list[Corpus]]:
    """Return the corpora of `train`, `validation` and, by name, the splits scored at the end.

    Files are located here and read later. A data set is extended by the corpora of `data.train`.
    """
    data, key = config.data, "config.data.name"
    dataset = find(key, "dataset", data.name)
    own = components.parse(data.name).file
    found = dataset(config, with_train)
    try:
        splits = {
            name: as_corpora(name, pairs, own)
            for name, pairs in checked_splits(found)
            if with_train or name != "train"
        }
    except (TypeError, UserError) as error:
        raise data.wrong("name", str(error)) from error
    scorer = find("config.data.scorer", "scorer", data.scorer)
    named = filter(None, data.train.split(",")) if with_train else ()
    added = [scorer.open_pairs(name, config) for name in named]
    training = splits.pop("train", []) + added
    if with_train and not training:
        raise data.wrong("name", "has no pairs to train on; set config.data.train=PATH")
    return {"train": training, **splits} if with_train else splits


def open_given(config: Config, with_train: bool) -> dict[str, list[Corpus]]:
    raise UserError(
        "config.data.name=given: its pairs are those given to jformer.train(pairs=..., "
        "validation=...); to score others, name them by --data=PAIRS"
    )


def open_phrases(config: Config, with_train: bool, *, pairs: int = 40_000) -> dict[str, list]:
    """Return the built-in corpus of `pairs` phrases, see phrases.py."""
    if pairs < 1000:
        raise config.data.wrong("name", "pairs must be >= 1000")
    languages = config.data.source_language, config.data.target_language
    made = phrases.make_splits(*languages, pairs, config.seed)
    maker = phrases.maker(*languages)
    return {name: [in_memory(name + maker, Split(*texts))] for name, texts in made.items()}


def open_split_files(config: Config, with_train: bool) -> dict[str, list[Corpus]]:
    """Return the files of `data.validation` and `data.test`; those of `data.train` are added."""
    data = config.data
    languages = data.source_language, data.target_language
    files = {"validation": data.validation, "test": data.test}
    return {name: [open_corpus(file, *languages)] for name, file in files.items() if file}


def open_named(
    config: Config, with_train: bool, *, repository: str = ""
) -> dict[str, list[Corpus]]:
    """Return a named data set, from a folder or from a repository of the Hugging Face hub."""
    data = config.data
    folder = Path(data.directory)
    if data.directory and name_of(data.name) != "hub" and not [*folder.rglob("*.parquet")]:
        return open_folder(data, with_train)
    return open_hub(data, with_train, repository)


def checked_splits(found: Any) -> Iterable[tuple[str, Any]]:
    """Return the splits of a data set by name; `TypeError` if it is not a dict of them."""
    if not isinstance(found, Mapping) or not {"validation"} <= found.keys():
        reason = "must return a dict of splits, with pairs for train and validation at least"
        raise TypeError(f"{reason}; it returned {found!r:.100}")
    return found.items()


def as_corpora(name: str, pairs: Any, file: str) -> list[Corpus]:
    """Return a split as a list of corpora, which built-in data sets return, from pairs of text."""
    if isinstance(pairs, list) and pairs and all(isinstance(each, Corpus) for each in pairs):
        return pairs
    with components.naming_failures_in(file):
        split = [*pairs]  # may be a generator of the user's
    return [in_memory(name, checked_pairs(name, split))]


def read_split(corpora: list[Corpus], data: DataConfig) -> Split:
    """Return all pairs of a split to be scored: bad bytes can be replaced, but no pair skipped."""
    report = Report()
    pairs = [
        (f"{corpus.places[0]}:{number}", source, target)
        for corpus in corpora
        for number, source, target in read(corpus, data.bad_lines, report, whole=True)
    ]
    if not pairs:
        raise UserError(f"{' and '.join(corpora[0].places)}: are empty; sentences are needed there")
    if report.decisions:
        log.info("%s", "; ".join(report.lines()))
    places, sources, targets = map(list, zip(*pairs, strict=True))
    gold = [each for corpus in corpora if corpus.gold for each in corpus.gold()]
    return Split(sources, targets, places, gold)


def open_data(config: Config) -> tuple[list[Corpus], dict[str, Split]]:
    """Return the training corpora, to be read later, and the text of the other splits."""
    corpora = open_corpora(config)
    training = corpora.pop("train")
    config.data.corpus_weights(len(training))  # raises before any work if their number is wrong
    return training, {name: read_split(split, config.data) for name, split in corpora.items()}


def given_data(
    pairs: Iterable[tuple[str, str]], validation: Iterable[tuple[str, str]]
) -> tuple[list[Corpus], dict[str, Split]]:
    """Return what `open_data` does, of pairs of source and target in memory."""
    corpora = [in_memory("pairs", checked_pairs("pairs", pairs))]
    return corpora, {"validation": checked_pairs("validation", validation)}


def checked_pairs(name: str, pairs: Iterable[tuple[str, str]]) -> Split:
    """Return pairs that are the user's own, after a check of each."""
    split = [*pairs]
    for number, pair in enumerate(split):
        if not (isinstance(pair, tuple | list) and [*map(type, pair)] == [str, str]):
            raise TypeError(f"{name}[{number}] must be (source, target), not {pair!r:.100}")
        if any(not text.isascii() and SURROGATE.search(text) for text in pair):
            raise UserError(f"{name}[{number}]: holds half a character, which is no Unicode")
    if not split:
        raise UserError(f"{name}: is empty; pairs of source and target are needed there")
    return Split(*map(list, zip(*split, strict=True)))


def make_batches(
    config: Config, pairs: TokenPairs, rows: np.ndarray, vocabularies: Vocabularies
) -> Batches:
    """Return the batches of the training pairs `rows`, laid out as the config says."""
    data, tokens = config.data, config.train.batch_tokens
    augment = make_augment(data, vocabularies)
    S, T = pairs.lengths(rows)
    if augment:
        # The layout fits one random version of each pair, as a sample of all epochs.
        drawn = augment(pairs, np.random.default_rng(config.seed)).lengths(rows)
        S, T = (
            np.maximum(a, b.clip(max=data.max_length)) for a, b in zip((S, T), drawn, strict=True)
        )
    layout: Buckets | Packing
    if data.batching == "packed":
        layout = Packing(S, T, tokens, data.max_length, data.length_multiple)
    else:
        layout = Buckets(S, T, tokens, data.num_buckets, data.length_multiple)
    return Batches(pairs, rows, layout, config.seed, augment)


def make_augment(data: DataConfig, vocabularies: Vocabularies) -> Augment | None:
    """Return a function that applies all of `data.augment` in turn, or None if it is empty."""
    steps = [
        find("config.data.augment", "augmentation", text)(vocabularies)
        for text in components.split_list(data.augment)
    ]

    def augment(pairs: TokenPairs, rng: np.random.Generator) -> TokenPairs:
        for step in steps:
            pairs = step(pairs, rng)
        return pairs

    return augment if steps else None
