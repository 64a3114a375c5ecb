"""Batches: everything once, as it was laid out, the same again from any position."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from jformer.config import BOS, EOS, PAD
from jformer.data import batches as batches_module
from jformer.data.batches import (
    Batches,
    Buckets,
    Packing,
    bucket_lengths,
    iterate,
    rows_that_fit,
)
from jformer.data.corpora import Split
from jformer.data.tokens import Ragged, TokenPairs, tokenize
from jformer.data.vocabulary import Vocabularies
from jformer.extras.bpe_dropout import BpeDropout, bpe_dropout
from tests.conftest import number_words, small_config

BATCH_TOKENS, PAIRS = 512, 237
# Ids 3 to 9 are base symbols, and three merges of them.
MERGES = np.array([[3, 4, 10], [10, 5, 11], [6, 7, 12]], np.int32)
KINDS = ("buckets", "packed", "buckets with dropout", "packed with dropout")


def random_pairs(number=PAIRS, seed=0):
    """Texts of the ids of `MERGES`, as that BPE has them: no merge is left to do."""
    rng = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        lengths = rng.geometric(0.1, number).clip(1, 40)
        sides.append(Ragged.from_rows([[*rng.integers(8, 13, n), EOS] for n in lengths]))
    return TokenPairs(*sides)


def dropping(p):
    """BPE dropout of both sides, in which each id is a word."""
    drop = BpeDropout(MERGES, 13, p)

    def augment(pairs, rng):
        return TokenPairs(*(drop(side, np.ones(len(side.flat), bool), rng) for side in pairs))

    return augment


def make_batches(kind="buckets", seed=5, rows=None):
    pairs = random_pairs()
    rows = np.arange(PAIRS) if rows is None else rows
    dropout = "dropout" in kind
    S, T = (n * (3 if dropout else 1) for n in pairs.lengths(rows))
    layout = (
        Packing(S, T, BATCH_TOKENS, 128, 4)
        if "packed" in kind
        else Buckets(S, T, BATCH_TOKENS, 4, 4)
    )
    return Batches(pairs, rows, layout, seed, [dropping(0.5)] if dropout else [])


@pytest.fixture(scope="module", params=KINDS)
def batches(request):
    return make_batches(request.param)


def members_of(epoch):
    rows = epoch.rows.rows()
    return [list(itertools.chain(*rows[first:end])) for _, first, end in epoch.batches]


def rows_of(batch):
    """The texts of a batch, row by row: pairs of source, target and labels."""
    for row in range(len(batch["source_BS"])):
        source, target, labels = (batch[n][row] for n in ("source_BS", "target_BT", "labels_BT"))
        segments = batch.get("source_segments_BS", (batch["source_BS"] != PAD).astype(int))[row]
        target_segments = batch.get("target_segments_BT", (batch["labels_BT"] != PAD).astype(int))[
            row
        ]
        for segment in range(1, segments.max() + 1):
            here = target_segments == segment
            yield source[segments == segment], target[here], labels[here]


def test_each_epoch_has_each_pair_once_and_puts_other_pairs_together(batches):
    epochs = [members_of(batches.epoch(number)) for number in range(3)]
    for members in epochs:
        assert all(members), "a batch is empty"
        assert sorted(itertools.chain(*members)) == list(range(PAIRS))
    for one, other in itertools.combinations(epochs, 2):
        same = {*map(frozenset, one)} & {*map(frozenset, other)}
        assert len(same) < len(one) / 2


def test_a_row_of_weight_two_occurs_twice_and_a_row_that_is_left_out_never():
    rows = np.repeat(np.arange(PAIRS), np.arange(PAIRS) % 3)
    for kind in ("buckets", "packed"):
        members = members_of(make_batches(kind, rows=rows).epoch(1))
        assert sorted(itertools.chain(*members)) == rows.tolist()


def texts_of(batches, pair):
    """The ids of both sides of a pair, before any augmentation."""
    return [side.take(np.array([pair])).flat.tolist() for side in batches.pairs]


@pytest.mark.parametrize("kind", ["buckets", "packed"])
def test_batches_have_whole_texts_and_padding_in_one_of_the_shapes(kind):
    batches = make_batches(kind)
    epoch, shapes = batches.epoch(0), set()
    for number, members in enumerate(members_of(epoch)):
        batch = batches.batch(0, number)
        shapes.add((*batch["source_BS"].shape, batch["target_BT"].shape[1]))
        texts = list(rows_of(batch))
        for pair, (source, target, labels) in zip(members, texts, strict=True):
            expected = texts_of(batches, pair)
            assert [source.tolist(), labels.tolist()] == expected
            assert target.tolist() == [BOS, *expected[1][:-1]]
        for i, name in enumerate(("source_BS", "target_BT", "labels_BT")):
            assert np.sum(batch[name] != PAD) == sum(len(text[i]) for text in texts)
    assert shapes <= set(batches.layout.shapes)


def expand(ids):
    """The base symbols of a text."""
    parts = {result: (left, right) for left, right, result in MERGES.tolist()}
    return [s for i in ids for s in (expand(parts[i]) if i in parts else [i])]


@pytest.mark.parametrize("kind", ["buckets with dropout", "packed with dropout"])
def test_dropout_cuts_each_epoch_otherwise_and_never_changes_the_text(kind):
    batches, changed = make_batches(kind), 0
    for epoch in (0, 1):
        for number, members in enumerate(members_of(batches.epoch(epoch))):
            texts = rows_of(batches.batch(epoch, number))
            for pair, (source, _, labels) in zip(members, texts, strict=True):
                plain, drawn = texts_of(batches, pair), [source.tolist(), labels.tolist()]
                assert [expand(ids) for ids in drawn] == [expand(ids) for ids in plain]
                changed += drawn != plain
    assert changed > PAIRS
    texts = [batches.epoch(epoch).pairs.sources.flat.tolist() for epoch in (0, 1)]
    assert texts[0] != texts[1]


def test_a_drawing_that_no_row_has_room_for_is_replaced_with_the_plain_segmentation():
    pairs = random_pairs()
    rows = np.arange(PAIRS)
    layout = Buckets(*pairs.lengths(rows), BATCH_TOKENS, 1, 4)  # room for what is plain
    epoch = Batches(pairs, rows, layout, 0, [dropping(0.9)]).epoch(0)
    ((_, width_S, width_T),) = layout.shapes
    S, T = epoch.pairs.lengths(rows)
    assert S.max() <= width_S
    assert T.max() <= width_T
    assert epoch.pairs.sources.flat.tolist() != pairs.sources.flat.tolist()


def test_the_stream_goes_through_the_epochs_in_turn(batches):
    lengths = [len(batches.epoch(epoch)) for epoch in (0, 1)]
    stream = iterate(batches, sum(lengths) + 1)
    expected = [(e, n) for e in (0, 1) for n in range(lengths[e])] + [(2, 0)]
    for (batch, _), (epoch, number) in zip(stream, expected, strict=True):
        np.testing.assert_array_equal(batch["labels_BT"], batches.batch(epoch, number)["labels_BT"])


@pytest.mark.parametrize("taken", [1, 75])
def test_a_restored_position_continues_with_the_batches_not_yet_taken(batches, taken):
    stop = 80  # beyond the first epoch
    assert len(batches.epoch(0)) < stop
    whole = list(iterate(batches, stop))
    position = json.loads(json.dumps(whole[taken - 1][1]))
    rest = list(iterate(batches, stop, position))
    for (batch, _), (expected, _) in zip(rest, whole[taken:], strict=True):
        for name in expected:
            np.testing.assert_array_equal(batch[name], expected[name])


@pytest.mark.parametrize("parts", [2, 3])
def test_the_parts_of_processes_are_the_batch_whatever_their_number(batches, parts):
    """And a position saved by one number of processes serves another."""
    whole = list(iterate(batches, 7))
    saved = iterate(batches, 7, part=0, parts=3)
    next(saved)
    _, position = next(saved)
    saved.close()
    split = [iterate(batches, 7, position, part=part, parts=parts) for part in range(parts)]
    for (expected, _), *shares in zip(whole[2:], *split, strict=True):
        for name, rows in expected.items():
            joined = np.concatenate([share[name] for share, _ in shares])
            assert {len(share[name]) for share, _ in shares} == {-(-len(rows) // parts)}
            np.testing.assert_array_equal(joined[: len(rows)], rows)
            assert not joined[len(rows) :].any()


def test_share_of_tokens_counts_both_sides_of_all_batches(batches):
    tokens = positions = 0
    for number in range(len(batches.epoch(0))):
        batch = batches.batch(0, number)
        for name in ("source_BS", "labels_BT"):
            tokens += np.sum(batch[name] != PAD)
            positions += batch[name].size
    assert batches.token_utilization() == pytest.approx(tokens / positions)


def test_batches_of_one_shape_do_not_come_in_one_block():
    shapes = make_batches("buckets").epoch(0).batches[:, 0]
    assert np.count_nonzero(np.diff(shapes)) > 2 * len(np.unique(shapes))


def test_dropout_redraws_each_side_by_its_own_merges_within_max_length():
    """Loud words and quiet ones, a vocabulary for each side, and nearly all merges dropped."""
    config = small_config()
    data = dataclasses.replace(
        config.data, joint_vocabulary=False, vocabulary_size=290, augment="bpe_dropout(p=0.9)",
        max_length=12,
    )  # fmt: skip
    words = number_words(100, 160).targets
    split = Split([text.upper() for text in words], words)
    vocabularies = Vocabularies.train(lambda: zip(split.sources, split.targets, strict=True), data)
    pairs, config = tokenize(split, vocabularies, data), dataclasses.replace(config, data=data)
    made = batches_module.make_batches(config, pairs, np.arange(len(split)), vocabularies)

    drawn = bpe_dropout(vocabularies, p=0.9)(pairs, np.random.default_rng(0))
    for side, vocabulary, texts in zip(drawn, vocabularies, (split.sources, words), strict=True):
        assert [vocabulary.decode(ids) for ids in side.rows()] == texts
        assert [row[:-1] for row in side.rows()] != vocabulary.encode(texts)
    assert drawn.targets.lengths.max() > 12 >= pairs.targets.lengths.max()
    assert max(max(S, T) for _, S, T in made.layout.shapes) <= 12


ROW_TOKENS, LONGEST, MULTIPLE = 512, 60, 4


def random_lengths(number=997, seed=0):
    """Of sources and targets that go together, as those of translations do."""
    rng = np.random.default_rng(seed)
    S = rng.geometric(0.08, number).clip(2, LONGEST)
    return S, (S * rng.uniform(0.7, 1.6, number)).astype(int).clip(2, LONGEST)


def layouts():
    S, T = random_lengths()
    return {
        "buckets": Buckets(S, T, ROW_TOKENS, 7, MULTIPLE),
        "one bucket": Buckets(S, T, ROW_TOKENS, 1, MULTIPLE),
        "packed": Packing(S, T, ROW_TOKENS, 64, MULTIPLE),
        "packed in rows of the longest": Packing(S, T, ROW_TOKENS, LONGEST, MULTIPLE),
    }


def plain_bucket_lengths(S, T, number):
    """A greedy choice in loops; of equals the longest sources and then the shortest targets."""
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


@pytest.mark.parametrize("seed", range(5))
def test_each_bucket_is_that_of_an_exhaustive_search_also_among_equals(seed):
    """A run that resumes must get the batches it had."""
    rng = np.random.default_rng(seed)
    S, T = 4 * rng.integers(1, 7, (2, rng.integers(1, 30)))  # so few lengths that many are equal
    assert bucket_lengths(S, T, 6, MULTIPLE) == plain_bucket_lengths(S.tolist(), T.tolist(), 6)


def test_pairs_that_do_not_fill_a_batch_move_to_a_larger_shape():
    """One pair of each of two lengths: two batches of one would be nearly all padding."""
    S = np.array([4] * 64 + [8])
    layout = Buckets(S, S, 32 * 8, 2, MULTIPLE)
    (height_8, *_), (height_4, *_) = layout.shapes
    assert (height_8, height_4) == (32, 64)
    few = np.array([4] * 3 + [8] * 3)
    assert layout.arrange(few, few)[1].tolist() == [6, 0]
    assert layout.arrange(S, S)[1].tolist() == [1, 64]


def test_a_trimmed_layout_computes_a_long_pair_alone():
    """Untrimmed, its batch has the rows of a whole one, and pairs that fill none move there."""
    S, T = random_lengths()
    S, T = np.append(S, 400), np.append(T, 410)
    layout = Buckets(S, T, 100_000, 4, MULTIPLE)

    def positions():
        _, rows = layout.arrange(S, T)
        shapes = zip(layout.shapes, rows, strict=True)
        return sum(-(-n // height) * height * (s + t) for (height, s, t), n in shapes)

    untrimmed = positions()
    layout.trim(S, T)
    assert layout.shapes[0] == (1, 400, 412)
    assert sum(rows for rows, _, _ in layout.shapes) == len(S)
    assert positions() == sum(rows * (s + t) for rows, s, t in layout.shapes) < untrimmed / 7


@pytest.mark.parametrize("length", [60, 301, 32_768])
def test_a_pair_as_long_as_a_row_has_a_row_of_its_own(length):
    S = np.array([length, length - 1, length, 2, 1], np.int32)
    rows, _ = Packing(S, S, length, length, MULTIPLE).arrange(S, S)
    assert sorted(S[row].sum() for row in rows.rows()) in (
        [3, length - 1, length, length], [2, length, length, length]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("batch_tokens", "length", "rows"),
    [(25_000, 100, 248), (25_000, 96, 256), (800, 100, 8), (799, 100, 7), (100, 30, 3), (9, 10, 1)],
)
def test_rows_are_a_multiple_of_8_where_there_are_as_many(batch_tokens, length, rows):
    """So that they divide among devices."""
    assert rows_that_fit(batch_tokens, length) == rows


@pytest.mark.parametrize("name", layouts())
def test_every_row_has_room_for_its_pairs(name):
    layout = layouts()[name]
    S, T = random_lengths()
    rows, rows_of_shapes = layout.arrange(S, T)
    assert sorted(rows.flat) == list(range(len(S)))
    assert rows.lengths.min() >= 1, "a row is empty"
    for height, width_S, width_T in layout.shapes:
        assert height * max(width_S, width_T) <= ROW_TOKENS
        assert (width_S % MULTIPLE, width_T % MULTIPLE) == (0, 0)
    room = np.repeat(np.array(layout.shapes), rows_of_shapes, axis=0)
    for row, (_, width_S, width_T) in zip(rows.rows(), room, strict=True):
        assert S[row].sum() <= width_S
        assert T[row].sum() <= width_T


def test_packing_leaves_little_of_a_row_empty_and_takes_neighbouring_pairs():
    S, T = random_lengths(5000)
    layout = Packing(S, T, ROW_TOKENS, 128, MULTIPLE)
    rows, _ = layout.arrange(S, T)
    _, row_S, row_T = layout.shapes[0]
    assert (S.sum() + T.sum()) / (len(rows) * (row_S + row_T)) > 0.9
    # The order of an epoch is random, so that a batch of neighbouring rows is a sample of it.
    assert np.abs(rows.flat - np.arange(len(S))).mean() < 500
