"""Scores are sacreBLEU's and Moses' own, and say how they were made."""

import json
import logging
import math
from collections import Counter

import pytest

from jformer.errors import UserError
from jformer.evaluation import scores
from jformer.evaluation.scores import bleu, moses_words, score, split_compounds
from tests.evaluation.noise import sacrebleu, sentences, worsened

REFERENCE = sentences(61)
OTHER_REFERENCE = worsened(REFERENCE, 0.2, seed=3)
OUTPUT = worsened(REFERENCE, 0.3)
MATCH = pytest.approx  # of floats; sacreBLEU's command prints 6 decimals


@pytest.mark.parametrize("references", [[REFERENCE], [REFERENCE, OTHER_REFERENCE]])
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("-m bleu --confidence", ["bleu"]),
        ("-m bleu -lc", ["bleu_lowercase"]),
        ("-m chrf ter", ["chrf", "ter"]),
    ],
)
def test_scores_and_signatures_equal_those_of_sacrebleus_own_command(
    tmp_path, references, options, names
):
    told = json.loads(sacrebleu(tmp_path, references, [OUTPUT], *options.split()))
    found = score(OUTPUT, references, "de")
    for name, expected in zip(names, told if isinstance(told, list) else [told], strict=True):
        assert found[name] == MATCH(expected["score"], abs=1e-6)
        assert found[scores.SIGNATURES[name]] == expected["signature"]
        if "confidence_mean" in expected:
            mean, half = expected["confidence_mean"], expected["confidence_var"]
            assert found["bleu_interval"] == MATCH([mean - half, mean + half], abs=1e-6)


def test_the_interval_contains_the_score():
    found = score(OUTPUT, [REFERENCE], "de")
    low, high = found["bleu_interval"]
    assert low < found["bleu"] < high


def test_the_interval_stays_within_what_a_score_can_be():
    nearly = [*REFERENCE[:-1], "der"]
    assert score(nearly, [REFERENCE], "de")["bleu_interval"][1] == 100


def test_more_pairs_than_fit_in_memory_have_no_interval(monkeypatch):
    monkeypatch.setattr(scores, "MOST_PAIRS", 60)
    found = score(OUTPUT, [REFERENCE], "de")
    assert "bleu_interval" not in found
    assert "bs:" not in found["signature"]


def test_a_perfect_translation_scores_a_hundred():
    found = score(REFERENCE, [REFERENCE], "de")
    moses = ("bleu_moses", "bleu_moses_lowercase", "bleu_moses_compounds")
    for name in ("bleu", "bleu_lowercase", *moses, "chrf"):
        assert found[name] == MATCH(100)
    assert found["ter"] == 0


def multi_bleu(hypotheses: list[str], references: list[list[str]]) -> float:
    """BLEU of words between spaces by its definition (Papineni et al., 2002), not smoothed."""
    matches, totals, length, closest = Counter(), Counter(), 0, 0
    for hypothesis, *others in zip(hypotheses, *references, strict=True):
        words, sides = hypothesis.split(), [other.split() for other in others]
        length += len(words)
        closest += min((abs(len(words) - len(side)), len(side)) for side in sides)[1]
        for n in (1, 2, 3, 4):
            grams, *seen = (
                Counter(zip(*(side[i:] for i in range(n)), strict=False))
                for side in (words, *sides)
            )
            totals[n] += sum(grams.values())
            matches[n] += sum(min(k, max(s[gram] for s in seen)) for gram, k in grams.items())
    if not all(matches[n] for n in (1, 2, 3, 4)):
        return 0.0
    precision = math.prod(matches[n] / totals[n] for n in (1, 2, 3, 4)) ** 0.25
    return 100 * precision * min(1.0, math.exp(1 - closest / length))


@pytest.mark.parametrize("references", [[REFERENCE], [REFERENCE, OTHER_REFERENCE]])
def test_bleu_of_moses_words_is_bleu_by_its_definition(references):
    streams = moses_words([OUTPUT, *references], "de")
    split = [[split_compounds(line) for line in stream] for stream in streams]
    found = score(OUTPUT, references, "de")
    assert found["bleu_moses"] == MATCH(multi_bleu(streams[0], streams[1:]), abs=1e-9)
    assert found["bleu_moses_compounds"] == MATCH(multi_bleu(split[0], split[1:]), abs=1e-9)
    assert found["bleu_moses"] != found["bleu_moses_compounds"]
    lower = moses_words([[line.lower() for line in side] for side in (OUTPUT, *references)], "de")
    assert found["bleu_moses_lowercase"] == MATCH(multi_bleu(lower[0], lower[1:]), abs=1e-9)


