"""The BPE is lossless for any text, and saved as it is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jformer.config import EOS, UserError
from jformer.data.vocabulary import SPECIAL_TOKENS, Vocabulary

TEXTS = ["der Hund und die Katze", "ein Hund, 1234 Katzen", "the dog and the cat"] * 5


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(TEXTS, 320)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_unicode_text_survives_the_round_trip(vocabulary, text):
    assert vocabulary.decode(vocabulary.encode([text])[0]) == text


@pytest.mark.parametrize(
    "text", [*SPECIAL_TOKENS, "a</s>b", "  two  spaces ", "\u2028\u0085\x00", ""]
)
def test_text_that_looks_special_survives_the_round_trip(vocabulary, text):
    ids = vocabulary.encode([text])[0]
    assert vocabulary.decode(ids) == text
    assert not set(ids) & {0, 1, 2}


def test_decoding_stops_at_the_first_eos_and_needs_none(vocabulary):
    ids = vocabulary.encode(["der Hund", "die Katze"])
    assert vocabulary.decode([1, *ids[0], EOS, *ids[1], 0]) == "der Hund"
    assert vocabulary.decode([*ids[0], *ids[1]]) == "der Hunddie Katze"


def test_a_loaded_vocabulary_gives_the_same_ids_and_hash(vocabulary, tmp_path):
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    text = "die Katze </s> 12"
    assert loaded.encode([text])[0] == vocabulary.encode([text])[0]
    assert loaded.decode(loaded.encode([text])[0]) == text
    assert loaded.hash == vocabulary.hash != Vocabulary.train(TEXTS[:1], 300).hash


def test_digits_stand_alone(vocabulary):
    assert len(vocabulary.encode(["1234"])[0]) == 4


def test_size_is_at_most_what_was_asked(vocabulary):
    assert vocabulary.size <= 320
    assert Vocabulary.train(TEXTS, 270).size == 270


def test_a_missing_vocabulary_is_named(tmp_path):
    with pytest.raises(UserError, match=r"vocabulary\.json: no such file"):
        Vocabulary.load(tmp_path / "vocabulary.json")


def test_one_string_is_not_taken_for_a_list_of_letters():
    with pytest.raises(TypeError, match="a list of texts, got one string"):
        Vocabulary.train(["ab"], 260).encode("ab")
