"""BPE dropout of whole words, from text to ids, against Algorithm 1 of its paper in plain loops."""

import collections
import dataclasses
import itertools
import json
import random

import numpy as np
import pytest
from scipy import stats

from jformer.config import Config, DataConfig
from jformer.data.batches import make_augment
from jformer.data.cache import content_hash
from jformer.data.corpora import Split
from jformer.data.datasets import open_corpora
from jformer.data.tokenize import make_vocabularies, tokenize_corpora
from jformer.data.vocabulary import CUTS
from tests.conftest import write_split

P = 0.1
DRAWS = 60  # of each of the thousand words
SYLLABLES = "hun de jac ke haus tür schlüs sel kin der gar ten stra ßen bahn zwi schen raum".split()  # noqa: SIM905
# Cut at apostrophes and hyphens, of digits, of no letters, of one letter, of four bytes a letter.
OTHERS = "it's I'll l'été 1999 ... ?!« x E-Mail-Adresse 😀😀 Ångström".split()  # noqa: SIM905


def sentences(number_of_words):
    """Compounds of two to four syllables, which as whole words the vocabulary mostly lacks."""
    rng = random.Random(0)
    words = {}
    while len(words) < number_of_words:
        words["".join(rng.choices(SYLLABLES, k=rng.randint(2, 4)))] = None
    words = [*words, *OTHERS]
    return [" ".join(words[i : i + 9]) + "." for i in range(0, len(words), 9)]


def algorithm_1(word, merges, random):
    """Of Provilkov et al. 2020. `merges` are {(left, right): rank}; of equals the leftmost wins."""
    current_split = list(word)
    while True:
        possible = [
            (merges[pair], place)
            for place, pair in enumerate(itertools.pairwise(current_split))
            if pair in merges and random() >= P
        ]
        if not possible:
            return tuple(current_split)
        _, place = min(possible)
        current_split[place : place + 2] = [current_split[place] + current_split[place + 1]]


@pytest.fixture(params=["byte_bpe", "bpe"])
def prepared(request, tmp_path):
    """Sources with a thousand different words and targets with one, as ids; how to draw others."""
    # Of syllables alone: no entry holds the seam between two of them.
    learned = [" ".join(random.Random(i).choices(SYLLABLES, k=6)) for i in range(50)]
    lines = sentences(1000)
    write_split(tmp_path / "learn", Split(learned, learned))
    write_split(tmp_path / "text", Split(lines, ["hundejacke"] * len(lines)))
    data = DataConfig(
        name="files", train=str(tmp_path / "learn"), validation=str(tmp_path / "learn"),
        tokenizer=request.param, vocabulary_size=420, cache=str(tmp_path / "cache"),
        augment=f"bpe_dropout(p={P})",
    )  # fmt: skip
    vocabularies = make_vocabularies(open_corpora(Config(data=data))["train"], "", data)
    data = dataclasses.replace(data, train=str(tmp_path / "text"))
    corpora = open_corpora(Config(data=data))["train"]
    pairs = tokenize_corpora(corpora, content_hash(corpora), vocabularies, data).pairs
    vocabularies.save(tmp_path)
    model = json.loads((tmp_path / "vocabulary.json").read_text())["model"]
    return lines, model, pairs, make_augment(data, vocabularies), CUTS[request.param]


def symbols_of(side, model):
    """The entries of each text, without its end."""
    names = {i + 3: name for name, i in model["vocab"].items()}
    rows = np.split(side.flat, side.offsets[1:-1])
    return [[names[i] for i in row[:-1].tolist()] for row in rows]


def letters(symbol):
    """An unknown character's byte stands as "<0xF0>" in a vocabulary of characters."""
    return 1 if symbol.startswith("<0x") else len(symbol)


def words_of(symbols, lengths):
    """The segmentation of each word, of so many base symbols."""
    symbols = iter(symbols)
    for length in lengths:
        word = []
        while sum(map(letters, word)) < length:
            word.append(next(symbols))
        yield tuple(word)
    assert next(symbols, None) is None


def test_a_thousand_words_are_drawn_as_often_as_algorithm_1_draws_them(prepared):
    lines, model, pairs, augment, cuts = prepared
    merges = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}

    def base(word):
        """Characters, or the bytes of one that the vocabulary lacks."""
        for character in word:
            if character in model["vocab"]:
                yield character
            else:
                yield from (f"<0x{byte:02X}>" for byte in character.encode())

    words = [[tuple(base(word)) for word, _ in cuts.pre_tokenize_str(line)] for line in lines]
    assert len({word for line in words for word in line}) > 1000
    drawn, expected = collections.Counter(), collections.Counter()
    rng, python_rng = np.random.default_rng(0), random.Random(0)
    for _ in range(DRAWS):
        sources = augment(pairs, rng).sources
        for line, symbols in zip(words, symbols_of(sources, model), strict=True):
            ends = words_of(symbols, map(len, line))
            drawn.update((word, end) for word, end in zip(line, ends, strict=True))
    for line in words:
        for word in line:
            ends = (algorithm_1(word, merges, python_rng.random) for _ in range(DRAWS))
            expected.update((word, end) for end in ends)
    statistic, degrees = chi_square(drawn, expected)
    assert degrees > 900  # else there was little to compare
    # The seeds are fixed, so what passes once passes always. Of a hundred thousand right programs
    # one would fail; the cuts at inner seams that this is about give a probability of 0.
    assert stats.chi2.sf(statistic, degrees) > 1e-5


def chi_square(drawn, expected):
    """Of two samples that are equally large for each word; rare ends of a word count together."""
    by_word = collections.defaultdict(lambda: collections.Counter())
    for word, end in drawn.keys() | expected.keys():
        a, b = drawn[word, end], expected[word, end]
        kind = end if a + b >= 20 else "rare"
        by_word[word][kind, "drawn"] += a
        by_word[word][kind, "expected"] += b
    statistic, degrees = 0.0, 0
    for counts in by_word.values():
        kinds = {kind for kind, _ in counts}
        sums = [(counts[kind, "drawn"], counts[kind, "expected"]) for kind in kinds]
        sums = [(a, b) for a, b in sums if a + b >= 10]
        statistic += sum((a - b) ** 2 / (a + b) for a, b in sums)
        degrees += len(sums) - 1
    return statistic, degrees


def test_a_compound_whose_parts_no_merge_joins_is_drawn_as_one_word(prepared):
    """A part without merges left waits for the next step of the whole, and has them once more."""
    _, model, pairs, augment, _ = prepared
    merges = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    drawn = symbols_of(augment(pairs, np.random.default_rng(0)).targets, model)
    rng = random.Random(0)
    expected = [algorithm_1("hundejacke", merges, rng.random) for _ in drawn]
    whole = ["hun", "de", "jac", "ke"]
    counts = [sum([*word] == whole for word in words) for words in (drawn, expected)]
    # 4 standard deviations of the difference of two such counts.
    assert abs(counts[0] - counts[1]) < 4 * (2 * len(drawn) * 0.25) ** 0.5
