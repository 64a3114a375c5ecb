"""Training a run directory: build, restore, loop, save.

The loop never waits for the newest step: metrics stay on the devices, as sums a step, until a line
of the log is due. Every random draw is a function of the seed and the step, and a checkpoint holds
the position in the data and in the log, so a run that was killed and started again ends with the
same bits as one that was not.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jformer.config import Config, UserError, read_config, write_config
from jformer.data.batches import Batches, iterate
from jformer.data.cache import content_hash
from jformer.data.corpora import Corpus, Split
from jformer.data.layout import Buckets
from jformer.data.pipeline import make_batches
from jformer.data.tokens import make_vocabularies, tokenize, tokenize_corpora, trainable
from jformer.data.vocabulary import Vocabularies
from jformer.keys import flatten
from jformer.model.transformer import Transformer
from jformer.training import parallel
from jformer.training.checkpoint import Checkpoints
from jformer.training.monitor import MetricsFile, Progress, Window, say
from jformer.training.step import create_state, evaluation_step, from_config

# A run may go on with other values of these; any other key would make it another run.
MAY_CHANGE = ("train.steps", "train.log_every", "train.evaluate_every", "data.cache", "decode.")


def train(config: Config, corpora: list[Corpus], validation: Split, workdir: Path) -> None:
    """Train until step `config.train.steps`, from the newest checkpoint if there is one."""
    every, total = config.train, config.train.steps
    newest = newest_step(workdir)
    if newest >= total:
        return
    content = content_hash(corpora)
    if newest:
        vocabularies = Vocabularies.load(workdir, config.data.joint_vocabulary)
    else:
        vocabularies = make_vocabularies(corpora, content, config.data)
    tokenized = tokenize_corpora(corpora, content, vocabularies, config.data)
    rows = trainable(tokenized, config.data)
    batches = make_batches(config, tokenized.pairs, rows, vocabularies)
    begin(config, vocabularies, workdir)  # all text was read: a bad line leaves no half run
    with Checkpoints(workdir, keep=every.average_checkpoints) as checkpoints:
        mesh = parallel.make_mesh()
        model = make_model(config, vocabularies)
        rate, optimizer, step_fn = from_config(config, model)
        everywhere = parallel.replicated(mesh)
        keys = jax.random.split(jax.random.key(config.seed))
        params_key, dropout_key = jax.device_put(keys, everywhere)
        create = functools.partial(create_state, model, optimizer)
        state = jax.jit(create, out_shardings=everywhere)(params_key)
        position: dict = {"data": None, "window": {}}
        train_step = parallel.compile_train_step(step_fn, mesh)
        validate = evaluation(model, vocabularies, validation, config, mesh)
        if newest:
            say(f"resuming from step {newest}")
            checkpoints.check_vocabulary(newest, vocabularies.hash)
            state, position = checkpoints.restore(newest, state)
        say(describe(config, vocabularies, batches, tokenized.report, state, mesh))
        log, progress = MetricsFile(workdir / "metrics.jsonl", newest), Progress(newest, total)
        window = Window(position["window"])
        iterator = iterate(batches, total, position["data"])
        for step, batch in enumerate(iterator, start=newest + 1):
            state, metrics = train_step(state, parallel.place_batch(batch, mesh), dropout_key)
            window.add(metrics)
            progress.advance(metrics)
            if step % every.log_every == 0 or step == total:
                means = {**window.means(), "learning_rate": float(rate(step - 1))}
                progress.report(step, log.write(step, "train", **means))
                window = Window({})
            if step % every.evaluate_every == 0 or step == total:
                progress.report(step, log.write(step, "validation", **validate(state.params)))
            if step % every.checkpoint_every == 0 or step == total:
                position = {"data": iterator.get_state(), "window": window.sums()}
                checkpoints.save(state, position, config, vocabularies.hash)
        progress.close()


def evaluation(
    model: Transformer, vocabularies: Vocabularies, split: Split, config: Config, mesh: Mesh
) -> Callable[[Any], dict[str, float]]:
    """From parameters to the split's NLL a token and its perplexity; each pair counts once."""
    pairs = tokenize(split, vocabularies)
    most = config.model.max_positions
    longest = np.maximum(pairs.sources.lengths, pairs.targets.lengths)
    if config.model.positions == "learned" and longest.max() > most:
        line = int(longest.argmax()) + 1
        raise UserError(
            f"config.model.max_positions={most}: line {line} of a split to be scored has "
            f"{longest.max()} tokens; raise it, or shorten the line"
        )
    rows = np.arange(len(split))
    layout = Buckets(*pairs.lengths(rows), config.train.batch_tokens, config.data.num_buckets)
    batches = Batches(pairs, rows, layout, config.seed)

    def evaluate(params: Any) -> dict[str, float]:
        window = Window({})
        for number in range(len(batches.epoch(0))):
            batch = parallel.place_batch(batches.batch(0, number), mesh)
            window.add(evaluation_step(model, params, batch))
        means = window.means()
        return {name: means[name] for name in ("nll", "perplexity")}

    return evaluate


def make_model(config: Config, vocabularies: Vocabularies) -> Transformer:
    return Transformer(config.model, vocabularies.target.size, vocabularies.source.size)


def begin(config: Config, vocabularies: Vocabularies, workdir: Path) -> None:
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--workdir={workdir}: cannot be made ({error.strerror})") from error
    write_config(config, workdir / "config.json")
    vocabularies.save(workdir)


def newest_step(workdir: Path) -> int:
    """Of the newest checkpoint; 0 if there is none."""
    if not any((workdir / "checkpoints").glob("[0-9]*")):
        return 0
    with Checkpoints(workdir) as checkpoints:
        return max(checkpoints.steps(), default=0)


def check_same_config(config: Config, workdir: Path) -> None:
    """Raise `UserError` where `workdir` holds a run of another config, naming what differs."""
    if not newest_step(workdir):
        return  # nothing is lost: what stopped before its first checkpoint begins anew
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


def describe(config, vocabularies, batches, report, state, mesh) -> str:
    """What is about to be trained on what."""
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    both = dict.fromkeys((vocabularies.source, vocabularies.target))  # one, where they are joint
    sizes = " and ".join(f"{vocabulary.size:,}" for vocabulary in both)
    shapes = ", ".join(f"{rows}x{S}+{T}" for rows, S, T in batches.layout.shapes)
    per_epoch = len(batches.epoch(0))
    epochs = config.train.steps / per_epoch
    return (
        f"model       {parameters:,} parameters, vocabulary of {sizes}\n"
        f"data        {len(batches.rows):,} training pairs an epoch; {'; '.join(report.lines())}\n"
        f"batches     {shapes} (rows x source + target tokens, each of these "
        f"{len(batches.layout.shapes)} compiled once);\n"
        f"            {batches.non_pad_share():.0%} of positions hold a token\n"
        f"training    {config.train.steps:,} steps, {epochs:.1f} epochs of {per_epoch:,}, "
        f"on {mesh.size} x {mesh.devices.flat[0].device_kind}"
    )
