"""Training a run directory: build, restore, loop, save.

The loop never waits for the newest step: metrics stay on the devices, as sums a step, until a line
of the log is due. Every random draw is a function of the seed and the step, and a checkpoint holds
the position in the data and in the log, so a run that was killed and started again ends with the
same bits as one that was not.
"""

import time
from pathlib import Path
from typing import Any

import jax

from jformer.config import Config, UserError, flatten, read_config, write_config
from jformer.data.batches import Batches, iterate, tokenize, training_batches
from jformer.data.corpora import Split
from jformer.data.vocabulary import Vocabulary
from jformer.model.transformer import Transformer
from jformer.training import parallel
from jformer.training.checkpoint import Checkpoints
from jformer.training.loss import perplexity
from jformer.training.monitor import MetricsFile, Progress, Window, format_numbers, say
from jformer.training.optimizer import learning_rate, make_optimizer
from jformer.training.step import TrainState, create_state, make_evaluation_step, make_train_step

# A run may go on with other values of these; any other key would make it another run.
MAY_CHANGE = ("train.steps", "decode.")


def train(config: Config, splits: dict[str, Split], workdir: Path) -> None:
    """Train until step `config.train.steps`, from the newest checkpoint if there is one."""
    write_config(config, workdir / "config.json")
    vocabulary = open_vocabulary(config, splits["train"], workdir)
    batches, skipped = training_batches(
        splits["train"],
        vocabulary,
        batch_tokens=config.train.batch_tokens,
        num_buckets=config.data.num_buckets,
        max_length=config.data.max_length,
        seed=config.seed,
    )
    mesh = parallel.make_mesh()
    model = Transformer(config.model, vocabulary.size)
    optimizer = make_optimizer(config.optimizer, config.model.d_model)
    key = jax.random.key(config.seed)
    state = jax.device_put(create_state(model, optimizer, key), parallel.replicated(mesh))
    say(describe(config, vocabulary, batches, skipped, state, mesh))
    with Checkpoints(workdir, keep=config.train.average_checkpoints) as checkpoints:
        state, position = restore_newest(checkpoints, state, vocabulary, workdir)
        metrics_file = MetricsFile(workdir / "metrics.jsonl", int(state.step))
        evaluation = Evaluation(model, mesh, splits["validation"], vocabulary, config)
        step_fn = parallel.compile_train_step(
            make_train_step(model, optimizer, config.train.label_smoothing), mesh
        )

        def save(state: TrainState, position: dict) -> None:
            checkpoints.save(state, position, config, vocabulary.hash)

        run_steps(config, state, position, batches, step_fn, mesh, evaluation, metrics_file, save)
        metrics_file.close()


def run_steps(
    config, state, position, batches, step_fn, mesh, evaluation, metrics_file, save
) -> None:
    """The loop: a step, and after some of them a line of the log, a validation, a checkpoint."""
    every, total, first = config.train, config.train.steps, int(state.step)
    rate = learning_rate(config.optimizer, config.model.d_model)
    # The parameters drew from this key itself; the steps draw from one folded into it.
    key = jax.device_put(
        jax.random.fold_in(jax.random.key(config.seed), 1), parallel.replicated(mesh)
    )
    iterator = iterate(batches, position["data"], total)
    window, progress = Window(position["window"]), Progress(first, total)
    for step, batch in enumerate(iterator, start=first + 1):
        state, metrics = step_fn(state, parallel.place_batch(batch, mesh), key)
        window.add(metrics)
        progress.advance()
        if step == first + 1:
            sums = window.sums()
            progress.report(step, f"first step done, {format_numbers(loss=sums['loss'] / sums['tokens'])}")
        if step % every.log_every == 0 or step == total:
            numbers = log_line(window.sums(), float(rate(step - 1)), window.began)
            metrics_file.write(step, "train", **numbers)
            progress.report(step, format_numbers(**numbers))
            window = Window({})
        if step % every.evaluate_every == 0 or step == total:
            numbers = evaluation(state.params)
            metrics_file.write(step, "validation", **numbers)
            say(f"step {step}/{total}  validation {format_numbers(**numbers)}")
        if step % every.checkpoint_every == 0 or step == total:
            save(state, {"data": iterator.get_state(), "window": window.sums()})
    progress.close()


