"""Which terms an output must contain, and how a vocabulary spells them."""

import re

import pytest

from jformer.data.vocabulary import Vocabulary
from jformer.errors import UserError
from jformer.extras.lexicon import edges, kept_pattern, missing, read_terms, spellings, spellings_in

TEXTS = ["a cat sat on the mat", "der Kater saß auf der Matte", "see https://a.org/b?c=3.5 (7)"]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(TEXTS, 400)


def wanted(text, vocabulary, terms=(), keep=""):
    kept = kept_pattern(keep)
    return [vocabulary.decode(later) for _, later in spellings_in(text, terms, kept, vocabulary)]


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram"])
def test_a_term_is_spelled_as_within_a_sentence_and_at_its_beginning(kind):
    vocabulary = Vocabulary.train(TEXTS * 5, 350, kind)
    for term in ("Kater", "saß auf", "7"):
        first, later = spellings(term, True, vocabulary)
        assert vocabulary.decode(first) == term
        assert vocabulary.encode([f"der {term}"])[0] == vocabulary.encode(["der"])[0] + later
        assert spellings(term, False, vocabulary) == (first, first)


def test_a_term_is_for_whole_words_of_the_source_with_their_case(vocabulary):
    terms = [("cat", "Kater"), ("the mat", "die Matte"), ("c.t", "nie"), ("sat", "saß")]
    assert wanted("the cat sat", vocabulary, terms) == [" Kater", " saß"]
    assert wanted("(cat), on the mat.", vocabulary, terms) == [" Kater", " die Matte"]
    for text in ("cats", "a tomcat", "Cat", "cat2", "_cat", "the  mat"):
        assert wanted(text, vocabulary, terms) == []
    assert wanted("cat cat", vocabulary, [*terms, ("cat", "Kater"), ("cat", "Katze")]) == [
        " Kater",
        " Katze",
    ]


@pytest.mark.parametrize(
    ("keep", "text", "kept"),
    [
        ("numbers", "3 of 1,000.5 at 12:30, not B2B, 7.", [" 3", " 1,000.5", " 12:30", " 7"]),
        ("numbers", "(42) and -5", ["42", "5"]),
        ("tags", "<b>bold</b> <br/> 3 < 4 > 2", [" <b>", "</b>", " <br/>"]),
        (
            "urls",
            "see https://a.org/b?c=3.5, or www.b.de.",
            [" https://a.org/b?c=3.5", " www.b.de"],
        ),
        ("numbers,urls", "4 at http://a.org/5", [" 4", " http://a.org/5"]),
        ("[A-Z]{2,}", "NATO and the UN, NATO", [" NATO", " UN"]),
        ("x*", "none here", []),
        ("", "3 www.b.de <b>", []),
    ],
)
def test_what_is_kept_by_a_name_or_a_pattern(vocabulary, keep, text, kept):
    found = wanted(text, vocabulary, keep=keep)
    # At the beginning of a text the space is that of an output in which it stands elsewhere.
    assert found == kept


@pytest.mark.parametrize("keep", ["number", "numbers,", "(", "[A-"])
def test_a_name_or_a_pattern_that_is_wrong_is_shown(keep):
    with pytest.raises(UserError, match=rf"config\.decode\.search\b.*{re.escape(repr(keep))}"):
        kept_pattern(keep)


def test_terms_that_do_not_stand_in_an_output_are_counted(vocabulary):
    terms = spellings_in("cat mat 7", [("cat", "Kater"), ("mat", "Matte")], None, vocabulary)
    assert missing(terms, "Der Kater.", vocabulary) == 1
    assert missing(terms, "Kater auf Matten", vocabulary) == 1
    assert missing(terms, "(Kater) auf Matte", vocabulary) == 0


@pytest.mark.parametrize("line", ["cat", "cat\t", "\tKater", "cat\tKater\tmehr", ""])
def test_a_line_of_terms_that_is_no_pair_is_named(tmp_path, line):
    path = tmp_path / "terms.tsv"
    path.write_text(f"cat\tKater\n{line}\n")
    with pytest.raises(UserError, match=r"terms\.tsv:2: "):
        read_terms(path)
    path.write_text("cat\tKater\nthe mat\tdie Matte \n")
    assert read_terms(path) == [("cat", "Kater"), ("the mat", "die Matte")]


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram"])
def test_the_edges_of_tokens_are_within_words_or_not(kind):
    vocabulary = Vocabulary.train(TEXTS * 5, 350, kind)
    edges_V2 = edges(vocabulary)
    assert edges_V2.shape == (vocabulary.size, 2)
    for text, within in {"7": (True, True), "(": (False, False), "x": (True, True)}.items():
        (token,) = vocabulary.encode([text])[0][-1:]
        assert tuple(edges_V2[token]) == within
    (*_, later) = vocabulary.encode(["der Kater"])[0]
    assert edges_V2[later, 1]
    assert not edges_V2[:3].any()  # PAD, BOS, EOS
