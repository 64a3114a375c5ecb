"""The embedded corpus: deterministic, parallel in any two locales, and honest about its splits."""

import re
import subprocess
import sys

import pytest

from jformer.data.phrases import (
    HELD_OUT_SHARE,
    make_splits,
    names_of,
    parse_locale,
    shared_names,
    split_names,
)
from jformer.errors import UserError

NUMBER = 3000


@pytest.fixture(scope="module")
def splits():
    return make_splits("en", "de", NUMBER, seed=0)


def test_the_same_seed_gives_the_same_corpus_in_another_process(splits):
    program = (
        "from jformer.data.phrases import make_splits\n"
        f"import hashlib; s = make_splits('en', 'de', {NUMBER}, 0)\n"
        "print(hashlib.sha256(repr(s).encode()).hexdigest())"
    )
    import hashlib

    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "LC_ALL": "C"},
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }  # fmt: skip
    assert outputs == {hashlib.sha256(repr(splits).encode()).hexdigest()}


def test_another_seed_gives_another_corpus(splits):
    assert make_splits("en", "de", NUMBER, seed=1)["test"] != splits["test"]


def test_no_source_phrase_stands_in_two_splits(splits):
    sources = [source for texts in splits.values() for source in texts[0]]
    assert len(sources) == len(set(sources))
    assert len(sources) > 0.9 * NUMBER


def test_names_of_the_second_test_slice_never_occur_in_the_other_splits(splits):
    import random

    locale = parse_locale("en")
    names = shared_names(locale, parse_locale("de"))
    _, held_out = split_names(names, random.Random("0 en de"))
    unseen = names_of(held_out, locale)
    assert len(unseen) == pytest.approx(HELD_OUT_SHARE * len(names_of(names, locale)), abs=3)
    has_unseen = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, unseen)) + r")(?!\w)").search
    for split in ("train", "validation", "test"):
        assert not any(has_unseen(source) for source in splits[split][0])
    assert all(has_unseen(source) for source in splits["test_unseen_names"][0])


def test_spaces_are_plain(splits):
    for sources, targets in splits.values():
        assert not re.search("[\u00a0\u202f\u2009]", "".join(sources + targets))


def test_sides_say_the_same(splits):
    pairs = dict(zip(*splits["train"], strict=True))
    days = {s: t for s, t in pairs.items() if re.fullmatch(r"(March|May) \d+, \d+", s)}
    assert days
    months = {"March": "März", "May": "Mai"}
    for source, target in days.items():
        month, day, year = re.split(r",? ", source)
        assert target == f"{day}. {months[month]} {year}"


@pytest.mark.parametrize(("source", "target"), [("sv", "ja"), ("ar", "pt_BR"), ("zh-Hant", "hi")])
def test_any_two_locales_have_a_corpus(source, target):
    splits = make_splits(source, target, 1000, seed=0)
    assert {name: len(texts[0]) for name, texts in splits.items()} == {
        "train": pytest.approx(850, abs=10),
        "validation": pytest.approx(50, abs=2),
        "test": pytest.approx(50, abs=2),
        "test_unseen_names": pytest.approx(50, abs=2),
    }
    assert all(texts[0] and all(texts[0]) and all(texts[1]) for texts in splits.values())


def test_a_locale_that_cldr_lacks_is_named():
    with pytest.raises(UserError, match="CLDR has no locale 'xx'"):
        make_splits("en", "xx", 1000, seed=0)
