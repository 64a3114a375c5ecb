"""BPE dropout draws as Algorithm 1 of its paper says, and never changes a text."""

import collections
import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jformer.config import EOS, DataConfig
from jformer.data.corpora import Split
from jformer.data.tokens import Ragged, tokenize
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError
from jformer.extras import bpe_dropout as module
from jformer.extras.bpe_dropout import BpeDropout, bpe_dropout, word_starts

TEXTS = Path("README.md").read_text(encoding="utf-8").split("\n")  # with empty lines among them
SMALL = st.text("aabbc' \u00e9", max_size=30)


@functools.cache
def trained(size=700):
    return Vocabulary.train(TEXTS, size)


def tokenized(texts, vocabulary):
    vocabularies = Vocabularies(vocabulary, vocabulary)
    return tokenize(Split(texts, texts), vocabularies, DataConfig()).sources


def drawn_by(vocabulary, probability, texts, seed=0):
    drop = BpeDropout(vocabulary.merges, vocabulary.size, probability)
    return drop(texts, word_starts(texts, vocabulary), np.random.default_rng(seed))


@settings(max_examples=60, deadline=None)
@given(st.lists(SMALL, min_size=1, max_size=5), st.lists(SMALL, max_size=5), st.integers(0, 40))
def test_the_text_of_each_sentence_stays_whatever_the_probability(learned, others, num_merges):
    vocabulary = Vocabulary.train(learned, 259 + num_merges)
    texts = learned + others
    encoded = tokenized(texts, vocabulary)
    for probability in (0, 0.1, 0.6, 1):
        drawn = drawn_by(vocabulary, probability, encoded)
        assert [vocabulary.decode(row) for row in drawn.rows()] == texts
        if probability == 0:
            assert drawn.rows() == encoded.rows()
        if probability == 1:  # bytes and EOS
            assert len(drawn.flat) == sum(len(text.encode()) + 1 for text in texts)
            assert not {*drawn.flat.tolist()} & {*vocabulary.merges[:, 2].tolist()}


def test_slices_keep_the_texts_and_a_seed_draws_the_same_ids_again(monkeypatch):
    monkeypatch.setattr(module, "SLICE", 7)  # less than most sentences, and empty ones between
    texts = ["", "", *TEXTS, "", ""]
    first, again, other = (
        drawn_by(trained(), 0.4, tokenized(texts, trained()), seed).rows() for seed in (5, 5, 6)
    )
    assert [trained().decode(row) for row in first] == texts
    assert first == again != other


def test_words_begin_at_the_cuts_of_the_pre_tokenizer(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 2)
    encoded = tokenized(["der Hund's 12", "", "un!"], trained())
    pieces = [trained().decode([token]) if token != EOS else "$" for token in encoded.flat]
    starts = word_starts(encoded, trained())
    marked = zip(pieces, starts, strict=True)
    assert "".join(f"|{x}" if first else x for x, first in marked) == (
        "|der| Hund|'s| |1|2|$|$|un|!|$"
    )


def test_each_id_of_a_text_that_was_cut_within_a_word_is_a_word():
    long, short, (first_byte, *_) = tokenized(["Straße", "ein Haus", "ß"], trained(300)).rows()
    end = long.index(first_byte) + 1  # within a character
    cut = Ragged.from_rows([[*long[:end], EOS], short])
    starts = word_starts(cut, trained(300))
    assert starts[: end + 1].all()
    assert drawn_by(trained(300), 0, cut).rows() == cut.rows()
    assert not starts[end + 1 :].all()


def test_both_sides_are_drawn_also_after_another_change_of_the_ids():
    both = Vocabularies(trained(), trained(400))
    augment = bpe_dropout(both, p=0.3)
    for texts in (TEXTS, TEXTS[::-1]):
        pairs = tokenize(Split(texts, texts), both, DataConfig())
        drawn = augment(pairs, np.random.default_rng(0))
        for vocabulary, plain, side in zip(both, pairs, drawn, strict=True):
            assert len(side.flat) > len(plain.flat)
            assert [vocabulary.decode(row) for row in side.rows()] == texts


# A BPE to calculate with: a, b, c, d from 3 on, in order of rank ab, bc, aa, abab, cd, abc, aaaa.
A, B, C, D, AB, BC, AA, ABAB, CD, ABC, AAAA = range(3, 14)
MERGES = [
    (A, B, AB), (B, C, BC), (A, A, AA), (AB, AB, ABAB), (C, D, CD), (AB, C, ABC), (AA, AA, AAAA),
]  # fmt: skip
RANKS = {(left, right): rank for rank, (left, right, _) in enumerate(MERGES)}


@functools.cache
def exact(state, p):
    """Algorithm 1 as probabilities: of each segmentation that a word can end as."""
    merges = sorted(
        (RANKS[pair], i) for i, pair in enumerate(itertools.pairwise(state)) if pair in RANKS
    )
    result = collections.Counter({state: p ** len(merges)})  # all dropped: the end
    for better, (rank, i) in enumerate(merges):  # all better ones dropped, and this one kept
        after = exact((*state[:i], MERGES[rank][2], *state[i + 2 :]), p)
        for end, probability in after.items():
            result[end] += p**better * (1 - p) * probability
    return result


def plain(state):
    """The BPE of a word without dropout: the only end at probability 0."""
    (end,) = (end for end, probability in exact(state, 0).items() if probability)
    return end


@pytest.mark.parametrize("p", [0.1, 0.9])
@pytest.mark.parametrize(
    "words",
    [
        [(A, B, C, D)],  # each merge excludes another
        [(A, B, A, B, A, B)],  # a pair more than once, for leftmost or all
        [(A, A, A, A, A)],  # pairs that overlap
        [(B, C, A, B, C, D, A, B)],  # three parts that no merge joins
        # Independent words: of c and a no merge could join them; of b and a, as in abab, one could.
        [(B, C), (A, B), (A, B, A, B)],
    ],
)
def test_segmentations_come_as_often_as_algorithm_1_has_them(words, p):
    probabilities = collections.Counter()
    for ends in itertools.product(*(exact(word, p).items() for word in words)):
        parts, each = zip(*ends, strict=True)
        probabilities[tuple(itertools.chain(*parts))] += np.prod(each)
    assert sum(probabilities.values()) == pytest.approx(1)

    ids, draws = [plain(word) for word in words], 20_000
    flat = np.array([*itertools.chain(*ids)] * draws)
    starts = np.array([i == 0 for word in ids for i in range(len(word))] * draws)
    texts = Ragged(flat, np.full(draws, len(flat) // draws))
    drop = BpeDropout(np.array(MERGES, np.int32), AAAA + 1, p)
    drawn = drop(texts, starts, np.random.default_rng(0)).rows()
    counts = collections.Counter(map(tuple, drawn))
    assert set(counts) <= {end for end, probability in probabilities.items() if probability}
    for end, probability in probabilities.items():
        # 4 sigma: the seed is fixed, so what passes once passes always; 2 for the rarest.
        tolerance = 4 * (draws * probability * (1 - probability)) ** 0.5 + 2
        assert abs(counts[end] - draws * probability) < tolerance, end


def test_a_vocabulary_without_merges_is_refused():
    vocabularies = Vocabularies(
        *(Vocabulary.train(["a text"], 300, x) for x in ("unigram", "byte_bpe"))
    )
    with pytest.raises(UserError, match=r"config\.data\.augment=bpe_dropout\(p=0\.1\): .*BPE"):
        bpe_dropout(vocabularies, p=0.1)
