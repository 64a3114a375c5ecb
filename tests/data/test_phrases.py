"""The built-in corpus: deterministic, parallel, and honest about its splits."""

import hashlib
import json
import random
import re

import pytest

from jformer.data.phrases import (
    HELD_OUT_SHARE,
    make_splits,
    names_of,
    open_locales,
    shared_names,
    split_names,
)
from jformer.errors import UserError

NUMBER = 3000


@pytest.fixture(scope="module")
def splits():
    return make_splits("en", "de", NUMBER, seed=0)


@pytest.mark.parametrize(
    ("source", "target", "number", "expected"),
    [
        # The corpus of the README's scores, as Babel 2.19.0 words it: another hash, other scores.
        ("en", "de", 40_000, "abea7414dc14b245d52b7a8ecd50b80c2df5f2c76e39f125ceef36adbfa41cf9"),
        ("de", "en", NUMBER, "6e3ada42cd5b70c456d1f8bb68b2addc624d5e7d7afb4541c2ce68d63179c976"),
    ],
)
def test_english_and_german_are_the_same_corpus_for_ever(source, target, number, expected):
    splits = make_splits(source, target, number, seed=0)
    assert hashlib.sha256(json.dumps(splits).encode()).hexdigest() == expected


def test_the_stored_locales_are_those_of_the_babel_that_they_come_from():
    make_cldr = pytest.importorskip("tests.data.make_cldr", reason="requires babel")
    stored = make_cldr.FILE.read_text(encoding="utf-8")
    if make_cldr.babel.__version__ != json.loads(stored)["about"]["babel"]:
        pytest.skip("another Babel words some phrases in another way")
    assert make_cldr.stored() == stored


def test_no_source_phrase_stands_in_two_splits(splits):
    sources = [source for texts in splits.values() for source in texts[0]]
    assert len(sources) == len(set(sources))
    assert len(sources) > 0.9 * NUMBER


def test_names_of_the_second_test_slice_never_occur_in_the_other_splits(splits):
    locale, target = open_locales("en", "de")
    names = shared_names(locale, target)
    _, held_out = split_names(names, random.Random("0 en de"))
    unseen = names_of(held_out, locale)
    assert len(unseen) == pytest.approx(HELD_OUT_SHARE * len(names_of(names, locale)), abs=3)
    has_unseen = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, unseen)) + r")(?!\w)").search
    for split in ("train", "validation", "test"):
        assert not any(has_unseen(source) for source in splits[split][0])
    assert all(has_unseen(source) for source in splits["test_unseen_names"][0])


def test_another_language_is_named():
    with pytest.raises(UserError, match=r"phrases.*'xx'"):
        make_splits("en", "xx", 1000, seed=0)
