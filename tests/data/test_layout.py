"""Layouts: room for every pair, few shapes, little padding."""

import itertools
import time

import numpy as np
import pytest

import jformer.data.batches as module
from jformer.data.batches import Buckets, Packing, bucket_lengths, rows_that_fit

BATCH_TOKENS, LONGEST, MULTIPLE = 512, 60, 4


def random_lengths(number=997, seed=0):
    """Of sources and targets that go together, as those of translations do."""
    rng = np.random.default_rng(seed)
    S = rng.geometric(0.08, number).clip(2, LONGEST)
    return S, (S * rng.uniform(0.7, 1.6, number)).astype(int).clip(2, LONGEST)


def layouts():
    S, T = random_lengths()
    return {
        "buckets": Buckets(S, T, BATCH_TOKENS, 7, MULTIPLE),
        "one bucket": Buckets(S, T, BATCH_TOKENS, 1, MULTIPLE),
        "packed": Packing(S, T, BATCH_TOKENS, 64, MULTIPLE),
        "packed in rows of the longest": Packing(S, T, BATCH_TOKENS, LONGEST, MULTIPLE),
        "packed in rows of more than 16 bits": Packing(S, T, BATCH_TOKENS, 500, MULTIPLE),
    }


@pytest.mark.parametrize("name", layouts())
def test_every_row_has_room_for_its_pairs(name):
    layout = layouts()[name]
    S, T = random_lengths()
    assert layout.fits(S, T).all()
    order, counts, rows = layout.arrange(S, T)
    assert sorted(order) == list(range(len(S)))
    assert counts.min() >= 1, "a row is empty"
    room = np.repeat(np.array(layout.shapes), rows, axis=0)
    row_of = np.repeat(np.arange(len(counts)), counts)
    assert np.all(np.bincount(row_of, S[order]) <= room[:, 1])
    assert np.all(np.bincount(row_of, T[order]) <= room[:, 2])


@pytest.mark.parametrize("name", layouts())
def test_no_batch_exceeds_its_tokens_on_either_side(name):
    for rows, S, T in layouts()[name].shapes:
        assert rows * S <= BATCH_TOKENS
        assert rows * T <= BATCH_TOKENS