def test_case_is_lost_before_text_is_cut_into_words():
    # A full stop before a small letter is no end of a sentence to Moses, and stays at its word.
    found = score(["ein hund. eine katze"], [["Ein Hund. Eine Katze"]], "de")
    assert found["bleu_moses_lowercase"] == MATCH(100)


def test_bleu_of_moses_words_is_not_smoothed():
    found = score(["a b c x d e f"], [["a b c d e f"]], "en")
    assert found["bleu_moses"] == 0  # three words in a row match, and no four
    assert found["bleu"] > 0


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        # What Moses' own tokenizer.perl makes of them.
        ("de", "bzw. Haus, geht's 3,5 km?", "bzw. Haus , geht &apos; s 3,5 km ?"),
        ("en", "bzw. Haus, it's 3,5 km?", "bzw . Haus , it &apos;s 3,5 km ?"),
        ("fr", "l'eau (5%) & l'or...", "l&apos; eau ( 5 % ) &amp; l&apos; or ..."),
        # After Moses' replace-unicode-punctuation.perl.
        ("de", "\u201cgut\u201d\u2026 geht\u2019s", "&quot; gut &quot; ... geht &apos; s"),
    ],
)
def test_text_is_cut_into_the_words_of_moses(language, text, expected):
    assert moses_words([[text]], language) == [[expected]]


def test_typographic_punctuation_of_either_side_matches_plain_one():
    plain, typographic = "so geht's nun hier (gut)", "so geht\u2019s nun hier \uff08gut\uff09"
    assert score([plain], [[typographic]], "de")["bleu_moses"] == MATCH(100)
    assert score([typographic], [[plain]], "de")["bleu_moses"] == MATCH(100)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("well-to-do", "well ##AT##-##AT## to ##AT##-##AT## do"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # matches do not overlap
        ("x--y", "x ##AT##-##AT## -y"),
        ("-a b- - c", "-a b- - c"),
    ],
)
def test_compounds_are_split_at_hyphens_within_words(words, expected):
    assert split_compounds(words) == expected


def test_signatures_name_what_was_done():
    found = score(OUTPUT, [REFERENCE], "de_AT")
    assert "case:mixed" in found["signature"]
    assert "tok:13a" in found["signature"]
    assert "case:lc" in found["signature_lowercase"]
    assert "tok:moses-de|smooth:none|punctuation:replaced|sacremoses:" in found["signature_moses"]
    assert "compounds" not in found["signature_moses"]
    assert "case:lc" in found["signature_moses_lowercase"]
    assert "tok:moses-de|" in found["signature_moses_lowercase"]
    assert "compounds:split" in found["signature_moses_compounds"]


def test_the_language_of_a_locale_sets_moses_words():
    text = ["Haus bzw. Hund und Katze"]  # an abbreviation of German alone
    found = {
        language: score(text, [["Haus bzw . Hund und Katze"]], language)["bleu_moses"]
        for language in ("de", "de_AT", "de-AT", "en", "tlh")  # Moses has no rules for Klingon
    }
    assert found["de"] == found["de_AT"] == found["de-AT"] < 100
    assert found["en"] == found["tlh"] == MATCH(100)


@pytest.mark.parametrize(
    ("hypotheses", "targets"),
    [
        (["", "der Hund"], ["der Hund", "das Haus"]),
        (["", ""], ["der Hund", "das Haus"]),
        ([""], ["der Hund und das Haus"]),
        (["Hund"], ["Hund"]),
        (["der Hund"], [""]),
    ],
)
def test_empty_and_single_sentences_have_scores(hypotheses, targets):
    found = score(hypotheses, [targets], "de")
    numbers = [found[name] for name in scores.SIGNATURES] + found["bleu_interval"]
    assert all(math.isfinite(number) for number in numbers)


def test_bleu_alone_is_that_of_all_scores():
    assert bleu(OUTPUT, REFERENCE) == score(OUTPUT, [REFERENCE], "de")["bleu"]


def test_text_that_looks_tokenized_is_warned_of_once_and_not_while_training(caplog):
    caplog.set_level(logging.WARNING)
    tokenized = ["der Hund und das Haus ."] * 100
    bleu(tokenized, tokenized)
    assert not caplog.records
    score(tokenized, [tokenized], "de")
    assert sum("100 lines" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("references", [[], [REFERENCE, REFERENCE[:-1]], [[*REFERENCE, "der"]]])
def test_references_that_do_not_fit_are_refused(references):
    with pytest.raises(UserError, match=r"references|61\b.*6[02]\b"):
        score(OUTPUT, references, "de")


def test_no_sentences_are_refused_in_one_line():
    with pytest.raises(UserError):
        score([], [[]], "de")


def test_one_stream_in_place_of_streams_is_refused():
    with pytest.raises(TypeError, match="references"):
        score(OUTPUT, REFERENCE, "de")
