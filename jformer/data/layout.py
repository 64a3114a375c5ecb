"""How pairs of different lengths fill batches of few static shapes: one pair a row, or several.

A layout has `shapes`, `(B, S, T)` each, compiled once. It says of pairs of S source and T target
positions whether it has room for them (`fits`), and arranges them in rows (`arrange`). `B * S` and
`B * T` are at most the batch's tokens, padding included.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

LENGTH_MULTIPLE = 4  # of bucket lengths: finer ones would gain little and compile as often
ROW_MULTIPLE = 8  # of batch rows, so that they divide among devices
PART = 2**17  # pairs that are packed among themselves
GROUPS = 16  # of packed rows with about the same room, which exchange what they take

Shape = tuple[int, int, int]
# The pairs in the order of their rows, how many stand in each row, and how many rows each shape
# has: those of one shape stand together.
Arrangement = tuple[np.ndarray, np.ndarray, np.ndarray]


def rows_that_fit(batch_tokens: int, length: int) -> int:
    rows = max(1, batch_tokens // length)
    return rows - rows % ROW_MULTIPLE if rows >= ROW_MULTIPLE else rows


def round_up(lengths):
    return -(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


class Buckets:
    """One pair a row; pairs of similar lengths stand together, in at most `number` shapes."""

    def __init__(self, S: np.ndarray, T: np.ndarray, batch_tokens: int, number: int):
        lengths = sorted(bucket_lengths(S, T, number), key=sum, reverse=True)
        self.shapes = [(rows_that_fit(batch_tokens, max(pair)), *pair) for pair in lengths]

    def fits(self, S: np.ndarray, T: np.ndarray) -> np.ndarray:
        return np.any([(s >= S) & (t >= T) for _, s, t in self.shapes], axis=0)

    def arrange(self, S: np.ndarray, T: np.ndarray) -> Arrangement:
        """Each pair in the smallest shape that has room for it.

        Pairs that do not fill a batch of it move to the next larger, where that costs less.
        """
        shape_of = np.zeros(len(S), np.uint8)
        for number, (_, s, t) in enumerate(self.shapes):
            shape_of[(s >= S) & (t >= T)] = number  # shapes come from the largest down
        for number, (height, s, t) in reversed(list(enumerate(self.shapes))):
            members = np.flatnonzero(shape_of == number)
            left = members[len(members) - len(members) % height :]
            larger = [k for k in range(number) if np.all(np.array(self.shapes[k][1:]) >= (s, t))]
            if larger and len(left) * sum(self.shapes[larger[-1]][1:]) < height * (s + t):
                shape_of[left] = larger[-1]
        rows = np.bincount(shape_of, minlength=len(self.shapes))
        return np.argsort(shape_of, kind="stable"), np.ones(len(S), np.uint8), rows


def bucket_lengths(S: np.ndarray, T: np.ndarray, number: int) -> list[tuple[int, int]]:
    """At most `number` pairs of lengths, chosen for little padding.

    The first has room for all. Each further one is the one that saves the most positions, where
    every pair takes the smallest that has room for it.
    """
    pairs_ST = np.zeros((S.max() // LENGTH_MULTIPLE + 2, T.max() // LENGTH_MULTIPLE + 2), np.int64)
    cells = [round_up(lengths) // LENGTH_MULTIPLE for lengths in (S, T)]
    np.add.at(pairs_ST, tuple(cells), 1)
    cells_C2 = np.argwhere(pairs_ST) * LENGTH_MULTIPLE
    pairs_C = pairs_ST[pairs_ST > 0]
    chosen = [tuple(cells_C2.max(axis=0).tolist())]
    taken_C = np.full(len(cells_C2), sum(chosen[0]))  # positions of a pair
    while len(chosen) < number:
        saved, (s, t) = best_addition(cells_C2, pairs_C, taken_C)
        if not saved:
            break
        chosen.append((s, t))
        inside_C = np.all(cells_C2 <= (s, t), axis=1)
        taken_C[inside_C] = np.minimum(taken_C[inside_C], s + t)
    return chosen


def best_addition(
    cells_C2: np.ndarray, pairs_C: np.ndarray, taken_C: np.ndarray
) -> tuple[int, tuple[int, int]]:
    """Positions saved, and the pair of lengths that saves them."""
    best, choices_T = (0, (0, 0)), np.unique(cells_C2[:, 1])
    for s in np.unique(cells_C2[:, 0]):
        inside = cells_C2[:, 0] <= s
        saved_CT = taken_C[inside, None] - (s + choices_T)[None, :]
        fits_CT = cells_C2[inside, 1, None] <= choices_T[None, :]
        saved_T = pairs_C[inside] @ np.where(fits_CT, saved_CT.clip(min=0), 0)
        most = saved_T.argmax()
        best = max(best, (int(saved_T[most]), (int(s), int(choices_T[most]))))
    return best


class Packing:
    """As many pairs a row as have room in it, in one shape; masks keep them apart.

    A row has `length` positions for the language that takes more, and fewer for the other, in
    proportion to what the pairs take.
    """

    def __init__(self, S: np.ndarray, T: np.ndarray, batch_tokens: int, length: int):
        longer = int(max(S.sum(), T.sum()))
        sides = [max(int(N.max()), round_up(-(-int(N.sum()) * length // longer))) for N in (S, T)]
        self.S, self.T = (min(side, length) for side in sides)
        self.shapes = [(rows_that_fit(batch_tokens, length), self.S, self.T)]

    def fits(self, S: np.ndarray, T: np.ndarray) -> np.ndarray:
        _, row_S, row_T = self.shapes[0]
        return (row_S >= S) & (row_T >= T)

    def arrange(self, S: np.ndarray, T: np.ndarray) -> Arrangement:
        """Rows in the order of their first pairs."""
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
        """The pairs in the order of their rows, and how many stand in each row.

        All rows are filled at once, in rounds: in each round every row takes the largest pair
        that it has room for and that no emptier row has taken, or exchanges it for one alike.
        """
        area = self.S * self.T
        unit = 1 + area // 65535  # sizes and rooms are areas, rounded down to fit `in_order`
        size = (np.maximum(S * self.T, T * self.S) // unit).astype(np.uint16)
        row_of, rows = np.empty(len(S), np.int32), 0
        pool = in_order(size)
        size, S, T = size[pool], S[pool], T[pool]
        while len(pool):
            new = -(-max(S.sum() * self.T, T.sum() * self.S) // area)
            free_S, free_T = np.full(new, self.S, np.int32), np.full(new, self.T, np.int32)
            while len(pool):
                room = (np.minimum(free_S * self.T, free_T * self.S) // unit).astype(np.uint16)
                emptiest = in_order(room)[::-1]
                largest = np.searchsorted(size, room[emptiest], side="right") - 1
                # Strictly decreasing, so that no two rows take the same pair.
                ranks = np.arange(new)
                taken = np.minimum.accumulate(largest + ranks) - ranks
                taken = taken[taken >= 0]
                taking, group = emptiest[: len(taken)], ranks[: len(taken)] * GROUPS // new
                by_row, by_pair = self.exchange(
                    free_S[taking], free_T[taking], S[taken], T[taken], group
                )
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
        first = np.empty(rows, np.int32)
        first[row_of[::-1]] = np.arange(len(row_of), dtype=np.int32)[::-1]  # the last write stays
        rank = np.empty(rows, np.int32)
        rank[np.argsort(first)] = np.arange(rows, dtype=np.int32)
        row_of = rank[row_of]
        return in_order(row_of & 0xFFFF, row_of >> 16), np.bincount(row_of).astype(np.int32)

    def exchange(
        self,
        free_S: np.ndarray,
        free_T: np.ndarray,
        S: np.ndarray,
        T: np.ndarray,
        group: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which row takes which pair, where row i of a group was to take pair i.

        Rows with more room on the source side take the pairs with longer sources, so that both
        sides become full. A row that has no room for its new pair waits for another round.
        """
        area = self.S * self.T
        unit = 1 + 2 * area // 65535
        by_row = in_order((free_S * self.T - free_T * self.S + area) // unit, group)
        by_pair = in_order((S * self.T - T * self.S + area) // unit, group)
        fits = (S[by_pair] <= free_S[by_row]) & (T[by_pair] <= free_T[by_row])
        return by_row[fits], by_pair[fits]


def in_order(*keys: np.ndarray) -> np.ndarray:
    """`np.lexsort` of keys in 16 bits, the last the first; those numpy sorts ten times as fast."""
    order = np.argsort(keys[0].astype(np.uint16), kind="stable").astype(np.int32)
    for key in keys[1:]:
        order = order[np.argsort(key.astype(np.uint16)[order], kind="stable")]
    return order
