"""Model, vocabularies and search: sentences in, sentences out, in the order of the input.

Sentences of similar length are searched together in batches of few shapes, each compiled once.
Neither the batch size nor the order of the sentences changes what comes out.
"""

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jformer.config import EOS, PAD, DecodeConfig
from jformer.data.vocabulary import Vocabularies
from jformer.decoding.search import Hypotheses, beam_search
from jformer.keys import RunError
from jformer.model.transformer import Transformer

log = logging.getLogger(__name__)

SHORTEST_BUCKET = 16  # source positions; buckets double from here


def translate(
    model: Transformer,
    params: Any,
    vocabularies: Vocabularies,
    sentences: Sequence[str],
    config: DecodeConfig,
    max_length: int,
) -> list[str]:
    """One output for each input; an empty or blank sentence stays empty.

    A source of more than `max_length` tokens, more than the model saw in training, is cut to that
    and a warning names it.
    """
    outputs = [""] * len(sentences)
    wanted = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    encoded = vocabularies.source.encode([sentences[i] for i in wanted])
    sources = dict(zip(wanted, encoded, strict=True))
    for i, ids in sources.items():
        if len(ids) >= max_length:
            log.warning(
                "sentence %d has %d tokens: only the first %d are translated (data.max_length)",
                i + 1, len(ids), max_length - 1,
            )  # fmt: skip
            sources[i] = ids[: max_length - 1]
    for indices, source_BS in source_batches(sources, config.batch_size, max_length):
        found = jax.device_get(search_batch(model, config, params, source_BS))
        for i, tokens_WT, scores_W in zip(indices, found.tokens_BWT, found.scores_BW, strict=False):
            if np.isnan(scores_W[0]):
                raise RunError(
                    f"sentence {i + 1}: the model's logits are not numbers, so there is no "
                    f"translation to choose; take another checkpoint, or model.dtype=float32"
                )
            outputs[i] = vocabularies.target.decode(tokens_WT[0])
    return outputs


def source_batches(
    sources: dict[int, list[int]], batch_size: int, max_length: int
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Keys and padded rows of at most `max_length`, EOS included, sentences of one bucket together.

    Rows left over are all padding.
    """
    buckets: dict[int, list[int]] = {}
    for i in sorted(sources, key=lambda i: len(sources[i])):
        length = SHORTEST_BUCKET
        while length < len(sources[i]) + 1:
            length *= 2
        buckets.setdefault(min(length, max_length), []).append(i)
    for length, members in buckets.items():
        for start in range(0, len(members), batch_size):
            indices = members[start : start + batch_size]
            # A power of two, so that one sentence does not pay for 64 and few shapes are compiled.
            rows = min(batch_size, 1 << (len(indices) - 1).bit_length())
            source_BS = np.full((rows, length), PAD, np.int32)
            for row, i in enumerate(indices):
                source_BS[row, : len(sources[i])] = sources[i]
                source_BS[row, len(sources[i])] = EOS
            yield indices, source_BS


@functools.partial(jax.jit, static_argnames=("model", "config"))
def search_batch(model: Transformer, config: DecodeConfig, params, source_BS) -> Hypotheses:
    """Search for the translations of one batch; a row of padding is done at once."""
    variables = {"params": params}
    memory_BSD = model.apply(variables, source_BS, method="encode")
    memory = model.apply(variables, memory_BSD, source_BS, method="start")

    def step(cache, tokens_BW, t):
        logits_BWV, cache = model.apply(variables, tokens_BW, t, cache, memory, method="step")
        return cache, logits_BWV

    B, S = source_BS.shape
    W, alpha, max_length = config.beam_size, config.length_penalty, S + config.max_extra_length
    lengths_B = jnp.sum((source_BS != PAD) & (source_BS != EOS), axis=1)
    limits_B = jnp.where(lengths_B > 0, lengths_B + config.max_extra_length, 0)
    cache = model.empty_cache(B, W, max_length)
    return beam_search(step, cache, limits_B, max_length, W, alpha)
