"""Terms that an output must contain: against brute force, and which terms a source has."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jformer import load
from jformer.config import PAD, DecodeConfig
from jformer.data.vocabulary import Vocabulary
from jformer.errors import UserError
from jformer.extras.terms import (
    MAX_TERMS,
    MAX_TOKENS,
    Progress,
    Terms,
    deal,
    follow,
    state_of,
    terms,
    tokens_met,
)
from tests.decoding.machines import B, V, exhaustive, log_prob_of, random_machine, search

CLOSE = 1e-4  # of sums of up to seven float32 log-probabilities around -2
CLEAR = 1e-5  # choices closer than that are left to rounding
WIDE = 48  # two words make 16 hypotheses of four tokens; each has three continuations
A, C, D = 3, 4, 5
SEEDS = st.integers(0, 10**6)
# Of the two words of a machine, at the beginning and elsewhere.
TWO_WORDS = st.lists(st.sampled_from([A, C]), min_size=1, max_size=3)
TERMS = st.lists(st.tuples(TWO_WORDS, TWO_WORDS), min_size=1, max_size=2)
CONTINUING = (4, 6)  # the tokens that continue the word before
LETTERS_V = jnp.isin(jnp.arange(V), jnp.array(CONTINUING))
CONSTRAINT = Terms(LETTERS_V, None, None)


def arrays(sentences):
    """The input of the search, for the spellings of the terms of each sentence."""
    terms_BCKL = np.full((B, 2, 2, 3), PAD, np.int32)
    for b, of_sentence in enumerate(sentences):
        for c, spellings in enumerate(of_sentence):
            for k, tokens in enumerate(spellings):
                terms_BCKL[b, c, k, : len(tokens)] = tokens
    progress = Progress(np.zeros(terms_BCKL.shape, bool), np.zeros((B, 2), bool))
    return (terms_BCKL, np.ones((B, 2), bool)), progress


def constrained(W, machines, limits, sentences, **changes):
    config = DecodeConfig(beam_size=W, **changes)
    return search(config, machines, limits, constraint=CONSTRAINT, given=arrays(sentences))[1]


def contains(spellings, tokens):
    """As whole words: a token that continues the term's word may not follow it."""
    first, later = spellings
    return any(
        tokens[i : i + len(spelling)] == spelling
        and not any(tokens[i + len(spelling) :][:1] == [token] for token in CONTINUING)
        for spelling, starts in ((first, [0]), (later, range(1, len(tokens))))
        for i in starts
    )


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(2, 5), st.floats(0, 2), TERMS)
def test_a_beam_as_wide_as_the_space_finds_the_best_that_has_the_terms(seed, limit, alpha, wanted):
    machine = random_machine(seed, 2)
    ended, _ = exhaustive(machine, limit, DecodeConfig(beam_size=WIDE, length_penalty=alpha))
    having = [each for each in ended if all(contains(term, each.tokens) for term in wanted)]
    assume(having)
    assume(len(having) == 1 or having[0].score - having[1].score > CLEAR)
    best = constrained(WIDE, [machine], [limit], [wanted], length_penalty=alpha)[0][0]
    assert best.tokens == having[0].tokens
    assert best.score == pytest.approx(having[0].score, abs=CLOSE)


@pytest.mark.parametrize("seed", range(5))
def test_a_narrow_beam_meets_its_terms_and_sentences_without_terms_do_not_change(seed):
    machines = [random_machine(seed + 1000 * i, 5) for i in range(3)]
    wanted = [([A, C], [D, A]), ([C], [C])]
    for W in (1, 3):
        free = search(DecodeConfig(beam_size=W), machines, [7, 7, 7])[1]
        first, (best, *_), last = constrained(W, machines, [7, 7, 7], [[], wanted, []])
        assert (first, last) == (free[0], free[2])
        assert all(contains(term, best.tokens) for term in wanted)
        # Its score is the model's own.
        assert best.log_prob == pytest.approx(log_prob_of(machines[1], best.tokens), abs=CLOSE)


def followed(wanted, histories_WT):
    """The progress after each token, and the number of tokens met."""
    given, progress_B = jax.tree.map(lambda x: jnp.array(x[0]), arrays([wanted]))
    W = len(histories_WT)
    progress = jax.tree.map(lambda x: jnp.broadcast_to(x, (W, *x.shape)), progress_B)
    step = jax.jit(follow)
    for t, tokens_W in enumerate(np.array(histories_WT, np.int32).T):
        progress = step(given, progress, tokens_W, LETTERS_V[tokens_W], t)
        _, has_WC = state_of(given[0], progress)
        yield has_WC.tolist(), tokens_met(given[0], progress).tolist()


def test_a_term_that_begins_again_within_itself_is_found():
    """A A C in A A A C, and all other histories of two words."""
    wanted = [([C, C], [A, A, C]), ([A], [C, A, C])]
    histories_WT = [*itertools.product([A, C], repeat=6)]
    for t, (has_WC, _) in enumerate(followed(wanted, histories_WT)):
        expected = [
            [contains(term, [*tokens[: t + 1]]) for term in wanted] for tokens in histories_WT
        ]
        assert has_WC == expected


