"""BPE dropout draws as Algorithm 1 of its paper says, and never changes a text."""

import collections
import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from jformer.config import BOS, EOS, PAD
from jformer.data.tokens import Ragged
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError
from jformer.extras import bpe_dropout
from jformer.extras.bpe_dropout import NO_MERGE, PLACE_BITS, BpeDropout, PairTable

TEXTS = Path("README.md").read_text(encoding="utf-8").split("\n")  # with empty ones among them
SMALL = st.text("aabbc' \u00e9", max_size=30)


class Bpe:
    """A real byte-level BPE, and what a test asks of its ids."""

    def __init__(self, texts, size):
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        special = ["<pad>", "<s>", "</s>"]
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        self.tokenizer.train_from_iterator(texts, trainer)
        model = json.loads(self.tokenizer.to_str())["model"]
        ids = model["vocab"]
        rows = [(ids[left], ids[right], ids[left + right]) for left, right in model["merges"]]
        self.merges = np.array(rows, np.int32).reshape(-1, 3)

    def encode(self, texts, dtype=np.int32):
        """Ids in one array, lengths of the texts, and whether each id begins a word."""
        encodings = self.tokenizer.encode_batch(texts)
        rows = [encoding.ids for encoding in encodings]
        flat = np.fromiter(itertools.chain.from_iterable(rows), dtype)
        starts = [a != b for e in encodings for a, b in itertools.pairwise([None, *e.word_ids])]
        return flat, np.array([len(row) for row in rows], np.int32), np.array(starts, bool)

    def letters(self, flat, lengths):
        """The text of each row, byte by byte: what no segmentation may change."""
        return ["".join(map(self.tokenizer.id_to_token, row)) for row in split(flat, lengths)]


def split(flat, lengths):
    assert lengths.sum() == len(flat)
    return [row.tolist() for row in np.split(flat, np.cumsum(lengths)[:-1])]


def redrawn(merges, probability, encoded, seed=0):
    """New ids of the texts in one array, and their lengths."""
    flat, lengths, starts = encoded
    texts = Ragged(flat, np.append(0, np.cumsum(lengths)), starts)
    drawn = BpeDropout(merges, probability)(texts, np.random.default_rng(seed))
    return drawn.flat, drawn.lengths


@pytest.fixture(scope="module")
def bpe():
    return Bpe(TEXTS, 700)


def test_without_dropout_the_ids_come_back(bpe):
    flat, lengths, starts = bpe.encode(TEXTS)
    result = redrawn(bpe.merges, 0, (flat, lengths, starts))
    np.testing.assert_array_equal(result[0], flat)
    np.testing.assert_array_equal(result[1], lengths)


@settings(max_examples=100, deadline=None)
@given(st.lists(SMALL, min_size=1, max_size=5), st.lists(SMALL, max_size=5), st.integers(0, 40))
def test_the_text_of_each_sentence_stays_whatever_the_probability(learned, others, num_merges):
    bpe = Bpe(learned, 259 + num_merges)
    texts = learned + others
    flat, lengths, starts = bpe.encode(texts)
    for probability in (0, 0.1, 0.6, 1):
        drawn = redrawn(bpe.merges, probability, (flat, lengths, starts))
        assert bpe.letters(*drawn) == bpe.letters(flat, lengths)
        if probability == 0:
            np.testing.assert_array_equal(drawn[0], flat)
        if probability == 1:
            assert len(drawn[0]) == sum(len(text.encode()) for text in texts)


def test_all_dropped_leaves_base_symbols(bpe):
    drawn, numbers = redrawn(bpe.merges, 1, bpe.encode(TEXTS))
    assert not set(drawn.tolist()) & set(bpe.merges[:, 2].tolist())
    assert numbers.tolist() == [len(text.encode()) for text in TEXTS]


def test_a_seed_gives_the_same_ids_again_and_another_gives_others(bpe):
    encoded = bpe.encode(TEXTS)
    drawn = (redrawn(bpe.merges, 0.1, encoded, seed)[0] for seed in (5, 5, 6))
    first, again, other = (ids.tolist() for ids in drawn)
    assert first == again != other


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_ids_keep_their_type_and_lengths_theirs(bpe, dtype):
    drawn, numbers = redrawn(bpe.merges, 0.3, bpe.encode(TEXTS, dtype))
    assert (drawn.dtype, numbers.dtype) == (dtype, np.int32)
    np.testing.assert_array_equal(drawn, redrawn(bpe.merges, 0.3, bpe.encode(TEXTS))[0])


@pytest.mark.parametrize("probability", [0, 0.5, 1])
def test_ids_of_no_entry_pass_through(bpe, probability):
    flat, lengths, starts = bpe.encode(TEXTS)
    framed = [[PAD, BOS, *row, EOS, 9999, PAD] for row in split(flat, lengths)]
    of_words = [[1, 1, *row, 1, 1, 1] for row in split(starts, lengths)]
    flat, starts = (np.array([*itertools.chain(*rows)]) for rows in (framed, of_words))
    encoded = flat, lengths + 5, starts.astype(bool)
    for row in split(*redrawn(bpe.merges, probability, encoded)):
        assert row[:2] + row[-3:] == [PAD, BOS, EOS, 9999, PAD]
        assert not {PAD, BOS, EOS, 9999} & set(row[2:-3])


