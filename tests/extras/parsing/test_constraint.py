"""The constraint to linearised trees, beside a parser of them and searches through all of them."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.components import find
from jformer.config import EOS, PAD, DecodeConfig
from jformer.data.vocabulary import Vocabulary
from jformer.decoding.search import Rules, Sentence, advance, init_search, result_of
from jformer.extras.parsing.constraint import well_formed
from jformer.extras.parsing.trees import MAX_DEPTH, tree_of, trees_in

VOCABULARY = Vocabulary.train(["(S (NP XX )NP )S DT unknown"], 260, "words")
V, T = VOCABULARY.size, 16
RULES = jax.tree.map(jnp.asarray, Rules(constraint=well_formed(VOCABULARY)))


def allowed_after(tokens, words, limit, vocabulary=VOCABULARY):
    """The names of the tokens that may come next."""
    names = vocabulary.entries()
    ids_1T = np.full((1, max(T, len(tokens) + 1)), PAD, np.int32)
    ids_1T[0, : len(tokens)] = [names.index(token) for token in tokens]
    sentence = Sentence(None, None, jnp.int32(limit), None, given=jnp.int32(words))
    constraint = jax.tree.map(jnp.asarray, well_formed(vocabulary))
    mask_V = constraint.allowed(jnp.asarray(ids_1T), jnp.int32(len(tokens)), sentence)[0]
    names[EOS] = "EOS"
    return {names[token] for token in np.flatnonzero(mask_V).tolist()}


def could_become_a_tree(tokens, words, room):
    """Whether any continuation of at most `room` tokens is a tree; brackets and words alone."""
    if tree_of(" ".join(tokens), ["w"] * words)[1]:
        return True
    return room > 0 and any(
        could_become_a_tree([*tokens, token], words, room - 1)
        for token in ("(S", ")S", "(NP", ")NP", "XX")
        if sum(one == "XX" for one in [*tokens, token]) <= words
    )


def test_the_first_and_the_last_tokens_of_a_tree():
    assert allowed_after([], 2, 12) == {"(S", "(NP"}
    assert allowed_after(["(S"], 2, 12) == {"(S", "(NP", "XX", "DT", "unknown"}
    assert allowed_after(["(S", "XX", "XX"], 2, 12) == {")S"}
    assert allowed_after(["(S", "XX", "XX", ")S"], 2, 12) == {"EOS"}


def test_no_tree_is_deeper_than_one_that_can_be_read():
    chain = ["(NP"] * (MAX_DEPTH - 1)
    assert "(NP" in allowed_after(chain, 1, 1000)
    chain.append("(NP")
    assert "(NP" not in allowed_after(chain, 1, 1000)
    tree, whole = tree_of(" ".join([*chain, "XX", *[")NP"] * len(chain)]), ["w"])
    assert whole
    assert [*map(str, trees_in([str(tree)], "out"))] == [str(tree)]
    assert not tree_of(" ".join([*chain, "(NP", "XX", *[")NP"] * (len(chain) + 1)]), ["w"])[1]


def test_words_are_numbered_in_their_order_and_unknown_beyond_the_vocabulary():
    rows = [f"(S {n} )S" for n in (1, 2, 4, 5)] + ["(S 1 2 )S"]  # numbers after a gap are unknown
    vocabulary = Vocabulary.train(rows, 260, "words")

    def words_after(tokens):
        return {one for one in allowed_after(tokens, 4, 15, vocabulary) if one[0] not in "()"}

    assert words_after(["(S"]) == {"1"}
    assert words_after(["(S", "1"]) == {"2"}
    assert words_after(["(S", "1", "2"]) == {"<unk>"}
    assert words_after(["(S", "1", "2", "<unk>"]) == {"<unk>"}
    assert words_after(["(S", "1", "2", "<unk>", "<unk>"]) == set()


@pytest.mark.parametrize(("words", "limit"), [(1, 6), (2, 7)])
def test_what_is_allowed_is_what_can_become_a_tree(words, limit):
    """By trying all continuations."""
    begun = [[]]
    for _ in range(limit):
        following = []
        for tokens in begun:
            found = allowed_after(tokens, words, limit) - {"DT", "unknown"}
            expected = {
                token
                for token in ("(S", ")S", "(NP", ")NP", "XX")
                if could_become_a_tree([*tokens, token], words, limit - len(tokens) - 2)
            }
            whole = tree_of(" ".join(tokens), ["w"] * words)[1]
            assert found == expected | ({"EOS"} if whole else set()), tokens
            following += [[*tokens, token] for token in found - {"EOS"}]
        begun = following
    assert not begun


def step(logits_TV, cache, tokens_W, t, beam_indices_WT):
    """A model that does not look at what came before."""
    return cache, jnp.broadcast_to(logits_TV[t], (len(tokens_W), V))


def make_search(config):
    """Return a compiled search for the outputs of a model as texts, with their scores."""
    strategy = find("config.decode.search", "search", config.search)

    @jax.jit
    def search(logits_TV, words, limit):
        def grow(sentence, search):
            return strategy.extend(step, config, sentence, search, RULES)

        sentence = Sentence(logits_TV, jnp.full(T, PAD), limit, jnp.int32(0), given=words)
        begun = sentence, init_search(sentence, jnp.zeros(()), strategy.width(config))
        ended = advance(grow, *jax.tree.map(lambda x: jnp.asarray(x)[None], begun), 1)
        return result_of(jax.tree.map(lambda x: x[0], ended), config)

    def results(logits_TV, words, limit):
        found = jax.device_get(search(logits_TV, words, limit))
        return [
            (VOCABULARY.decode(tokens_T[tokens_T != PAD]), score)
            for tokens_T, score in zip(found.tokens_WT, found.scores_W, strict=True)
            if score > -np.inf
        ]

    return results


@pytest.mark.parametrize("search", ["beam", "sampling"])
def test_every_output_is_a_tree_of_all_words_whatever_the_model_says(search):
    find = make_search(DecodeConfig(search=search, beam_size=3, n_best=3))
    rng, numbers = np.random.default_rng(0), random.Random(0)
    seen = set()
    for _ in range(30):
        words = numbers.randint(1, 5)
        limit = numbers.randint(words + 3, T - 1)
        for text, _ in find(4 * rng.normal(size=(T, V)), words, limit):
            assert tree_of(text, ["w"] * words)[1], text
            assert len(text.split()) < limit
            seen.add(text)
    assert len(seen) > 30
