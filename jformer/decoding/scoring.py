"""Forced decoding: log-probabilities of given targets, attention weights and word alignments.

A pair has the ids of both sides, without EOS. An alignment has links `i-j` of source and target
word in Pharaoh's format; words are separated by white space and counted from 0.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jformer.config import BOS, EOS, PAD
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.decoding.ensemble import mean_logits
from jformer.decoding.pool import Decoder
from jformer.model.transformer import Transformer

Pair = tuple[Sequence[int], Sequence[int]]
Links = list[tuple[int, int]]
SHORTEST = 16  # minimum positions per side; lengths double, to compile few shapes
POSITIONS = 4096  # maximum per side of a batch: each has logits for the whole vocabulary


@dataclasses.dataclass(frozen=True)
class Forced:
    """The result for one pair."""

    log_probs_T: np.ndarray  # of each target token, then of EOS
    weights_TS: Any = None  # mean over a layer's heads, EOS included on both sides


def score_pairs(decoder: Decoder, pairs: Sequence[Pair], layer: int = 0) -> list[Forced]:
    """Return the result for each pair; `layer` >= 1 adds the cross-attention weights of a layer.

    Probabilities and weights are averaged over the models. Raises `UserError` for a pair beyond a
    table of learned positions.
    """
    limit = min(model.config.max_positions for model in decoder.models)
    results: dict[int, Forced] = {}
    for numbers, *batch in batches(pairs, decoder.config.batch_size, limit):
        log_probs_BT, weights_BTS = jax.device_get(forced(decoder, layer, *batch))
        for row, number in enumerate(numbers):
            S, T = (len(ids) + 1 for ids in pairs[number])
            weights_TS = weights_BTS[row, :T, :S] if layer else None
            results[number] = Forced(log_probs_BT[row, :T], weights_TS)
    return [results[number] for number in range(len(pairs))]


def batches(
    pairs: Sequence[Pair], batch_size: int, limit: float
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Yield indices of pairs of similar lengths, and their padded rows with BOS and EOS.

    Padding stays within `limit` positions.
    """

    def padded(ids):
        length = len(ids) + 1
        return min(max(SHORTEST, 1 << (length - 1).bit_length()), max(length, limit))

    def shape(n):
        return tuple(map(padded, pairs[n]))

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


@functools.partial(jax.jit, static_argnames="layer")
def forced(decoder: Decoder, layer: int, source_BS: Array, target_BT1: Array) -> Any:
    """Return log-probabilities (B, T) of the tokens after BOS, and weights (B, T, S) or None."""
    target_BT, labels_BT = target_BT1[:, :-1], target_BT1[:, 1:]
    logits, weights = [], []
    for model, params in zip(decoder.models, decoder.params, strict=True):
        if layer:
            logits_BTV, by_name = logits_and_weights(model, params, source_BS, target_BT)
            weights.append(jnp.mean(by_name[f"decoder_{layer - 1}/cross_attention"], axis=1))
        else:
            logits_BTV = model.apply({"params": params}, source_BS, target_BT)
        logits.append(logits_BTV)
    log_probs_BTV = jax.nn.log_softmax(mean_logits(logits))
    log_probs_BT = jnp.take_along_axis(log_probs_BTV, labels_BT[..., None], axis=-1)[..., 0]
    return log_probs_BT, sum(weights) / len(weights) if layer else None


def logits_and_weights(
    model: Transformer, params: Any, source_BS: Array, target_BT: Array
) -> tuple[Array, dict[str, Array]]:
    """Return the logits, and the weights (B, H, Q, M) of every attention by name, in float32."""
    # A scan over layers would not keep the weights.
    model = model.clone(config=dataclasses.replace(model.config, scan_layers=False, remat="none"))
    logits_BTV, kept = model.apply(
        {"params": params}, source_BS, target_BT, mutable="intermediates"
    )
    leaves = jax.tree_util.tree_leaves_with_path(kept["intermediates"])
    return logits_BTV, {
        "/".join(key.key for key in path[:2]): weights.astype(jnp.float32)
        for path, weights in leaves
    }


@dataclasses.dataclass(frozen=True)
class Attention:
    """The weights (H, Q, M) of every attention for one pair, in float32.

    They are named `encoder_0/self_attention`, `decoder_0/self_attention` and
    `decoder_0/cross_attention`. Row t of the decoder's weights predicts token t + 1.
    """

    weights: dict[str, np.ndarray]
    source_tokens: list[str]  # with EOS at the end
    target_tokens: list[str]  # with BOS before the first

    def layers(self, stack: str, kind: str) -> list[np.ndarray]:
        """Return one kind of weights by layer, such as `"decoder", "cross_attention"`."""
        names = [f"{stack}_{n}/{kind}" for n in range(len(self.weights))]
        return [self.weights[name] for name in names if name in self.weights]


def attention_of(
    model: Transformer, params: Any, vocabularies: Vocabularies, source: str, target: str
) -> Attention:
    """Return the attention weights of all positions of a source and a given target.

    Raises `UserError` for a text beyond the table of learned positions.
    """
    (source_ids,) = vocabularies.source.encode([source])
    (target_ids,) = vocabularies.target.encode([target])
    source_ids, target_ids = [*source_ids, EOS], [BOS, *target_ids]
    compiled = jax.jit(logits_and_weights, static_argnums=0)
    _, weights = compiled(model, params, jnp.array([source_ids]), jnp.array([target_ids]))
    return Attention(
        {name: np.asarray(weights_1HQM[0]) for name, weights_1HQM in weights.items()},
        vocabularies.source.tokens(source_ids),
        vocabularies.target.tokens(target_ids),
    )


def words_of(ids: Sequence[int], vocabulary: Vocabulary) -> np.ndarray:
    """Return the number of the word in which each token ends, from 1; 0 before the first word."""
    return np.array([len(vocabulary.decode(ids[: n + 1]).split()) for n in range(len(ids))], int)


def align(weights_TS: np.ndarray, target_words_T: np.ndarray, source_words_S: np.ndarray) -> Links:
    """Link each target word to the source word with the largest sum of weights over their tokens.

    The last row and column of the weights belong to EOS and are ignored.
    """
    weights_TS = weights_TS[: len(target_words_T), : len(source_words_S)]
    shape = (target_words_T.max(initial=0) + 1, source_words_S.max(initial=0) + 1)
    of_words = np.zeros(shape)
    np.add.at(of_words, (target_words_T[:, None], source_words_S[None]), weights_TS)
    words = of_words[1:, 1:]
    return sorted((int(row.argmax()), j) for j, row in enumerate(words) if row.size)


def pharaoh(links: Links) -> str:
    return " ".join(f"{i}-{j}" for i, j in links)