def test_texts_are_drawn_in_slices_that_end_with_sentences(bpe, monkeypatch):
    monkeypatch.setattr(bpe_dropout, "SLICE", 7)  # less than most sentences, and empty ones between
    segment, sizes = BpeDropout._segment, []

    def spy(self, texts, offsets, rng):
        sizes.append(offsets[-1] - offsets[0])
        return segment(self, texts, offsets, rng)

    monkeypatch.setattr(BpeDropout, "_segment", spy)
    flat, lengths, starts = bpe.encode(["", "", *TEXTS, "", ""])
    assert redrawn(bpe.merges, 0, (flat, lengths, starts))[0].tolist() == flat.tolist()
    assert max(sizes) < 7 + lengths.max()
    drawn = redrawn(bpe.merges, 0.4, (flat, lengths, starts))
    assert bpe.letters(*drawn) == bpe.letters(flat, lengths)


def test_no_text_and_no_merge_are_no_special_case(bpe):
    none = np.array([], np.int32)
    for lengths in (none, np.array([0, 0])):
        drawn, numbers = redrawn(bpe.merges, 0.5, (none, lengths, none.astype(bool)))
        assert drawn.tolist() == []
        assert numbers.tolist() == lengths.tolist()
    flat, lengths, starts = bpe.encode(TEXTS)
    drawn, numbers = redrawn(np.zeros((0, 3), np.int32), 0.5, (flat, lengths, starts))
    assert drawn.tolist() == flat.tolist()
    assert numbers.tolist() == lengths.tolist()


def test_a_cut_of_the_pre_tokenizer_stays_also_where_merges_would_join_the_words():
    bpe = Bpe(["sun it's", "sun he's", "sun"] * 9, 300)
    encoded = bpe.encode(["'sun"])
    assert parts(bpe, encoded[0]) == ["'s", "u", "n"]  # BPE alone would make it ' and sun
    drawn = {tuple(parts(bpe, redrawn(bpe.merges, 0.5, encoded, seed)[0])) for seed in range(50)}
    assert drawn == {("'s", "u", "n"), ("'", "s", "u", "n")}


def parts(bpe, flat):
    return [bpe.tokenizer.id_to_token(i) for i in flat]


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
    lengths = np.full(draws, len(flat) // draws)
    rows = split(*redrawn(np.array(MERGES, np.int32), p, (flat, lengths, starts)))
    return collections.Counter(map(tuple, rows))


def assert_drawn_from(counts, probabilities):
    assert set(counts) <= {end for end, probability in probabilities.items() if probability}
    assert sum(probabilities.values()) == pytest.approx(1)
    total = counts.total()
    for end, probability in probabilities.items():
        # 4 sigma: the seed is fixed, so what passes once passes always; 2 for the rarest.
        tolerance = 4 * (total * probability * (1 - probability)) ** 0.5 + 2
        assert abs(counts[end] - total * probability) < tolerance, end


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    "word",
    [
        (A, B, C, D),  # each merge excludes another
        (A, B, A, B, A, B),  # a pair more than once, for leftmost or all
        (A, A, A, A, A),  # pairs that overlap
        (A, A, B, C, D),
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


def test_pairs_have_their_number_and_others_have_none():
    # Rows that fit badly, all of them full, and rows of different sizes.
    pairs = {(left, right) for left in range(40) for right in range(40)}
    pairs |= {(left, right) for left in range(50, 90) for right in range(left, 97)}
    table = PairTable(sorted(pairs), 97)
    numbers = table(*np.array(sorted(pairs)).T)
    np.testing.assert_array_equal(numbers, np.arange(len(pairs)) << PLACE_BITS)
    others = np.array(sorted(set(itertools.product(range(150), range(150))) - pairs))
    assert np.all(table(*others.T) == NO_MERGE)


@pytest.mark.parametrize("sides", [("byte_bpe", "words"), ("unigram", "bpe")])
def test_a_vocabulary_that_is_no_bpe_is_refused(sides):
    vocabularies = Vocabularies(*(Vocabulary.train(["a text"], 300, name) for name in sides))
    with pytest.raises(UserError, match=r"config\.data\.augment=bpe_dropout\(p=0\.1\): .*BPE"):
        bpe_dropout.bpe_dropout(vocabularies, p=0.1)


@pytest.mark.parametrize("p", [-0.1, 1, 1.5])
def test_a_probability_outside_0_to_1_is_refused(p):
    vocabulary = Vocabulary.train(["a text"], 300, "bpe")
    with pytest.raises(UserError, match=rf"config\.data\.augment=bpe_dropout\(p={p}\): "):
        bpe_dropout.bpe_dropout(Vocabularies(vocabulary, vocabulary), p=p)
