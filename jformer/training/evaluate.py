"""Validation during training: the likelihood of a split, and scores of outputs."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from jformer.components import parse, split_list
from jformer.config import Config
from jformer.data.batches import Batches, Buckets
from jformer.data.corpora import Split
from jformer.data.tokens import model_sources, tokenize
from jformer.data.vocabulary import Vocabularies
from jformer.decoding.pool import Decoder
from jformer.decoding.translate import hypotheses
from jformer.evaluation.metrics import Validation, score_by
from jformer.model.transformer import Transformer
from jformer.run import Run
from jformer.training import sharding
from jformer.training.loss import SUMS, perplexity
from jformer.training.step import evaluation_step


@dataclasses.dataclass
class Best:
    """The best validation score so far, its step, and the number of scores since then."""

    score: float | None = None
    step: int = 0
    worse: int = 0

    def note(self, step: int, name: str, score: float) -> bool:
        """Record a score and return whether it is the best: lowest for NLL, highest for others."""
        sign = 1 if name == "nll" else -1
        better = self.score is None or sign * score < sign * self.score
        better = better and not math.isnan(score)  # no later score would beat NaN
        if better:
            self.score, self.step, self.worse = score, step, 0
        else:
            self.worse += 1
        return better


def likelihood(
    model: Transformer, vocabularies: Vocabularies, split: Split, config: Config, mesh: Mesh
) -> Callable[[Any], dict[str, float]]:
    """Return a function from parameters to the split's NLL per token, in nats, and perplexity.

    Raises `UserError` if a pair exceeds a table of learned positions.
    """
    data, rows = config.data, np.arange(len(split))
    pairs = tokenize(split, vocabularies, data)
    lengths = pairs.lengths(rows)
    layout = Buckets(*lengths, config.train.batch_tokens, data.num_buckets, data.length_multiple)
    layout.trim(*lengths)  # avoids padding a full batch for one long pair
    longest = max(max(S, T) for _, S, T in layout.shapes)
    if longest > config.model.max_positions:
        reason = f"max_positions must be >= {longest}, for the longest validation pair"
        raise config.model.wrong("positions", reason)
    batches = Batches(pairs, rows, layout, config.seed)
    part, parts = jax.process_index(), jax.process_count()

    @functools.partial(jax.jit, out_shardings=sharding.replicated(mesh))
    def sums_of(params: Any, batch: dict[str, Any]) -> dict[str, Any]:
        with sharding.logical_sharding(mesh):
            return evaluation_step(model, params, batch)

    def evaluate(params: Any) -> dict[str, float]:
        total = dict.fromkeys(SUMS, 0.0)
        for number in range(len(batches.epoch(0))):
            batch = batches.batch(0, number, part, parts)
            sums = jax.device_get(sums_of(params, sharding.shard_batch(batch, mesh)))
            total = {name: total[name] + float(sums[name]) for name in SUMS}
        nll, tokens = total["nll"], total["tokens"]
        return {"nll": nll / tokens, "perplexity": perplexity(nll, tokens)}

    return evaluate


def on_one_device(params: Any) -> Any:
    """Return a copy of the parameters on one device of this process."""
    whole = multihost_utils.process_allgather(params, tiled=True)  # several may hold shards
    return jax.device_put(whole, jax.local_devices()[0])


def scores_of_outputs(run: Run, split: Split) -> tuple[list[str], dict[str, float]]:
    """Return outputs for the first `train.metrics_pairs` pairs, and their `train.metrics` by name.

    Each process translates all of them, on one device.
    """
    config, number = run.config, run.config.train.metrics_pairs
    sources, targets = split.sources[:number], split.targets[:number]
    limits = config.data.max_length, config.decode.batch_size
    decoder = Decoder((run.model,), (run.params,), config.decode, *limits)
    read = model_sources(sources, run.vocabularies, config.data)
    found = hypotheses(decoder, run.vocabularies, read, target_language=config.data.target_language)
    outputs = [best.text for best, *_ in found]
    validation = Validation(sources, outputs, targets, run.params, config, split.gold[:number])
    names = split_list(config.train.metrics)
    return outputs, {parse(name).name: score_by(name, validation) for name in names}