def test_the_beginning_that_two_terms_share_counts_once():
    wanted = [([A, C, D], [A, C, D]), ([A, C, A], [A, C, A])]
    assert [met for _, (met,) in followed(wanted, [[A, C, D]])] == [1, 2, 3]


def test_candidates_are_taken_in_turn_from_the_numbers_of_met_tokens():
    rng = np.random.default_rng(0)
    scores_M, met_M = rng.normal(size=23), rng.integers(0, 4, 23)
    scores_M[rng.integers(0, 23, 5)] = -np.inf
    order = sorted(range(23), key=lambda i: -scores_M[i])
    piles = [[i for i in order if met_M[i] == n and scores_M[i] > -np.inf] for n in (3, 2, 1, 0)]
    dealt = [i for hand in itertools.zip_longest(*piles) for i in hand if i is not None]
    assert deal(jnp.array(scores_M), jnp.array(met_M), len(dealt)).tolist() == dealt


NUMBERS = r"(?<!\w)\d+(?:[.,:/-]\d+)*(?!\w)"
TEXTS = ["a cat sat on the mat", "der Kater saß auf der Matte", "see https://a.org/b?c=3.5 (7)"]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(TEXTS, 400)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("(cat), on the mat.", ["Kater", "die Matte"]),
        ("cat cat", ["Kater"]),
        ("the mat here", ["diese Matte"]),  # the longest of nested terms
        ("cats, a tomcat, Cat, cat2", []),
        ("私の猫がいます。แมวของฉัน, 고양이가 والقطة", ["猫", "แมว", "고양이", "القطة"]),
        ("मेरे पास कमी है, हिन्दी", []),  # letters with vowel signs are other words
        ("Cafe\u0301 au lait", ["Café"]),
    ],
)
def test_terms_are_whole_words_of_the_source_with_their_case(tmp_path, vocabulary, source, wanted):
    names = ["猫", "แมว", "고양이", "القطة", "कम", "हिन्द", "Café"]
    lines = ["cat\tKater", "the mat\tdie Matte ", "the mat here\tdiese Matte", "c.t\tnie"]
    path = tmp_path / "terms.tsv"
    path.write_text("\n".join(lines + [f"{name}\t{name}" for name in names]))
    assert [*terms(vocabulary, file=str(path)).find(source)] == wanted


def test_strings_of_a_source_that_match_a_pattern_are_kept_as_they_are(vocabulary):
    source = "3 of 1,000.5 at 12:30, not B2B, 7. Set {a  b} now"
    kept = [*terms(vocabulary, keep=rf"{NUMBERS}|{{[^}}]*}}").find(source)]
    assert kept == ["3", "1,000.5", "12:30", "7", "{a  b}"]


@pytest.mark.parametrize(
    ("text", "source", "before"), [("Kater", "a Kater", "der "), ("猫", "私の猫が", "私の")]
)
def test_a_term_is_spelled_as_within_a_sentence_and_at_its_beginning(
    text, source, before, tmp_path
):
    vocabulary = Vocabulary.train([*TEXTS, "猫 の"], 400)
    path = tmp_path / "terms.tsv"
    path.write_text(f"{text}\t{text}\n")
    (terms_CKL, _), _ = terms(vocabulary, file=str(path)).encode(source, [])
    first, later = ([token for token in spelling if token != PAD] for spelling in terms_CKL[0])
    assert vocabulary.decode(first) == text
    history = vocabulary.encode([before.strip()])[0]
    assert vocabulary.decode([*history, *later]) == before + text


def test_a_line_without_a_tab_is_named(vocabulary, tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("cat\tKater\ndog\n")
    with pytest.raises(UserError, match=r"terms\.tsv:2: "):
        terms(vocabulary, file=str(path))


def test_terms_beyond_the_limits_or_changed_by_normalization_are_named(vocabulary, caplog):
    many = " ".join(map(str, range(MAX_TERMS + 1))) + " 1" + "7" * MAX_TOKENS
    (terms_CKL, _), _ = terms(vocabulary, keep=NUMBERS).encode(many, [])
    assert (terms_CKL[:, 0, 0] != PAD).all()
    assert f"{MAX_TERMS} of {MAX_TERMS + 2} terms" in caplog.text
    lower = Vocabulary.train(TEXTS, 400, "byte_bpe(normalization='lower')")
    terms(lower, keep=r"https\S*").encode("See https://a.org/Path now", [])
    assert "0 of 1 terms" in caplog.text


def test_a_run_translates_with_terms_and_only_a_beam_can(tmp_path):
    run = load("tests/stored_run/run")
    path = Path(tmp_path / "terms.tsv")
    path.write_text("4 0 1\tnine nine\n")
    constraint = f"terms(file={str(path)!r})"
    (output,) = run.translate(["4 0 1"], constraint=constraint, max_extra_length=30)
    assert "nine nine" in output
    with pytest.raises(UserError, match=r"config\.decode\.search=beam"):
        run.translate(["4 0 1"], constraint="terms(keep='3')", search="sampling")