def log_line(sums: dict[str, float], rate: float, began: float) -> dict[str, float]:
    tokens = sums["tokens"]
    return {
        "loss": sums["loss"] / tokens,
        "nll": sums["nll"] / tokens,
        "perplexity": perplexity(sums),
        "learning_rate": rate,
        "tokens_per_second": tokens / (time.monotonic() - began),
    }


class Evaluation:
    """Mean NLL a token and perplexity of a split under parameters; each pair counts once."""

    def __init__(self, model: Transformer, mesh, split: Split, vocabulary: Vocabulary, config: Config):
        self._mesh = mesh
        self._batches = Batches(
            tokenize(split, vocabulary), config.train.batch_tokens, config.data.num_buckets, seed=None
        )
        self._step = parallel.compile_evaluation_step(make_evaluation_step(model), mesh)

    def __call__(self, params: Any) -> dict[str, float]:
        window = Window({})
        for number in range(self._batches.per_epoch):
            batch = parallel.place_batch(self._batches[number], self._mesh)
            window.add(self._step(params, batch))
        sums = window.sums()
        return {"nll": sums["nll"] / sums["tokens"], "perplexity": perplexity(sums)}


def restore_newest(
    checkpoints: Checkpoints, state: TrainState, vocabulary: Vocabulary, workdir: Path
) -> tuple[TrainState, dict]:
    """The newest checkpoint's state and position, or the given state and the beginning."""
    steps = checkpoints.steps()
    if not steps:
        return state, {"data": {"next_index": 0}, "window": {}}
    if checkpoints.metadata(steps[-1])["vocabulary_hash"] != vocabulary.hash:
        raise UserError(
            f"{workdir / 'vocabulary.json'}: not the vocabulary that the checkpoints beside it were "
            f"trained with; put that one back or choose another --workdir"
        )
    say(f"resuming from step {steps[-1]}")
    return checkpoints.restore(steps[-1], state)


def open_vocabulary(config: Config, split: Split, workdir: Path) -> Vocabulary:
    """The run's own vocabulary, learned from the training side only when the run begins."""
    path = workdir / "vocabulary.json"
    if not path.exists():
        if any((workdir / "checkpoints").glob("[0-9]*")):
            raise UserError(f"{path}: missing beside checkpoints that need it; put it back")
        texts = (text for side in (split.sources, split.targets) for text in side)
        Vocabulary.train(texts, config.data.vocabulary_size).save(path)
    return Vocabulary.load(path)


def check_same_config(config: Config, workdir: Path) -> None:
    """Raise `UserError` where `workdir` holds a run of another config, naming what differs."""
    if not (workdir / "config.json").exists():
        return
    before, now = flatten(read_config(workdir / "config.json")), flatten(config)
    differing = [
        f"config.{key} was {before[key]!r}, now {now[key]!r}"
        for key in now
        if before[key] != now[key] and not key.startswith(MAY_CHANGE)
    ]
    if differing:
        raise UserError(
            f"{workdir} holds a run of another config: {'; '.join(differing)}. "
            f"Choose another --workdir, or give the same values"
        )


def describe(config, vocabulary, batches, skipped, state, mesh) -> str:
    """What is about to be trained on what, on one line each."""
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    shapes = ", ".join(f"{rows}x{length}" for rows, length in batches.shapes)
    left_out = ", ".join(f"{count} {reason}" for reason, count in skipped.items() if count)
    return (
        f"model       {parameters:,} parameters, vocabulary of {vocabulary.size:,}\n"
        f"data        {len(batches.pairs.lengths):,} training pairs"
        f"{f' ({left_out} left out)' if left_out else ''}, {batches.per_epoch:,} batches an epoch\n"
        f"batches     {shapes} (pairs x tokens, each compiled once), "
        f"{batches.non_pad_share():.0%} of positions hold a token\n"
        f"training    {config.train.steps:,} steps, {config.train.steps / batches.per_epoch:.1f} "
        f"epochs, on {mesh.size} x {mesh.devices.flat[0].device_kind}"
    )