def test_a_trimmed_layout_computes_a_long_pair_alone():
    """Untrimmed, its batch has the rows of a whole one, and pairs that fill none move there."""
    S, T = random_lengths()
    S, T = np.append(S, 400), np.append(T, 410)
    layout = Buckets(S, T, 100_000, 4, MULTIPLE)

    def positions():
        _, _, rows = layout.arrange(S, T)
        shapes = zip(layout.shapes, rows, strict=True)
        return sum(-(-n // height) * height * (s + t) for (height, s, t), n in shapes)

    untrimmed = positions()
    layout.trim(S, T)
    assert layout.shapes[0] == (1, 400, 412)
    assert layout.fits(S, T).all()
    assert sum(rows for rows, _, _ in layout.shapes) == len(S)
    assert positions() == sum(rows * (s + t) for rows, s, t in layout.shapes) < untrimmed / 7


def test_a_bucket_holds_one_pair_a_row_and_there_are_few_shapes():
    S, T = random_lengths()
    layout = layouts()["buckets"]
    _, counts, rows = layout.arrange(S, T)
    assert counts.tolist() == [1] * len(S)
    assert len(rows) == len(layout.shapes) <= 7


def test_what_is_longer_than_any_row_does_not_fit():
    for layout in layouts().values():
        longest = max(max(shape[1:]) for shape in layout.shapes)
        assert not layout.fits(np.array([longest + 1]), np.array([2]))[0]
        assert not layout.fits(np.array([2]), np.array([longest + 1]))[0]


def padded(shapes, S, T):
    """Positions that all pairs take, each in the smallest of the shapes that has room for it."""
    sizes = [np.where((s >= S) & (t >= T), s + t, np.inf) for s, t in shapes]
    return np.min(sizes, axis=0).sum()


@pytest.mark.parametrize("multiple", [2, 4, 5])
def test_each_bucket_is_the_best_that_can_be_added_by_an_exhaustive_search(multiple):
    S, T = random_lengths(83)
    chosen = bucket_lengths(S, T, 5, multiple)
    every = range(multiple, LONGEST + 1, multiple)
    assert chosen[0] == (60, 60)
    for number in range(1, 5):
        before = chosen[:number]
        best = min(padded([*before, added], S, T) for added in itertools.product(every, every))
        assert padded(chosen[: number + 1], S, T) == best < padded(before, S, T)


def plain_bucket_lengths(S, T, number):
    """The same choice in loops; of equals the longest sources and then the shortest targets."""
    pairs = list(zip(S, T, strict=True))
    chosen = [(max(S), max(T))]
    taken = [sum(chosen[0])] * len(pairs)
    while len(chosen) < number:
        choices = []
        for s, t in itertools.product(set(S), set(T)):
            inside = [i for i, (a, b) in enumerate(pairs) if a <= s and b <= t]
            saved = sum(max(0, taken[i] - s - t) for i in inside)
            choices.append((saved, s, -t, inside))
        saved, s, t, inside = max(choices)
        if not saved:
            break
        chosen.append((s, -t))
        for i in inside:
            taken[i] = min(taken[i], s - t)
    return chosen


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_among_equals_does_not_change(seed):
    """A run that goes on must get the batches it had: each step is that of a plain search."""
    rng = np.random.default_rng(seed)
    S, T = 4 * rng.integers(1, 7, (2, rng.integers(1, 30)))  # so few lengths that many are equal
    assert bucket_lengths(S, T, 6, MULTIPLE) == plain_bucket_lengths(S.tolist(), T.tolist(), 6)


def test_long_lengths_take_seconds():
    """CPU time, which other programs of the machine do not change much; it was minutes."""
    S, T = np.random.default_rng(0).integers(1, 4097, (2, 100_000)).astype(np.int32)
    began = time.process_time()
    layout = Buckets(S, T, 2**15, 10, MULTIPLE)
    assert time.process_time() - began < 2
    assert len(layout.shapes) == 10
    assert layout.fits(S, T).all()


@pytest.mark.parametrize("longest", [2045, 2051, 4099, 9001])
def test_larger_steps_of_lengths_make_the_longest_row_no_longer(longest):
    S = np.array([longest, 7, 2000, 35, 60] * 9)
    T = S[::-1].copy()
    shapes = Buckets(S, T, 2**15, 10, MULTIPLE).shapes
    assert max(max(shape[1:]) for shape in shapes) == -(-longest // MULTIPLE) * MULTIPLE
    assert len(shapes) > 2


def test_more_buckets_never_pad_more():
    S, T = random_lengths()
    costs = [padded(bucket_lengths(S, T, number, MULTIPLE), S, T) for number in (1, 2, 4, 8, 16)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.75 * costs[0]


def test_lengths_are_multiples_and_smaller_ones_pad_less():
    S, T = random_lengths()
    costs = []
    for multiple in (1, 2, 4, 8, 16):
        chosen = bucket_lengths(S, T, 500, multiple)
        assert all(length % multiple == 0 for pair in chosen for length in pair)
        costs.append(padded(chosen, S, T))
        packed = Packing(S, np.minimum(2 * S, LONGEST), BATCH_TOKENS, 500, multiple).shapes[0]
        assert packed[1] % multiple == 0
    assert costs == sorted(set(costs))
    assert costs[0] == S.sum() + T.sum()  # no padding


def test_pairs_of_one_length_need_one_bucket():
    lengths = np.full(9, 5)
    assert bucket_lengths(lengths, lengths, 4, MULTIPLE) == [(8, 8)]


def test_pairs_that_do_not_fill_a_batch_move_to_a_larger_shape():
    """One pair of each of two lengths: two batches of one would be nearly all padding."""
    S = np.array([4] * 64 + [8])
    layout = Buckets(S, S, 32 * 8, 2, MULTIPLE)
    (height_8, *_), (height_4, *_) = layout.shapes
    assert (height_8, height_4) == (32, 64)
    few = np.array([4] * 3 + [8] * 3)
    assert layout.arrange(few, few)[2].tolist() == [6, 0]
    assert layout.arrange(S, S)[2].tolist() == [1, 64]


def test_no_pair_is_put_into_rows_that_are_too_short_for_it():
    S, T = random_lengths()
    with pytest.raises(AssertionError):
        Packing(S, T, BATCH_TOKENS, LONGEST, MULTIPLE).arrange(
            np.array([LONGEST + 1]), np.array([2])
        )


def test_a_large_corpus_is_packed_in_parts(monkeypatch):
    """As well, but for the last row of a part, and each part in rows of its own."""
    S, T = random_lengths()
    layout = Packing(S, T, BATCH_TOKENS, 64, MULTIPLE)
    whole = len(layout.arrange(S, T)[1])
    monkeypatch.setattr(module, "PART", 250)
    order, counts, rows = layout.arrange(S, T)
    assert rows.tolist() == [len(counts)]
    assert len(counts) <= whole + 4 + 0.02 * whole
    row_of = np.repeat(np.arange(len(counts)), counts)
    assert np.all(np.bincount(row_of, S[order]) <= 64)
    assert np.all(np.bincount(row_of, T[order]) <= 64)
    ends = np.searchsorted(np.cumsum(counts), [250, 500, 750])
    assert np.cumsum(counts)[ends].tolist() == [250, 500, 750]
    assert [sorted(part)[0] for part in np.split(order, [250, 500, 750])] == [0, 250, 500, 750]


def test_a_part_may_have_more_rows_than_16_bits_count():
    S = np.array([60] * 70_000 + [30] * 20_000, np.int32)
    order, counts, _ = Packing(S, S, BATCH_TOKENS, LONGEST, MULTIPLE).arrange(S, S)
    assert len(counts) == 80_000
    assert np.all(np.add.reduceat(S[order], np.cumsum(counts) - counts) == 60)


@pytest.mark.parametrize("length", [60, 301, 32_768])
def test_a_pair_as_long_as_a_row_has_a_row_of_its_own(length):
    S = np.array([length, length - 1, length, 2, 1], np.int32)
    order, counts, _ = Packing(S, S, length, length, MULTIPLE).arrange(S, S)
    assert sorted(np.add.reduceat(S[order], np.cumsum(counts) - counts)) in (
        [3, length - 1, length, length], [2, length, length, length]
    )  # fmt: skip


@pytest.mark.parametrize("length", [128, 700])
def test_packing_leaves_less_than_a_tenth_of_a_row_empty(length):
    S, T = random_lengths(5000)
    layout = Packing(S, T, BATCH_TOKENS, length, MULTIPLE)
    _, counts, _ = layout.arrange(S, T)
    _, row_S, row_T = layout.shapes[0]
    assert (S.sum() + T.sum()) / (len(counts) * (row_S + row_T)) > 0.9


def test_both_sides_of_packed_rows_become_full():
    """Where long sources with short targets stand beside the opposite."""
    rng = np.random.default_rng(0)
    S, T = rng.integers(5, 30, (2, 5000))
    layout = Packing(S, T, BATCH_TOKENS, 128, MULTIPLE)
    _, counts, _ = layout.arrange(S, T)
    assert (S.sum() + T.sum()) / (len(counts) * sum(layout.shapes[0][1:])) > 0.95


def test_packed_rows_do_not_stand_by_the_size_of_their_pairs():
    """Neighbouring rows make a batch: it should be a sample of the corpus."""
    S, T = random_lengths(5000)
    order, counts, _ = Packing(S, T, BATCH_TOKENS, 128, MULTIPLE).arrange(S, T)
    row_of = np.repeat(np.arange(len(counts)), counts)
    longest = [S[order][row_of == row].max() for row in range(len(counts))]
    assert abs(np.corrcoef(longest, np.arange(len(counts)))[0, 1]) < 0.2


def test_the_side_that_takes_less_has_shorter_rows():
    S, _ = random_lengths(500)
    _, row_S, row_T = Packing(S, np.minimum(2 * S, LONGEST), BATCH_TOKENS, 128, MULTIPLE).shapes[0]
    assert row_S < row_T == 128


@pytest.mark.parametrize(
    ("batch_tokens", "length", "rows"),
    [(25_000, 100, 248), (25_000, 96, 256), (800, 100, 8), (799, 100, 7), (100, 30, 3), (9, 10, 1)],
)
def test_rows_are_a_multiple_of_8_where_there_are_as_many(batch_tokens, length, rows):
    """So that they divide among devices."""
    assert rows_that_fit(batch_tokens, length) == rows
