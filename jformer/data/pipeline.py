"""The data of a config: the corpora that it names, and its training batches."""

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from jformer.config import Config, DataConfig
from jformer.data import phrases
from jformer.data.batches import Batches, Redraw, redrawn
from jformer.data.corpora import Corpus, Report, Split, in_memory, open_corpus, read
from jformer.data.datasets import open_folder
from jformer.data.hub import open_hub
from jformer.data.layout import Buckets, Packing
from jformer.data.ragged import TokenPairs
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError
from jformer.extras.bpe_dropout import BpeDropout
from jformer.extras.parsing.treebank import matching, open_treebank
from jformer.extras.parsing.trees import open_trees, trees_of
from jformer.extras.word_dropout import WordDropout, unchanged
from jformer.plugins import find_parts, naming_failures_in

log = logging.getLogger(__name__)

SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character of UTF-16


def open_corpora(
    data: DataConfig, seed: int, with_train: bool = True, plugins: str = ""
) -> dict[str, list[Corpus]]:
    """Return the corpora of `train`, `validation` and, by name, the splits scored at the end.

    Files are located here and read later. A named corpus is extended by those of `data.train`.
    """
    if data.name == "given":
        raise UserError(
            "config.data.name=given: its pairs are those given to jformer.train(pairs=..., "
            "validation=...); to score others, name them by --data=PAIRS"
        )
    languages = data.source_language, data.target_language
    if data.name == "parsing":
        return open_treebank(data, with_train)
    added = [open_corpus(name, *languages) for name in filter(None, data.train.split(","))]
    if own := find_parts(data, plugins).get(data.name):
        try:
            splits = own_corpora(own, data, with_train)
        except (TypeError, UserError) as error:
            raise data.wrong("name", str(error)) from error
    elif data.name == "files":
        scored = {"validation": data.validation, "test": data.test}
        splits = {name: [open_corpus(file, *languages)] for name, file in scored.items() if file}
    elif data.name == "phrases":
        made = phrases.make_splits(*languages, data.phrases, seed)
        maker = phrases.maker(*languages)
        splits = {name: [in_memory(name + maker, Split(*texts))] for name, texts in made.items()}
    elif data.directory:
        splits = open_folder(data, with_train)
    else:
        splits = open_hub(data, with_train)
    training = splits.pop("train", []) + added
    return {"train": training, **splits} if with_train else splits


def open_pairs(name: str, data: DataConfig) -> Corpus:
    """Open pairs that a command names: files as for training, for a parser of trees."""
    if data.name == "parsing":
        return open_trees(matching(name), data.tags)
    return open_corpus(name, data.source_language, data.target_language)


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
    return Split(sources, targets, places, trees_of(corpora) if data.name == "parsing" else ())


def open_data(config: Config) -> tuple[list[Corpus], dict[str, Split]]:
    """Return the training corpora, to be read later, and the text of the other splits."""
    corpora = open_corpora(config.data, config.seed, plugins=config.plugins)
    training = corpora.pop("train")
    config.data.corpus_weights(len(training))  # raises before any work if their number is wrong
    return training, {name: read_split(split, config.data) for name, split in corpora.items()}


def given_data(
    pairs: Iterable[tuple[str, str]], validation: Iterable[tuple[str, str]]
) -> tuple[list[Corpus], dict[str, Split]]:
    """Return what `open_data` does, of pairs of source and target in memory."""
    corpora = [in_memory("pairs", checked_pairs("pairs", pairs))]
    return corpora, {"validation": checked_pairs("validation", validation)}


def own_corpora(
    make: Callable[[DataConfig], Mapping[str, Iterable[tuple[str, str]]]],
    data: DataConfig,
    with_train: bool,
) -> dict[str, list[Corpus]]:
    """Return the corpora of a plugin's data set: `make` returns the pairs of each split by name."""
    with naming_failures_in(inspect.getfile(make)):
        pairs = make(data)
    if not isinstance(pairs, Mapping) or not {"train", "validation"} <= pairs.keys():
        reason = "must return a dict of splits, with pairs for train and validation at least"
        raise TypeError(f"{reason}; it returned {pairs!r:.100}")
    corpora = {}
    for name, split in pairs.items():
        if name == "train" and not with_train:
            continue
        with naming_failures_in(inspect.getfile(make)):
            split = [*split]  # may be a generator of the user's
        corpora[name] = [in_memory(name, checked_pairs(name, split))]
    return corpora


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
    redraw: list[Redraw] | None = None
    S, T = pairs.lengths(rows)
    if data.word_dropout:
        redraw = [word_dropout(vocabularies, data), unchanged]
    if data.bpe_dropout:
        redraw = droppers(vocabularies, data)
        # The layout fits one random segmentation of each pair, as a sample of all epochs.
        drawn = redrawn(pairs, redraw, np.random.default_rng(config.seed)).lengths(rows)
        S, T = (
            np.maximum(a, b.clip(max=data.max_length)) for a, b in zip((S, T), drawn, strict=True)
        )
    layout: Buckets | Packing
    if data.batching == "packed":
        layout = Packing(S, T, tokens, data.max_length, data.length_multiple)
    else:
        layout = Buckets(S, T, tokens, data.num_buckets, data.length_multiple)
    return Batches(pairs, rows, layout, config.seed, redraw)


def word_dropout(vocabularies: Vocabularies, data: DataConfig) -> WordDropout:
    """Return word dropout for the source; raise `UserError` if its vocabulary is none of words."""
    class_ids = vocabularies.source.class_ids
    if class_ids is None:
        raise UserError(
            f"config.data.word_dropout={data.word_dropout}: the entries of the source's vocabulary "
            f"are no words; set it to 0"
        )
    return WordDropout(class_ids, data.word_dropout)


def droppers(vocabularies: Vocabularies, data: DataConfig) -> list[Redraw]:
    """Return BPE dropout for the source and the target; raise `UserError` if either is no BPE."""
    drops: list[Redraw] = []
    for vocabulary in vocabularies:
        if vocabulary.merges is None:
            raise UserError(
                f"config.data.bpe_dropout={data.bpe_dropout}: the vocabulary is no BPE; set it to 0"
            )
        drops.append(BpeDropout(vocabulary.merges, data.bpe_dropout))
    return drops
