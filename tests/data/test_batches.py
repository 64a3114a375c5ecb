"""Batches: everything once, within the budget, the same again from any position."""

import itertools
import json

import numpy as np
import pytest

from jformer.config import BOS, EOS, PAD, UserError
from jformer.data.batches import (
    LENGTH_MULTIPLE,
    Batches,
    Ragged,
    TokenPairs,
    bucket_lengths,
    iterate,
    tokenize,
    trainable,
)
from jformer.data.corpora import Split
from jformer.data.vocabulary import Vocabularies

BATCH_TOKENS = 128


def random_pairs(number=237, seed=0):
    rng = np.random.default_rng(seed)
    sides = []
    for extra in (0, 1):  # a target has BOS before it
        lengths = rng.geometric(0.1, number).clip(1, 60) + extra
        sides.append(Ragged.from_rows([rng.integers(3, 99, n) for n in lengths]))
    return TokenPairs(*sides)


def make_batches(seed, rows=None):
    pairs = random_pairs()
    rows = np.arange(237) if rows is None else rows
    return Batches(pairs, rows, BATCH_TOKENS, num_buckets=4, seed=seed)


@pytest.fixture(scope="module")
def batches():
    return make_batches(seed=5)


def epoch_of(batches, epoch):
    return [batches.plan(epoch * batches.per_epoch + i)[1] for i in range(batches.per_epoch)]


def test_each_pair_stands_exactly_once_in_each_epoch(batches):
    for epoch in range(3):
        indices = np.concatenate(epoch_of(batches, epoch))
        assert sorted(indices) == list(range(237))


def test_rows_that_are_left_out_stand_in_no_epoch():
    kept = np.arange(0, 237, 3)
    batches = make_batches(seed=5, rows=kept)
    assert sorted(np.concatenate(epoch_of(batches, 0))) == kept.tolist()
    assert batches.non_pad_share() == pytest.approx(share_of_tokens(batches))


def test_epochs_differ_in_order_and_seeds_do_too(batches):
    orders = [np.concatenate(epoch_of(batches, epoch)).tolist() for epoch in range(2)]
    other = make_batches(seed=6)
    assert orders[0] != orders[1]
    assert orders[0] != np.concatenate(epoch_of(other, 0)).tolist()


def test_rows_are_their_pairs_padded_to_one_of_few_shapes(batches):
    shapes = set()
    for i in range(batches.per_epoch):
        batch, indices = batches[i], batches.plan(i)[1]
        shapes.add(batch["source_BS"].shape)
        assert batch["target_BT1"].shape[1] == batch["source_BS"].shape[1] + 1
        for side, ragged in (
            ("source_BS", batches.pairs.sources),
            ("target_BT1", batches.pairs.targets),
        ):
            for row, pair in zip(batch[side], indices, strict=False):
                expected = ragged.flat[ragged.offsets[pair] : ragged.offsets[pair + 1]]
                assert row[row != PAD].tolist() == expected.tolist()
            assert np.all(batch[side][len(indices) :] == PAD)
    assert shapes == set(batches.shapes)
    assert len(shapes) <= 4


def test_no_batch_exceeds_its_budget_on_either_side(batches):
    for rows, length in batches.shapes:
        assert rows * length <= BATCH_TOKENS


def test_a_batch_is_a_function_of_seed_and_number_alone(batches):
    again = make_batches(seed=5)
    for number in (200, 3, 77):  # in no order
        for side in ("source_BS", "target_BT1"):
            np.testing.assert_array_equal(batches[number][side], again[number][side])


@pytest.mark.parametrize("taken", [0, 1, 30, 75])
def test_a_restored_position_goes_on_with_the_batches_not_yet_taken(batches, taken):
    stop = 80
    iterator = iterate(batches, stop)
    for _ in range(taken):
        next(iterator)
    position = json.loads(json.dumps(iterator.get_state()))
    rest = list(iterate(batches, stop, position))
    assert len(rest) == stop - taken
    for batch, number in zip(rest, range(taken, stop), strict=True):
        np.testing.assert_array_equal(batch["source_BS"], batches[number]["source_BS"])


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_bucket_lengths_are_those_of_an_exhaustive_search(number):
    lengths = np.random.default_rng(number).geometric(0.08, 300).clip(1, 40)

    def padded(choice):
        return np.sum(np.array(choice)[np.searchsorted(choice, lengths)])

    candidates = range(LENGTH_MULTIPLE, 41, LENGTH_MULTIPLE)
    largest = -(-lengths.max() // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    best = min(
        padded([*choice, largest])
        for size in range(number)
        for choice in itertools.combinations([c for c in candidates if c < largest], size)
    )
    chosen = bucket_lengths(lengths, number)
    assert len(chosen) <= number
    assert padded(chosen) == best


def share_of_tokens(batches):
    tokens = positions = 0
    for i in range(batches.per_epoch):
        batch = batches[i]
        labels_BT = batch["target_BT1"][:, 1:]
        tokens += np.sum(batch["source_BS"] != PAD) + np.sum(labels_BT != PAD)
        positions += batch["source_BS"].size + labels_BT.size
    return tokens / positions


def test_share_of_tokens_counts_both_sides_of_all_batches(batches):
    assert batches.non_pad_share() == pytest.approx(share_of_tokens(batches))


def test_sentences_carry_their_marks():
    split = Split(["ab"], ["ba"])
    vocabularies = Vocabularies.train(split, 260, joint=True)
    vocabulary, pairs = vocabularies.target, tokenize(split, vocabularies)
    a, b = (vocabulary.encode([letter])[0][0] for letter in "ab")
    assert vocabulary.decode(pairs.sources.flat) == "ab"
    assert pairs.sources.flat[-1] == EOS
    assert pairs.targets.flat.tolist() == [BOS, b, a, EOS]


def bytes_only():
    return Vocabularies.train(Split(["a"], ["b"]), 260, joint=True)


def test_empty_and_long_pairs_are_left_out_and_counted():
    split = Split(["a", "", "b", " ", "ab", "a" * 50], ["b", "b", "\t", "b", "ba", "a"])
    rows, left_out = trainable(split, tokenize(split, bytes_only()), max_length=10)
    assert left_out == "3 pairs with an empty side and 1 of more than 10 tokens left out"
    assert rows.tolist() == [0, 4]


def test_a_corpus_of_which_nothing_is_left_is_refused():
    split = Split([""], ["a"])
    pairs = tokenize(split, bytes_only())
    with pytest.raises(UserError, match="no pair to train on: 1 pairs with an empty side"):
        trainable(split, pairs, max_length=10)
