"""How pairs of different lengths fill batches of few static shapes: one pair a row, or several.

A layout has `shapes`, `(B, S, T)` each, compiled once. It says of pairs of S source and T target
positions whether it has room for them (`fits`), and arranges them in rows (`arrange`). `B * S` and
`B * T` are at most the batch's tokens, padding included.
"""

import numpy as np

LENGTH_MULTIPLE = 4  # of bucket lengths: finer ones would gain little and compile as often
ROW_MULTIPLE = 8  # of batch rows, so that they divide among devices

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
    """At most `number` pairs of lengths with room for all, chosen for little padding.

    Cut the pairs in two by a length of either side, where that saves the most positions; then the
    part whose best cut saves the most; and so on.
    """
    cells, pairs = np.unique(np.stack([round_up(S), round_up(T)], 1), axis=0, return_counts=True)
    parts = [best_cut(np.column_stack([cells, pairs]))]
    while len(parts) < number:
        most = max(range(len(parts)), key=lambda i: parts[i][0])
        saved, part, cut = parts[most]
        if not saved:
            break
        parts[most : most + 1] = [best_cut(part[:cut]), best_cut(part[cut:])]
    return [(int(part[:, 0].max()), int(part[:, 1].max())) for _, part, _ in parts]


def best_cut(cells_C3: np.ndarray) -> tuple[int, np.ndarray, int]:
    """Positions saved, the cells (S, T, pairs) in an order, and where in it to cut them in two."""

    def positions(cells_C3):
        """That the first cells take in one bucket, for each number of them."""
        S, T, pairs = cells_C3.T
        return np.cumsum(pairs) * (np.maximum.accumulate(S) + np.maximum.accumulate(T))

    best = (0, cells_C3, 0)
    for axis in (0, 1):
        cells = cells_C3[np.argsort(cells_C3[:, axis], kind="stable")]
        below, above = positions(cells), positions(cells[::-1])[::-1]
        saved = np.where(np.diff(cells[:, axis]) > 0, below[-1] - below[:-1] - above[1:], 0)
        if len(saved) and saved.max() > best[0]:
            best = (int(saved.max()), cells, int(saved.argmax()) + 1)
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
        row_of, rows = self.fill(S, T)
        first = np.empty(rows, np.int32)
        first[row_of[::-1]] = np.arange(len(S), dtype=np.int32)[::-1]  # the last write stays
        rank = np.empty(rows, np.int32)
        rank[np.argsort(first)] = np.arange(rows, dtype=np.int32)
        row_of = rank[row_of]
        return np.argsort(row_of, kind="stable"), np.bincount(row_of), np.array([rows])

    def fill(self, S: np.ndarray, T: np.ndarray) -> tuple[np.ndarray, int]:
        """The row of each pair, and the number of rows.

        All rows are filled at once, in rounds: in each round every row takes the largest pair
        that it has room for and that no emptier row has taken.
        """
        size = np.maximum(S * self.T, T * self.S)  # the fuller side of an otherwise empty row
        pool = np.argsort(size, kind="stable")
        row_of = np.empty(len(S), np.int32)
        rows = 0
        while len(pool):
            new = -(-max(S[pool].sum() * self.T, T[pool].sum() * self.S) // (self.S * self.T))
            free_S, free_T = np.full(new, self.S), np.full(new, self.T)
            while len(pool):
                room = np.minimum(free_S * self.T, free_T * self.S)
                emptiest = np.argsort(-room, kind="stable")
                largest = np.searchsorted(size[pool], room[emptiest], side="right") - 1
                # Strictly decreasing, so that no two rows take the same pair.
                ranks = np.arange(new)
                taken = np.minimum.accumulate(largest + ranks) - ranks
                taking, taken = emptiest[taken >= 0], taken[taken >= 0]
                if not len(taken):
                    break
                row_of[pool[taken]] = rows + taking
                free_S[taking] -= S[pool[taken]]
                free_T[taking] -= T[pool[taken]]
                pool = np.delete(pool, taken)
            rows += new
        return row_of, rows
