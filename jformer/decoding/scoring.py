"""Forced decoding: log-probabilities of given targets, and word alignments by attention.

A pair has the ids of both sides, without EOS. An alignment has links `i-j` of source and target
word in Pharaoh's format; words are separated by white space and counted from 0.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jformer.config import BOS, EOS, PAD
from jformer.data.vocabulary import Vocabulary
from jformer.decoding.attention import attention_weights
from jformer.decoding.ensemble import Models, mean_logits
from jformer.errors import UserError

Pair = tuple[Sequence[int], Sequence[int]]
Links = list[tuple[int, int]]
SHORTEST = 16  # minimum positions per side; lengths double, to compile few shapes
POSITIONS = 4096  # maximum per side of a batch: each has logits for the whole vocabulary


@dataclasses.dataclass(frozen=True)
class Forced:
    """The result for one pair."""

    log_probs_T: np.ndarray  # of each target token, then of EOS
    weights_TS: np.ndarray | None = None  # mean over a layer's heads, EOS included on both sides


def max_positions(models: Models) -> float:
    """Return the maximum number of tokens, EOS included, that all models accept."""
    return min(model.config.max_positions for model in models)


def score_pairs(
    models: Models,
    params: tuple[Any, ...],
    pairs: Sequence[Pair],
    batch_size: int,
    layer: int = 0,
    first_pair: int = 1,
) -> list[Forced]:
    """Return the result for each pair; `layer` >= 1 adds the cross-attention weights of a layer.

    Probabilities and weights are averaged over the models. Errors number pairs from `first_pair`.
    """
    limit = max_positions(models)
    for number, pair in enumerate(pairs, start=first_pair):
        longest = max(len(ids) + 1 for ids in pair)
        if longest > limit:
            raise UserError(
                f"config.model.positions: max_positions={limit}, but pair {number} has "
                f"{longest} tokens; shorten it"
            )
    results: list[Forced] = [None] * len(pairs)  # type: ignore[list-item]
    for numbers, source_BS, target_BT1 in batches(pairs, batch_size, limit):
        found = jax.device_get(forced(models, layer, params, source_BS, target_BT1))
        for row, number in enumerate(numbers):
            S, T = (len(ids) + 1 for ids in pairs[number])
            weights_TS = found[1][row, :T, :S] if layer else None
            results[number] = Forced(found[0][row, :T], weights_TS)
    return results


def batches(
    pairs: Sequence[Pair], batch_size: int, limit: float = math.inf
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Yield indices of pairs of similar lengths, and their padded rows with BOS and EOS."""

    def shape(n):
        return tuple(min(max(SHORTEST, 1 << len(ids).bit_length()), limit) for ids in pairs[n])

    for (S, T), group in itertools.groupby(sorted(range(len(pairs)), key=shape), key=shape):
        most = max(1, min(batch_size, POSITIONS // max(S, T)))
        while numbers := list(itertools.islice(group, most)):
            rows = min(most, 1 << (len(numbers) - 1).bit_length())
            source_BS = np.full((rows, S), PAD, np.int32)
            target_BT1 = np.full((rows, T + 1), PAD, np.int32)
            for row, (source, target) in enumerate(pairs[n] for n in numbers):
                source_BS[row, : len(source) + 1] = [*source, EOS]
                target_BT1[row, : len(target) + 2] = [BOS, *target, EOS]
            yield numbers, source_BS, target_BT1


@functools.partial(jax.jit, static_argnums=(0, 1))
def forced(models: Models, layer: int, params, source_BS, target_BT1):
    """Return log-probabilities (B, T) of the tokens after BOS, and weights (B, T, S) or None."""
    target_BT, labels_BT = target_BT1[:, :-1], target_BT1[:, 1:]
    logits = [
        model.apply({"params": p}, source_BS, target_BT)
        for model, p in zip(models, params, strict=True)
    ]
    log_probs_BTV = jax.nn.log_softmax(mean_logits(logits))
    log_probs_BT = jnp.take_along_axis(log_probs_BTV, labels_BT[..., None], axis=-1)[..., 0]
    if not layer:
        return log_probs_BT, None
    name = f"decoder_{layer - 1}/cross_attention"
    weights = [
        jnp.mean(attention_weights(model, p, source_BS, target_BT)[name], axis=1)
        for model, p in zip(models, params, strict=True)
    ]
    return log_probs_BT, sum(weights) / len(weights)


def words_of(ids: Sequence[int], vocabulary: Vocabulary) -> np.ndarray:
    """Return the index of the word in which each token ends; -1 before the first word."""
    ends = [len(vocabulary.decode(ids[: n + 1]).split()) for n in range(len(ids))]
    return np.array(ends, int) - 1


def align(
    weights_TS: np.ndarray | None, target_words_T: np.ndarray, source_words_S: np.ndarray
) -> Links:
    """Link each target word to the source word with the largest sum of weights over their tokens.

    The last row and column of the weights belong to EOS and are ignored.
    """
    assert weights_TS is not None, "forced decoding without a layer has no weights"
    weights_TS = weights_TS[: len(target_words_T), : len(source_words_S)]
    shape = (target_words_T.max(initial=-1) + 1, source_words_S.max(initial=-1) + 1)
    of_words = np.zeros(shape)
    known = np.ix_(target_words_T >= 0, source_words_S >= 0)
    targets, sources = target_words_T[target_words_T >= 0], source_words_S[source_words_S >= 0]
    np.add.at(of_words, (targets[:, None], sources[None, :]), weights_TS[known])
    return sorted((int(row.argmax()), j) for j, row in enumerate(of_words) if of_words.size)


def pharaoh(links: Links) -> str:
    return " ".join(f"{i}-{j}" for i, j in links)
