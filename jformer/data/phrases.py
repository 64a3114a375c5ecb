"""The built-in corpus: phrases of Unicode's CLDR in English and German.

It needs no network. Scores on it show whether a Transformer trains and decodes, not how well it
would translate text. `tests/data/make_phrases.py` generated the file.
"""

import gzip
from pathlib import Path

from jformer.errors import UserError

FILE = Path(__file__).with_name("phrases.tsv.gz")  # its columns: split, English, German
COLUMNS = {"en": 1, "de": 2}
PAIRS = 40_000
SPLIT_PAIRS = 1000  # in each of validation, test and test_unseen_names


def read_phrases(
    source: str, target: str, pairs: int = PAIRS
) -> dict[str, tuple[list[str], list[str]]]:
    """Return `{split: (source phrases, target phrases)}`, the first `pairs` of the corpus.

    `test` has new combinations of names seen in training. Each phrase of `test_unseen_names` has a
    name that no training phrase has. These two and `validation` have a twentieth of the pairs each.
    """
    if {source, target} != {*COLUMNS} or not 20 <= pairs <= PAIRS:
        raise UserError(
            f"config.data.name=phrases: has 20 to {PAIRS:,} pairs in en and de, not {pairs:,} in "
            f"{source}-{target}; for other text, set config.data.name=files"
        )
    held_out = min(SPLIT_PAIRS, pairs // 20)
    sizes = dict.fromkeys(("validation", "test", "test_unseen_names"), held_out)
    sizes["train"] = pairs - sum(sizes.values())
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    splits = {}
    for split, size in sizes.items():
        kept = [row for row in rows if row[0] == split][:size]
        sources = [row[COLUMNS[source]] for row in kept]
        targets = [row[COLUMNS[target]] for row in kept]
        splits[split] = (sources, targets)
    return splits
