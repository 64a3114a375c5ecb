"""Groups by the length of the source, each scored as if it were alone."""

import pytest

from jformer.errors import UserError
from jformer.evaluation.scores import by_length, score
from tests.evaluation.noise import sentences, worsened

REFERENCE = sentences(83, longest=70)
OTHER_REFERENCE = worsened(REFERENCE, 0.2, seed=3)
OUTPUT = worsened(REFERENCE, 0.3)
SOURCE = [line.upper() for line in REFERENCE]


def of(words: list[int]) -> list[str]:
    """Sources of so many words."""
    return [" ".join(["ein"] * number) for number in words]


def test_a_group_scores_as_its_sentences_alone():
    lines = [i for i, source in enumerate(SOURCE) if 21 <= len(source.split()) <= 30]
    group = {found["words"]: found for found in by_length(SOURCE, OUTPUT, [REFERENCE])}["21-30"]
    output, reference = ([side[i] for i in lines] for side in (OUTPUT, REFERENCE))
    alone = score(output, [reference], "de")
    assert 0 < group["pairs"] == len(lines) < len(SOURCE)
    assert (group["bleu"], group["chrf"]) == (alone["bleu"], alone["chrf"])


def test_all_references_count():
    one = by_length(SOURCE, OUTPUT, [REFERENCE])
    two = by_length(SOURCE, OUTPUT, [REFERENCE, OTHER_REFERENCE])
    assert all(b["bleu"] > a["bleu"] for a, b in zip(one, two, strict=True))


def test_every_pair_is_in_one_group():
    groups = by_length(SOURCE, OUTPUT, [REFERENCE])
    assert sum(group["pairs"] for group in groups) == len(SOURCE)
    assert [group["words"] for group in groups] == [
        "1-10", "11-20", "21-30", "31-40", "41-60", "61+"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "group"),
    [(0, "1-10"), (1, "1-10"), (10, "1-10"), (11, "11-20"), (60, "41-60"), (61, "61+")],
)
def test_a_source_belongs_to_the_group_of_its_words(words, group):
    (found,) = by_length(of([words]), ["der Hund"], [["der Hund"]])
    assert found["words"] == group


def test_groups_without_pairs_are_left_out():
    groups = by_length(of([5, 35]), ["der", "die"], [["der", "die"]])
    assert [(group["words"], group["pairs"]) for group in groups] == [("1-10", 1), ("31-40", 1)]


def test_the_length_ratio_is_of_words_put_out_to_words_of_the_reference():
    groups = by_length(of([3, 4, 15]), ["a", "b c", "d e f"], [["a b c", "d e f", "g h"]])
    assert [group["length_ratio"] for group in groups] == [3 / 6, 3 / 2]


def test_sources_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"83\b.*82\b"):
        by_length(SOURCE[1:], OUTPUT, [REFERENCE])
