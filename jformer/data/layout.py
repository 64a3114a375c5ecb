"""Batch layouts in few static shapes for pairs of different lengths: buckets and packing.

A layout has `shapes`, `(B, S, T)` each, compiled once. `fits` returns whether pairs of S source and
T target positions fit any of them, and `arrange` assigns pairs to rows. `B * S` and `B * T` are at
most the batch's tokens, padding included, unless a single row is longer.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

GRID = 512  # lengths compared per side; more would take seconds and gigabytes
ROW_MULTIPLE = 8  # of batch rows, so that they divide among devices
PART = 2**17  # pairs packed at a time, independently of the others
GROUPS = 16  # of rows with similar free space, within which packing exchanges pairs

Sides = tuple[np.ndarray, np.ndarray]
# The pairs in row order, the number of pairs in each row, and the number of rows of each shape.
# Rows of one shape are contiguous.
Arrangement = tuple[np.ndarray, np.ndarray, np.ndarray]


def rows_that_fit(batch_tokens: int, length: int) -> int:
    rows = max(1, batch_tokens // length)
    return rows - rows % ROW_MULTIPLE if rows >= ROW_MULTIPLE else rows


def round_up(lengths, multiple: int):
    return -(-lengths // multiple) * multiple


class Buckets:
    """One pair per row; pairs of similar lengths share a batch, in at most `number` shapes.

    The source and target lengths of the shapes are multiples of `multiple`.
    """

    def __init__(self, S: np.ndarray, T: np.ndarray, batch_tokens: int, number: int, multiple: int):
        lengths = sorted(bucket_lengths(S, T, number, multiple), key=sum, reverse=True)
        self.shapes = [(rows_that_fit(batch_tokens, max(pair)), *pair) for pair in lengths]

    def trim(self, S: np.ndarray, T: np.ndarray) -> None:
        """Lower the height of each shape whose pairs, all that there are, do not fill a batch."""
        numbers = np.bincount(self.smallest(S, T), minlength=len(self.shapes)).tolist()
        shapes = zip(self.shapes, numbers, strict=True)
        self.shapes = [(min(height, number), s, t) for (height, s, t), number in shapes if number]

    def fits(self, S: np.ndarray, T: np.ndarray) -> np.ndarray:
        return np.any([(s >= S) & (t >= T) for _, s, t in self.shapes], axis=0)

    def smallest(self, S: np.ndarray, T: np.ndarray) -> np.ndarray:
        """Return the number of the smallest shape that each pair fits."""
        shape_of = np.zeros(len(S), np.uint8)
        for number, (_, s, t) in enumerate(self.shapes):
            shape_of[(s >= S) & (t >= T)] = number  # shapes are sorted, largest first
        return shape_of

    def arrange(self, S: np.ndarray, T: np.ndarray) -> Arrangement:
        """Assign each pair to the smallest shape that it fits.

        Pairs that do not fill a batch move to the next larger shape if that takes fewer positions.
        """
        shape_of = self.smallest(S, T)
        for number, (height, s, t) in reversed(list(enumerate(self.shapes))):
            members = np.flatnonzero(shape_of == number)
            left = members[len(members) - len(members) % height :]
            larger = [k for k in range(number) if np.all(np.array(self.shapes[k][1:]) >= (s, t))]
            if larger and len(left) * sum(self.shapes[larger[-1]][1:]) < height * (s + t):
                shape_of[left] = larger[-1]
        rows = np.bincount(shape_of, minlength=len(self.shapes))
        return np.argsort(shape_of, kind="stable"), np.ones(len(S), np.uint8), rows


def bucket_lengths(
    S: np.ndarray, T: np.ndarray, number: int, multiple: int
) -> list[tuple[int, int]]:
    """Return at most `number` pairs of lengths, chosen greedily for little padding.

    The first fits all pairs. Each further one saves the most positions, given that every pair uses
    the smallest lengths that it fits. All pairs of multiples of `multiple` are compared, or of a
    larger step if these were more than `GRID` per side.
    """
    longest = max(S.max(), T.max())
    step = multiple * -(-longest // (multiple * GRID))
    cell_S, cell_T = (-(-lengths // step) for lengths in (S, T))
    pairs_ST = np.zeros((cell_S.max() + 1, cell_T.max() + 1), np.int64)
    np.add.at(pairs_ST, (cell_S, cell_T), 1)
    # The row lengths of each cell; a larger step must not make the longest row longer.
    row_S, row_T = (
        np.minimum(np.arange(cells) * step, round_up(lengths.max(), multiple))
        for cells, lengths in zip(pairs_ST.shape, (S, T), strict=True)
    )
    size_ST = row_S[:, None] + row_T  # positions in a row of these lengths

    chosen = [(int(row_S[-1]), int(row_T[-1]))]
    taken_ST = np.full_like(size_ST, size_ST[-1, -1])  # positions that a pair takes so far
    while len(chosen) < number:
        # What the lengths of each cell would save, from pairs that take the same so far.
        saved_ST = np.zeros_like(size_ST)
        for taken in {sum(lengths) for lengths in chosen}:
            within_ST = (pairs_ST * (taken_ST == taken)).cumsum(axis=0).cumsum(axis=1)
            saved_ST += within_ST * (taken - size_ST).clip(min=0)
        if not saved_ST.any():
            break
        # Of equals the longest source, then the shortest target. The choice must not change: a
        # resumed run must get the same batches.
        cells_N2 = np.argwhere(saved_ST == saved_ST.max())
        s, t = min(cells_N2.tolist(), key=lambda cell: (-cell[0], cell[1]))
        taken_ST[: s + 1, : t + 1] = taken_ST[: s + 1, : t + 1].clip(max=size_ST[s, t])
        chosen.append((int(row_S[s]), int(row_T[t])))
    return chosen


class Packing:
    """The layout that packs several pairs into a row; attention masks keep them apart.

    A row has `length` positions for the language with more tokens, and fewer for the other, in
    proportion to its tokens: a multiple of `multiple`, or as many as the longest pair.
    """

    def __init__(self, S: np.ndarray, T: np.ndarray, batch_tokens: int, length: int, multiple: int):
        longer = int(max(S.sum(), T.sum()))
        shares = [-(-int(N.sum()) * length // longer) for N in (S, T)]
        sides = [
            max(int(N.max()), round_up(share, multiple))
            for N, share in zip((S, T), shares, strict=True)
        ]
        self.S, self.T = (min(side, length) for side in sides)
        self.shapes = [(rows_that_fit(batch_tokens, length), self.S, self.T)]

    def fits(self, S: np.ndarray, T: np.ndarray) -> np.ndarray:
        return (self.S >= S) & (self.T >= T)

    def arrange(self, S: np.ndarray, T: np.ndarray) -> Arrangement:
        """Pack the pairs into rows, ordered by the first pair of each row."""
        assert self.fits(S, T).all(), "a pair is longer than a packed row"
        parts = [slice(start, start + PART) for start in range(0, len(S), PART)]
        with ThreadPoolExecutor(2) as pool:
            filled = list(pool.map(lambda part: self.fill(S[part], T[part]), parts))
        orders, counts = zip(*filled, strict=True)
        for part, order in zip(parts, orders, strict=True):
            order += part.start
        rows = np.concatenate(counts)
        return np.concatenate(orders), rows, np.array([len(rows)])

    def fill(self, S: np.ndarray, T: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs in row order, and the number of pairs in each row.

        All rows are filled at once, in rounds: in each round every row takes the largest pair
        that fits it and that no emptier row has taken, or exchanges it for a similar one.
        """
        area = self.S * self.T
        # Sizes and free space are areas, scaled to 16 bits: numpy sorts those ten times as fast.
        unit = 1 + area // 65535
        size = (np.maximum(S * self.T, T * self.S) // unit).astype(np.uint16)
        row_of, rows = np.empty(len(S), np.int32), 0
        pool = np.argsort(size, kind="stable")
        size, S, T = size[pool], S[pool], T[pool]
        while len(pool):
            new = -(-max(S.sum() * self.T, T.sum() * self.S) // area)
            free_S, free_T = np.full(new, self.S, np.int32), np.full(new, self.T, np.int32)
            while len(pool):
                room = (np.minimum(free_S * self.T, free_T * self.S) // unit).astype(np.uint16)
                emptiest = np.argsort(room, kind="stable")[::-1]
                largest = np.searchsorted(size, room[emptiest], side="right") - 1
                # Strictly decreasing indices, so that no two rows take the same pair.
                ranks = np.arange(new)
                taken = np.minimum.accumulate(largest + ranks) - ranks
                taken = taken[taken >= 0]
                taking, group = emptiest[: len(taken)], ranks[: len(taken)] * GROUPS // new
                free, lengths = (free_S[taking], free_T[taking]), (S[taken], T[taken])
                by_row, by_pair = self.exchange(free, lengths, group)
                taking, taken = taking[by_row], taken[by_pair]
                if not len(taken):
                    break
                row_of[pool[taken]] = rows + taking
                free_S[taking] -= S[taken]
                free_T[taking] -= T[taken]
                left = np.ones(len(pool), bool)
                left[taken] = False
                pool, size, S, T = pool[left], size[left], S[left], T[left]
            rows += new
        _, first = np.unique(row_of, return_index=True)  # the first pair of each row
        rank_of = np.argsort(np.argsort(first))[row_of]
        return np.argsort(rank_of, kind="stable"), np.bincount(rank_of).astype(np.int32)

    def exchange(self, free: Sides, lengths: Sides, group: np.ndarray) -> Sides:
        """Return indices of rows and of the pairs they take; before the exchange row i had pair i.

        In each group, rows with more free space on the source side take the pairs with longer
        sources, so that both sides fill up. A row that its new pair does not fit waits a round.
        """
        area = self.S * self.T
        unit = 1 + 2 * area // 65535

        def by_source(S: np.ndarray, T: np.ndarray) -> np.ndarray:
            """Return the order by group, then by how much more the source side has."""
            surplus = (S * self.T - T * self.S + area) // unit
            return np.lexsort((surplus.astype(np.uint16), group))

        by_row, by_pair = by_source(*free), by_source(*lengths)
        fits_S, fits_T = (
            length[by_pair] <= room[by_row] for length, room in zip(lengths, free, strict=True)
        )
        fits = fits_S & fits_T
        return by_row[fits], by_pair[fits]
