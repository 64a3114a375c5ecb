"""The likelihood of a split under a model, with each pair counted once."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jformer.config import Config, ModelConfig
from jformer.data.batches import Batches
from jformer.data.corpora import PLACES_KEPT, Split
from jformer.data.layout import Buckets
from jformer.data.ragged import TokenPairs
from jformer.data.tokenize import tokenize
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError
from jformer.model.transformer import Transformer
from jformer.training import parallel
from jformer.training.loss import SUMS, perplexity


def likelihood(
    model: Transformer, vocabularies: Vocabularies, split: Split, config: Config, mesh: Mesh
) -> Callable[[Any], dict[str, float]]:
    """Return a function from parameters to the split's NLL per token, in nats, and perplexity.

    Pairs longer than a table of learned positions are left out; `UserError` if all of them are.
    """
    pairs = tokenize(split, vocabularies)
    rows = np.flatnonzero(has_room(pairs, config.model))
    if not len(rows):
        raise UserError(
            f"config.model.positions={config.model.positions}: all pairs of the validation "
            f"split have more tokens; raise it, or shorten the lines"
        )
    lengths = pairs.lengths(rows)
    data, most = config.data, config.model.max_positions
    layout = Buckets(*lengths, config.train.batch_tokens, data.num_buckets, data.length_multiple)
    layout.trim(*lengths)  # one long pair must not cost a whole batch of rows
    # A length that was rounded up may be beyond a table of learned positions.
    layout.shapes = [(B, int(min(S, most)), int(min(T, most))) for B, S, T in layout.shapes]
    batches = Batches(pairs, rows, layout, config.seed)
    part, parts = parallel.parts_of(mesh)
    sums_of = parallel.compile_evaluation(model, mesh)

    def evaluate(params: Any) -> dict[str, float]:
        total = dict.fromkeys(SUMS, 0.0)
        for number in range(len(batches.epoch(0))):
            batch = batches.batch(0, number, part, parts)
            sums = jax.device_get(sums_of(params, parallel.shard_batch(batch, mesh)))
            total = {name: total[name] + float(sums[name]) for name in SUMS}
        nll, tokens = total["nll"], total["tokens"]
        return {"nll": nll / tokens, "perplexity": perplexity(nll, tokens)}

    return evaluate


def has_room(pairs: TokenPairs, model: ModelConfig) -> np.ndarray:
    """Return a mask of the pairs that fit into a table of learned positions; all without one."""
    longest = np.maximum(pairs.sources.lengths, pairs.targets.lengths)
    return longest <= model.max_positions


def pairs_beyond(name: str, split: Split, vocabularies: Vocabularies, model: ModelConfig) -> str:
    """Return a warning about pairs too long to count in the perplexity; empty if there are none."""
    if model.max_positions == math.inf:
        return ""
    pairs = tokenize(split, vocabularies)
    beyond = np.flatnonzero(~has_room(pairs, model))
    if not len(beyond):
        return ""
    longest = np.maximum(pairs.sources.lengths, pairs.targets.lengths)
    first = [f"{split.places[row]} ({longest[row]} tokens)" for row in beyond[:PLACES_KEPT]]
    return (
        f"{name}: {len(beyond):,} of {len(split):,} pairs beyond the {model.max_positions} tokens "
        f"of config.model.positions, left out of its perplexity: {', '.join(first)}"
    )
