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
from jformer.data.tokens import Ragged, TokenPairs, tokenize
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


def redrawn(merges, probability, texts, starts, seed=0):
    return BpeDropout(merges, probability)(texts, starts, np.random.default_rng(seed))


def drawn_by(vocabulary, probability, texts, seed=0):
    starts = word_starts(texts, vocabulary)
    return redrawn(vocabulary.merges, probability, texts, starts, seed)


def assert_same(one, other):
    assert one.flat.tolist() == other.flat.tolist()
    assert one.offsets.tolist() == other.offsets.tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(SMALL, min_size=1, max_size=5), st.lists(SMALL, max_size=5), st.integers(0, 40))
def test_the_text_of_each_sentence_stays_whatever_the_probability(learned, others, num_merges):
    vocabulary = Vocabulary.train(learned, 259 + num_merges)
    texts = learned + others
    encoded = tokenized(texts, vocabulary)
    for probability in (0, 0.1, 0.6, 1):
        drawn = drawn_by(vocabulary, probability, encoded)
        assert [vocabulary.decode(row) for row in drawn.rows()] == texts
        if probability == 0:
            assert_same(drawn, encoded)
        if probability == 1:  # bytes and EOS
            assert len(drawn.flat) == sum(len(text.encode()) + 1 for text in texts)
            assert not {*drawn.flat.tolist()} & {*vocabulary.merges[:, 2].tolist()}


def test_a_seed_gives_the_same_ids_again_and_another_gives_others():
    encoded = tokenized(TEXTS, trained())
    drawn = (drawn_by(trained(), 0.1, encoded, seed).flat.tolist() for seed in (5, 5, 6))
    first, again, other = drawn
    assert first == again != other


def test_the_slices_in_which_texts_are_drawn_keep_the_texts(monkeypatch):
    monkeypatch.setattr(module, "SLICE", 7)  # less than most sentences, and empty ones between
    texts = ["", "", *TEXTS, "", ""]
    encoded = tokenized(texts, trained())
    drawn = drawn_by(trained(), 0.4, encoded)
    assert [trained().decode(row) for row in drawn.rows()] == texts


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
    assert_same(drawn_by(trained(300), 0, cut), cut)
    assert not starts[end + 1 :].all()


def test_a_cut_of_the_pre_tokenizer_stays_even_if_merges_would_join_the_words():
    vocabulary = Vocabulary.train(["sun it's", "sun he's", "sun"] * 9, 300)
    encoded = tokenized(["'sun"], vocabulary)

    def pieces(texts):
        return tuple(vocabulary.decode([token]) for token in texts.flat[:-1])

    assert pieces(encoded) == ("'s", "u", "n")  # BPE alone would make it ' and sun
    drawn = {pieces(drawn_by(vocabulary, 0.5, encoded, seed)) for seed in range(50)}
    assert drawn == {("'s", "u", "n"), ("'", "s", "u", "n")}


def test_both_sides_are_drawn_and_after_another_change_of_the_ids_as_well():
    both = Vocabularies(trained(), trained(400))
    pairs = tokenize(Split(TEXTS, TEXTS), both, DataConfig())
    augment = bpe_dropout(both, p=0.5)
    drawn = augment(pairs, np.random.default_rng(0))
    changed = TokenPairs(*(side.take(np.arange(len(TEXTS))[::-1]) for side in pairs))
    again = augment(changed, np.random.default_rng(0))
    for vocabulary, plain, first, second in zip(both, pairs, drawn, again, strict=True):
        assert len(first.flat) > len(plain.flat)
        assert [vocabulary.decode(row) for row in first.rows()] == TEXTS
        assert [vocabulary.decode(row) for row in second.rows()] == TEXTS[::-1]


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


def draw(words, p, draws=20_000):
    """How often each segmentation came of a text of these words."""
    ids = [plain(word) for word in words]
    flat = np.array([*itertools.chain(*ids)] * draws)
    starts = np.array([i == 0 for word in ids for i in range(len(word))] * draws)
    texts = Ragged.from_lengths(flat, np.full(draws, len(flat) // draws))
    rows = redrawn(np.array(MERGES, np.int32), p, texts, starts).rows()
    return collections.Counter(map(tuple, rows))


def assert_drawn_from(counts, probabilities):
    assert set(counts) <= {end for end, probability in probabilities.items() if probability}
    assert sum(probabilities.values()) == pytest.approx(1)
    total = counts.total()
    for end, probability in probabilities.items():
        # 4 sigma: the seed is fixed, so what passes once passes always; 2 for the rarest.
        tolerance = 4 * (total * probability * (1 - probability)) ** 0.5 + 2
        assert abs(counts[end] - total * probability) < tolerance, end


@pytest.mark.parametrize("p", [0.1, 0.9])
@pytest.mark.parametrize(
    "word",
    [
        (A, B, C, D),  # each merge excludes another
        (A, B, A, B, A, B),  # a pair more than once, for leftmost or all
        (A, A, A, A, A),  # pairs that overlap
        (B, C, A, B, C, D, A, B),  # no entry has c or d before a: three parts that no merge joins
    ],
)
def test_segmentations_come_as_often_as_algorithm_1_has_them(word, p):
    assert len(exact(word, p)) > 3
    assert_drawn_from(draw([word], p), exact(word, p))


@pytest.mark.parametrize("p", [0.1, 0.6])
def test_words_do_not_influence_each_other_whether_or_not_merges_could_join_them(p):
    # Of c and a none could; of b and a, as in abab, one could.
    words = [(B, C), (A, B), (A, B, A, B)]
    ends = itertools.product(*(exact(word, p).items() for word in words))
    joint = {(*a, *b, *c): q * r * s for (a, q), (b, r), (c, s) in ends}
    assert_drawn_from(draw(words, p), joint)


@pytest.mark.parametrize("kinds", [("byte_bpe", "words"), ("unigram", "byte_bpe")])
def test_a_vocabulary_without_merges_is_refused(kinds):
    vocabularies = Vocabularies(*(Vocabulary.train(["a text"], 300, kind) for kind in kinds))
    with pytest.raises(UserError, match=r"config\.data\.augment=bpe_dropout\(p=0\.1\): .*BPE"):
        bpe_dropout(vocabularies, p=0.1)


@pytest.mark.parametrize("p", [-0.1, 1, 1.5])
def test_a_probability_outside_0_to_1_is_refused(p):
    with pytest.raises(UserError, match=rf"config\.data\.augment=bpe_dropout\(p={p}\): "):
        bpe_dropout(Vocabularies(trained(), trained()), p=p)
