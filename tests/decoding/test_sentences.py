"""Where a long text is taken apart."""

# ruff: noqa: RUF001  sentence ends of other scripts look like ours

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jformer.data.vocabulary import Vocabulary
from jformer.decoding.scoring import words_of
from jformer.decoding.sentences import join_texts, pieces, split

YES, NO = "\u306f\u3044\u3002", "\u3044\u3044\u3048\u3002"  # in Japanese
TEXTS = ["the old house.", "das alte Haus!", YES + NO]


@pytest.fixture(scope="module", params=["byte_bpe", "unigram"])
def vocabulary(request):
    size = {"byte_bpe": 280, "unigram": 310}[request.param]
    return Vocabulary.train(TEXTS, size, request.param)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two!  Three?", ["One.", " Two!", "  Three?"]),
        ('He said "no." Then (yes!) it went.', ['He said "no."', " Then (yes!)", " it went."]),
        (YES + NO, [YES, NO]),
        ("3.5 is 7/2 ", ["3.5 is 7/2 "]),
        ("... and so", ["...", " and so"]),
        ("", []),
        ("यह एक है। यह दो है।", ["यह एक है।", " यह दो है।"]),
        ("「三つ目です。」四つ目。", ["「三つ目です。」", "四つ目。"]),
        ("一。”二！（三？）四。“五。”", ["一。”", "二！", "（三？）", "四。", "“五。”"]),
        ('He left ("Why?"). „Ja.“ Gut.', ['He left ("Why?").', " „Ja.“", " Gut."]),
    ],
)  # fmt: skip
def test_sentences_end_at_their_marks(text, sentences):
    assert split(text) == sentences


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (["Ein Satz.", "Noch einer."], "Ein Satz. Noch einer."),
        (["一つ目。", "二つ目。"], "一つ目。二つ目。"),
        (["第一句OK", "第二句。"], "第一句OK第二句。"),
        (["ประโยคหนึ่ง", "ประโยคสอง"], "ประโยคหนึ่งประโยคสอง"),
        (["한 문장.", "", "두 문장."], "한 문장. 두 문장."),
        (["यह एक है।", "यह दो है।"], "यह एक है। यह दो है।"),
    ],
)
def test_translations_are_joined_with_a_space_unless_their_script_has_none(parts, joined):
    assert join_texts(parts) == joined


@given(text=st.text("ab .!\u3002\n", max_size=40), longest=st.integers(1, 12))
def test_pieces_fit_hold_all_of_the_text_and_know_the_word_they_begin_in(vocabulary, text, longest):
    words, together = text.split(), ""
    for ids, first_word, _ in pieces(text, longest, vocabulary.encode):
        assert 0 < len(ids) <= longest
        piece = vocabulary.decode(ids)
        within = len("".join(words[:first_word]))
        assert within <= len(together) < within + len(words[first_word])
        last = words_of(ids, vocabulary).max() + first_word
        together += "".join(piece.split())
        assert len("".join(words[: last + 1])) >= len(together)
    assert together == "".join(words)


def test_a_long_sentence_is_cut_between_words_as_late_as_they_fit(vocabulary):
    text = "the old house das alte Haus"
    size = len(vocabulary.encode(["the old house das"])[0])
    found = [
        (vocabulary.decode(ids).strip(), word)
        for ids, word, _ in pieces(text, size, vocabulary.encode)
    ]
    assert found[0] == ("the old house das", 0)
    assert found[1][0].split()[0] == "alte"
    assert found[1][1] == 4
