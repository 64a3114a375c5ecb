"""A comparison of LayerNorm and BatchNorm, which normalizes over the whole batch.

    python -m experiments.layernorm_batchnorm [--batch_tokens=64,512,4096] [--steps=400]

The same small model is trained on the same data for the same number of updates, once with the
paper's LayerNorm, once with a BatchNorm in place of each. LayerNorm takes mean and variance over
the D components of one token. BatchNorm takes them for each component over all positions of a
batch, which include other sentences and their padding, and uses running averages outside training.
Printed for each batch size, in nats per token:

    training        NLL of the last tenth of the batches, with dropout
    validation      NLL in inference mode: BatchNorm uses its running averages
    own statistics  the same with the statistics of the validation batches themselves
    alone, beside   mean absolute change of a validation sentence's NLL when it is evaluated alone
                    and not in its batch, each time with the statistics of that input
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from configs.tiny import get_config
from jformer.command_line import exit_status
from jformer.config import PAD, Config, freeze
from jformer.console import aligned
from jformer.data.batches import Batch, Batches, iterate
from jformer.data.layout import Buckets
from jformer.data.pipeline import open_data
from jformer.data.tokenize import tokenize
from jformer.training import parallel
from jformer.training.loss import loss_sums, token_losses
from jformer.training.optimizer import learning_rate, make_optimizer
from jformer.training.setup import TrainSetup, prepare

SENTENCES = 64  # whose NLL is also computed alone


class BatchNorm(nn.Module):
    """Normalizes by the batch where `batch_stats` is mutable, else by its running averages."""

    @nn.compact
    def __call__(self, x_BLD):
        stored = not self.is_mutable_collection("batch_stats")
        return nn.BatchNorm(use_running_average=stored, momentum=0.9)(x_BLD)


NORMS: dict[str, Callable[[], nn.Module]] = {"LayerNorm": nn.LayerNorm, "BatchNorm": BatchNorm}


def make_config(batch_tokens: int, steps: int) -> Config:
    config = get_config()
    config.data.max_length = 64
    config.model.d_model = 64
    config.train.steps = steps
    config.train.batch_tokens = batch_tokens
    config.optimizer.warmup_steps = steps // 4
    return freeze(config)


def train(task: TrainSetup, model: Any) -> tuple[dict[str, Any], float]:
    """Return the trained variables, and the mean NLL of the last tenth of the batches."""
    config, keys = task.config, jax.random.split(jax.random.key(task.config.seed))
    optimizer = make_optimizer(config.optimizer, learning_rate(config))
    smoothing = config.train.label_smoothing, config.train.smoothing_over

    @jax.jit
    def step(params, stats, state, batch, number):
        def loss_fn(params):
            logits_BTV, changed = model.apply(
                {"params": params, **stats}, batch["source_BS"], batch["target_BT"], train=True,
                rngs={"dropout": jax.random.fold_in(keys[1], number)}, mutable=["batch_stats"],
            )  # fmt: skip
            sums = loss_sums(logits_BTV, batch["labels_BT"], *smoothing)
            return sums["loss"] / sums["tokens"], (changed, sums)

        grads, (stats, sums) = jax.grad(loss_fn, has_aux=True)(params)
        updates, state = optimizer.update(grads, state, params, step=number)
        return optax.apply_updates(params, updates), stats, state, (sums["nll"], sums["tokens"])

    tokens_11 = jnp.ones((1, 1), jnp.int32)
    variables = model.init(keys[0], tokens_11, tokens_11)
    params, stats = variables.pop("params"), variables
    state, seen = optimizer.init(params), []
    for number, (batch, _) in enumerate(iterate(task.batches, config.train.steps)):
        params, stats, state, sums = step(params, stats, state, dict(batch), number)
        seen.append(sums)
    nll, tokens = np.sum(jax.device_get(seen[-(config.train.steps // 10) :]), axis=0)
    return {"params": params, **stats}, float(nll / tokens)


def nll_of(model: Any, own_statistics: bool) -> Callable[[dict[str, Any], Batch], np.ndarray]:
    """Return a function from variables and a batch to the summed NLL of each row."""

    @jax.jit
    def rows(variables, batch):
        texts = (batch["source_BS"], batch["target_BT"])
        if own_statistics:
            logits_BTV, _ = model.apply(variables, *texts, mutable=["batch_stats"])
        else:
            logits_BTV = model.apply(variables, *texts)
        nll_BT = token_losses(logits_BTV, batch["labels_BT"], 0.0, "all")[1]
        return jnp.sum(nll_BT * (batch["labels_BT"] != PAD), axis=1)

    return lambda variables, batch: np.asarray(rows(variables, dict(batch)))


def compare(task: TrainSetup) -> list[list[str]]:
    """Train and evaluate a model with each norm; return a table row for each."""
    pairs, config = tokenize(task.validation, task.vocabularies), task.config
    rows, size = np.arange(len(task.validation)), config.train.batch_tokens
    layout = Buckets(*pairs.lengths(rows), size, config.data.num_buckets)
    made = Batches(pairs, rows, layout, config.seed)
    batches = [made.batch(0, number) for number in range(len(made.epoch(0)))]
    lines = []
    for name, make_norm in NORMS.items():
        model = task.model.clone(make_norm=make_norm)
        variables, training = train(task, model)
        cells = [f"{size:,}", name, f"{training:.3f}"]
        for own_statistics in (False, True):
            nll, total, tokens = nll_of(model, own_statistics), 0.0, 0
            for batch in batches:
                total += float(nll(variables, batch).sum())
                tokens += np.count_nonzero(batch["labels_BT"])
            cells.append(f"{total / tokens:.3f}")
        apart = []
        for batch in batches:
            together = nll(variables, batch)
            tokens_B = np.count_nonzero(batch["labels_BT"], axis=1)
            for row in np.flatnonzero(tokens_B)[: SENTENCES - len(apart)]:
                alone = nll(variables, {key: rows[row : row + 1] for key, rows in batch.items()})
                apart.append(abs(alone[0] - together[row]) / tokens_B[row])
        lines.append([*cells, f"{np.mean(apart):.3f}"])
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch_tokens", default="64,512,4096")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    scores = ["training", "validation", "own statistics", "alone, beside"]
    lines = [["tokens a batch", "norm", *scores]]
    for tokens in options.batch_tokens.split(","):
        config = make_config(int(tokens), options.steps)
        corpora, splits = open_data(config)
        with tempfile.TemporaryDirectory() as folder:
            mesh = parallel.make_mesh(config)
            lines += compare(prepare(config, corpora, splits["validation"], Path(folder), mesh))
    print(aligned(lines))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status("experiments.layernorm_batchnorm", main, debug=False))
