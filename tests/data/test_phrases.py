"""The built-in corpus: parallel, the same for ever, and without overlap between its splits."""

import gzip

import pytest

from jformer.data.datasets import PHRASES, read_phrases
from jformer.errors import UserError
from tests.data import make_phrases


def test_the_stored_file_is_that_of_its_generator():
    with gzip.open(PHRASES, "rt", encoding="utf-8") as file:
        assert list(file) == list(make_phrases.lines())


def test_no_english_phrase_is_in_two_splits():
    phrases = [pair[0] for pairs in read_phrases("en", "de").values() for pair in pairs]
    assert len(phrases) == len(set(phrases)) == 40_000


def test_each_phrase_of_test_unseen_names_has_a_name_that_no_other_split_has():
    splits = read_phrases("en", "de")
    has_unseen_name = make_phrases.any_of(make_phrases.unseen_names())
    assert all(has_unseen_name(english) for english, _ in splits.pop("test_unseen_names"))
    assert not any(has_unseen_name(english) for pairs in splits.values() for english, _ in pairs)


def test_a_part_of_the_corpus_is_its_beginning_in_either_direction():
    whole, part = read_phrases("en", "de"), read_phrases("de", "en", 1000)
    sizes = {"validation": 50, "test": 50, "test_unseen_names": 50, "train": 850}
    for name, pairs in whole.items():
        assert part[name] == [pair[::-1] for pair in pairs[: sizes[name]]]


def test_other_languages_are_refused():
    with pytest.raises(UserError, match=r"phrases.*en-xx"):
        read_phrases("en", "xx")
