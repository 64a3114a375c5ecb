"""Validation: the likelihood of a split, scores of outputs, and a check of the user's own parts."""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jformer.components import parse, split_list
from jformer.config import BOS, EOS, Config, DecodeConfig
from jformer.data.batches import Batches, Buckets
from jformer.data.corpora import Split
from jformer.data.tokens import tokenize
from jformer.data.vocabulary import Vocabularies
from jformer.decoding.pool import Decoder, Request
from jformer.errors import UserError
from jformer.evaluation.scorer import Validation, score_by
from jformer.model.transformer import Transformer
from jformer.run import Run
from jformer.training import sharding
from jformer.training.loss import SUMS, perplexity
from jformer.training.step import evaluation_step


def likelihood(
    model: Transformer, vocabularies: Vocabularies, split: Split, config: Config, mesh: Mesh
) -> Callable[[Any], dict[str, float]]:
    """Return a function from parameters to the split's NLL per token, in nats, and perplexity."""
    data, rows = config.data, np.arange(len(split))
    pairs = tokenize(split, vocabularies, data)
    lengths = pairs.lengths(rows)
    layout = Buckets(*lengths, config.train.batch_tokens, data.num_buckets, data.length_multiple)
    layout.trim(*lengths)  # avoids padding a full batch for one long pair
    batches = Batches(pairs, rows, layout, config.seed)
    longest = max(max(lengths) for _, *lengths in layout.shapes)
    if longest > config.model.max_positions:
        raise config.model.wrong("positions", f"max_positions must be >= {longest} for validation")

    @functools.partial(jax.jit, out_shardings=sharding.replicated(mesh))
    def sums_of(params: Any, batch: dict[str, Any]) -> dict[str, Any]:
        with sharding.logical_sharding(mesh):
            return evaluation_step(model, params, batch)

    def evaluate(params: Any) -> dict[str, float]:
        total: Any = collections.Counter()
        for number in range(len(batches.epoch(0))):
            batch = batches.batch(0, number, jax.process_index(), jax.process_count())
            sums = jax.device_get(sums_of(params, sharding.shard_batch(batch, mesh)))
            total.update({name: float(sums[name]) for name in SUMS})
        nll, tokens = total["nll"], total["tokens"]
        return {"nll": nll / tokens, "perplexity": perplexity(nll, tokens)}

    return evaluate


def scores_of_outputs(run: Run, split: Split) -> tuple[list[str], dict[str, float]]:
    """Return outputs for the first `train.metrics_pairs` pairs, and `train.metrics` by name."""
    number, names = run.config.train.metrics_pairs, split_list(run.config.train.metrics)
    sources, targets = split.sources[:number], split.targets[:number]
    outputs = run.translate(sources)
    validation = Validation(sources, outputs, targets, run.params, run.config, split.gold[:number])
    return outputs, {parse(name).name: score_by(name, validation) for name in names}


def check_decoding(config: Config) -> None:
    """Raise `UserError` unless the user's own attention and positions are right in a search.

    An attention that ignores the mask or the distances learns well and corrupts every output. A
    search pads the source, so the probabilities of its output then differ from a full pass.
    """
    keys = [key for key in ("attention", "positions") if parse(getattr(config.model, key)).file]
    if not keys:
        return
    small = dataclasses.replace(
        config.model, num_layers=1, num_decoder_layers=None, norm="layer_norm", dtype="float32"
    )
    model = Transformer(small, vocabulary_size=32)
    source = list(range(EOS + 1, EOS + 8))
    source_1S = jnp.array([[*source, EOS]])
    params = model.init(jax.random.key(0), source_1S, source_1S)["params"]
    greedy = DecodeConfig(beam_size=1, min_length=7, max_length=8)
    decoder = Decoder((model,), (params,), greedy, max_length=16)
    (found,) = decoder.find([Request(source, prefix=[], seed=0)])
    output_T = found.tokens_WT[0, :8]
    target_1T = jnp.array([[BOS, *output_T[:-1]]])
    log_probs_1TV = jax.nn.log_softmax(model.apply({"params": params}, source_1S, target_1T))
    expected = float(log_probs_1TV[0, np.arange(8), output_T].sum())
    if not abs(expected - found.sums_W[0]) <= 1e-3:  # a sum of eight, in float32
        raise UserError(
            f"{' and '.join(map(config.model.assignment, keys))}: cached decoding with padding in "
            f"the source differs from a full pass; use the arguments for the mask and the distances"
        )
