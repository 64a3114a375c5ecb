"""A comparison of LayerNorm with BatchNorm, which normalizes over the whole batch.

    python -m experiments.layernorm_batchnorm [--batch_tokens=64,512,4096] [--steps=400]
                                              [--workdir=runs/layernorm_batchnorm]

The command trains the same small model on the same data for the same number of updates, once with
the paper's LayerNorm and once with BatchNorm in its place (`components/batch_norm.py`). LayerNorm
takes the mean and the variance over the D components of one token. BatchNorm takes them for each
component over all positions of a batch, which include other sentences and their padding. The
command prints these columns for each batch size, in nats per token:

    training        NLL of the last tenth of the batches, with dropout
    validation      NLL in inference mode; BatchNorm uses its means over 50 training batches
    own statistics  NLL with the statistics of the validation batches themselves
    alone or not    mean absolute difference between the NLL of a validation sentence alone and in
                    its batch, each with the statistics of that input
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jformer
from jformer.cli import exit_status
from jformer.config import PAD, Config
from jformer.console import aligned
from jformer.data.batches import Batch, Batches, Buckets
from jformer.data.corpora import Report, Split, read
from jformer.data.datasets import open_data
from jformer.data.tokens import tokenize
from jformer.run import Run
from jformer.rundir import read_metrics
from jformer.training.loss import cross_entropy

FILE = Path(__file__).with_name("components") / "batch_norm.py"
NORMS = {"layer_norm": "layer_norm", "BatchNorm": f"{FILE}:BatchNorm"}
SENTENCES = 64  # also scored alone
TRAINING_PAIRS = 2000  # for the means of BatchNorm's statistics


def make_config(norm: str, batch_tokens: int, steps: int) -> Config:
    keys = {
        "model.norm": NORMS[norm],
        "model.d_model": 64,
        "data.max_length": 64,
        "train.steps": steps,
        "train.batch_tokens": batch_tokens,
        "train.log_every": max(1, steps // 10),
        "optimizer.warmup_steps": max(1, steps // 4),
    }
    return jformer.get_config("tiny", **keys)


def batches_of(run: Run, split: Split) -> list[Batch]:
    """Return all batches of a split, as in training."""
    config, pairs = run.config, tokenize(split, run.vocabularies, run.config.data)
    rows = np.arange(len(split))
    data, tokens = config.data, config.train.batch_tokens
    layout = Buckets(*pairs.lengths(rows), tokens, data.num_buckets, data.length_multiple)
    made = Batches(pairs, rows, layout, config.seed)
    return [made.batch(0, number) for number in range(len(made.epoch(0)))]


def splits_of(config: Config) -> tuple[Split, Split]:
    """Return the first training pairs, and the validation pairs."""
    corpora, splits = open_data(config)
    rows = itertools.islice(read(corpora[0], "error", Report()), TRAINING_PAIRS)
    sources, targets = zip(*((source, target) for _, source, target in rows), strict=True)
    return Split([*sources], [*targets]), splits["validation"]


def nll_of(run: Run, statistics: Any = None) -> Callable[[Batch], np.ndarray]:
    """Return a function that maps a batch to the summed NLL of each row.

    Without `statistics`, BatchNorm uses the statistics of the batch.
    """
    variables = {"params": run.params, **({"batch_stats": statistics} if statistics else {})}

    @jax.jit
    def rows(variables, batch):
        logits_BTV = run.model.apply(variables, batch["source_BS"], batch["target_BT"])
        nll_BT = cross_entropy(logits_BTV, batch["labels_BT"], label_smoothing=0.0)[1]
        return jnp.sum(nll_BT * (batch["labels_BT"] != PAD), axis=1)

    return lambda batch: np.asarray(rows(variables, dict(batch)))


def mean_statistics(run: Run, batches: list[Batch]) -> Any:
    """Return BatchNorm's statistics, averaged over the first batches; empty for LayerNorm."""

    @jax.jit
    def statistics(batch):
        texts = batch["source_BS"], batch["target_BT"]
        return run.model.apply({"params": run.params}, *texts, mutable="batch_stats")[1]

    found = [statistics(dict(batch)).get("batch_stats", {}) for batch in batches[:50]]
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *found)


def per_token(nll: Callable[[Batch], np.ndarray], batches: list[Batch]) -> float:
    total = sum(float(nll(batch).sum()) for batch in batches)
    return total / sum(np.count_nonzero(batch["labels_BT"]) for batch in batches)


def changes_alone(nll: Callable[[Batch], np.ndarray], batches: list[Batch]) -> Iterator[float]:
    """Yield how much the NLL per token of each row changes if the row is scored alone."""
    for batch in batches:
        together, tokens_B = nll(batch), np.count_nonzero(batch["labels_BT"], axis=1)
        for row in np.flatnonzero(tokens_B):
            alone = nll({name: rows[row : row + 1] for name, rows in batch.items()})
            yield abs(alone[0] - together[row]) / tokens_B[row]


def table_row(norm: str, batch_tokens: int, steps: int, folder: Path) -> list[str]:
    config = make_config(norm, batch_tokens, steps)
    workdir = folder / f"{norm}-{batch_tokens}"
    jformer.train(config, workdir=workdir)
    run = jformer.load(workdir, "last", plugins=[FILE])
    training = [line["nll"] for line in read_metrics(workdir) if line["split"] == "train"]
    sample, validation = (batches_of(run, split) for split in splits_of(config))
    stored, own = nll_of(run, mean_statistics(run, sample)), nll_of(run)
    change = np.mean([*itertools.islice(changes_alone(own, validation), SENTENCES)])
    scores = (training[-1], per_token(stored, validation), per_token(own, validation), change)
    return [f"{batch_tokens:,}", norm, *(f"{score:.3f}" for score in scores)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch_tokens", default="64,512,4096")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--workdir", type=Path, default=Path("runs/layernorm_batchnorm"))
    options = parser.parse_args()
    lines = [
        ["tokens per batch", "norm", "training", "validation", "own statistics", "alone or not"]
    ]
    for batch_tokens in map(int, options.batch_tokens.split(",")):
        for norm in NORMS:
            lines.append(table_row(norm, batch_tokens, options.steps, options.workdir))
    print(aligned(lines))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status("experiments.layernorm_batchnorm", main, debug=False))
