"""The constraint to linearised trees, beside a parser of them and searches through all of them."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.config import EOS, PAD, DecodeConfig
from jformer.data.vocabulary import Vocabulary
from jformer.decoding.search import Sentence
from jformer.extras.parsing.constraint import well_formed
from jformer.extras.parsing.trees import MAX_DEPTH, tree_of, trees_in
from tests.decoding import machines

VOCABULARY = Vocabulary.train(["(S (NP XX )NP )S DT unknown"], 260, "words")
T = 16
allowed = jax.jit(lambda constraint, *arguments: constraint.allowed(*arguments))


def allowed_after(tokens, words, limit, vocabulary=VOCABULARY):
    """The names of the tokens that may come next."""
    names = vocabulary.entries()
    ids_1T = np.full((1, max(T, len(tokens) + 1)), PAD, np.int32)
    ids_1T[0, : len(tokens)] = [names.index(token) for token in tokens]
    sentence = Sentence(None, None, jnp.int32(limit), None, None, given=jnp.int32(words))
    mask_V = allowed(well_formed(vocabulary), ids_1T, jnp.int32(len(tokens)), sentence)[0]
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


@pytest.mark.parametrize("strategy", ["beam", "sampling"])
def test_every_output_is_a_tree_of_all_words_whatever_the_model_says(strategy):
    vocabulary = Vocabulary.train(["(S XX DT )S"], 260, "words")
    assert vocabulary.size == machines.V
    config = DecodeConfig(search=strategy, beam_size=3, n_best=3)
    rng, seen = random.Random(0), set()
    for seed in range(20):
        words = [rng.randint(1, 4) for _ in range(machines.B)]
        limits = [rng.randint(number + 3, machines.T - 1) for number in words]
        models = [machines.random_machine(3 * seed + b, 5) for b in range(machines.B)]
        given, constraint = (np.array(words, np.int32), None), well_formed(vocabulary)
        _, found = machines.search(config, models, limits, constraint=constraint, given=given)
        for number, limit, hypotheses in zip(words, limits, found, strict=True):
            for hypothesis in hypotheses:
                text = vocabulary.decode(hypothesis.tokens)
                assert tree_of(text, ["w"] * number)[1], text
                assert len(hypothesis.tokens) <= limit
                seen.add(text)
    assert len(seen) > 20
