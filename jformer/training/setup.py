"""The preparation of a run up to its first step, from config, text and run directory."""

import dataclasses
import functools
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jformer import rundir
from jformer.components import files_of
from jformer.config import Config, TrainConfig, write_config
from jformer.console import say
from jformer.data.batches import Batch, Batches
from jformer.data.cache import content_hashes
from jformer.data.corpora import Corpus, Report, Split, in_memory
from jformer.data.pipeline import make_augment, make_batches
from jformer.data.tokenize import make_vocabularies, tokenize_corpora, trainable
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError
from jformer.evaluation.scores import check_tokenizer
from jformer.files import replace_file
from jformer.model.transformer import Transformer
from jformer.schema import walk_components
from jformer.training import parallel
from jformer.training.checkpoint import Checkpoints
from jformer.training.likelihood import likelihood
from jformer.training.optimizer import depends_on_train_steps, learning_rate, make_optimizer
from jformer.training.processes import check_same
from jformer.training.provenance import (
    Hashes,
    changed_keys,
    changed_versions,
    check_config,
    component_hashes,
)
from jformer.training.restore import (
    bleu_tokenizer,
    initial_params,
    make_model,
    run_and_checkpoint,
)
from jformer.training.step import TrainState, create_state, make_train_step

# The position of a new run, as checkpoints store it: no data read, no scores, no time passed.
NEW: dict[str, Any] = {"data": None, "window": {}, "best": {}, "skipped": [], "seconds": 0.0}


MANY_EPOCHS = 50


@dataclasses.dataclass(frozen=True)
class TrainSetup:
    """Everything about a run that does not change from step to step."""

    config: Config
    workdir: Path
    mesh: Mesh
    vocabularies: Vocabularies
    batches: Batches
    report: Report
    text_hashes: Hashes  # of the training and validation text
    validation: Split
    bleu_tokenizer: str  # sacreBLEU's, chosen when the run began
    likelihood: Callable[[Any], dict[str, float]]  # scores of parameters on `validation`
    model: Transformer
    rate: Callable[[int], Any]
    create: Callable[[jax.Array], TrainState]
    train_step: Callable
    params_key: jax.Array
    dropout_key: jax.Array

    def place(self, batch: Batch, request: int) -> tuple[Any, jax.Array]:
        """Place a batch and the request of this process on the devices."""
        accumulate, backend = self.config.train.accumulate, self.config.parallel.backend
        placed = parallel.shard_batch(batch, self.mesh, accumulate, backend)
        return placed, parallel.place_request(request, self.mesh)


def prepare(
    config: Config, corpora: list[Corpus], validation: Split, workdir: Path, mesh: Mesh
) -> TrainSetup:
    """Tokenize the text and build the train step, without writing to the run directory yet."""
    begins = not Checkpoints(workdir).steps()
    if begins and config.train.init_from:
        rundir.config_of(run_and_checkpoint(config.train.init_from)[0])
    text = text_hashes(config, corpora, validation)
    content = " ".join(each for _, each in text[:-1])  # without that of the validation text
    if begins:
        vocabularies = make_vocabularies(corpora, content, config.data)
    else:
        vocabularies = Vocabularies.load(workdir, config.data.joint_vocabulary)
        check_same_vocabulary(config, corpora, content, vocabularies, workdir)
    check_tokenizer(tokenizer := bleu_tokenizer(config, Checkpoints(workdir)))
    make_augment(config.data, vocabularies)  # raises before the text is tokenized
    facts = {"vocabulary": vocabularies.hash, "bleu_tokenizer": tokenizer}
    own = component_hashes(config)
    check_same(config, text=[each for _, each in text], components=own, **facts)
    check_same_text(text, workdir)
    tokenized = tokenize_corpora(corpora, content, vocabularies, config.data)
    batches = make_batches(config, tokenized.pairs, trainable(tokenized, config.data), vocabularies)
    model = make_model(config, vocabularies.target.size, vocabularies.source.size)
    backend = config.parallel.backend
    rate, create, step = from_config(config, model, parallel.sum_devices(backend))
    everywhere = parallel.replicated(mesh)
    params_key, dropout_key = jax.jit(
        lambda: jax.random.split(jax.random.key(config.seed)), out_shardings=everywhere
    )()
    shardings = parallel.state_shardings(jax.eval_shape(create, params_key), mesh)
    return TrainSetup(
        config=config,
        workdir=workdir,
        mesh=mesh,
        vocabularies=vocabularies,
        batches=batches,
        report=tokenized.report,
        text_hashes=text,
        validation=validation,
        bleu_tokenizer=tokenizer,
        likelihood=likelihood(model, vocabularies, validation, config, mesh),
        model=model,
        rate=rate,
        create=jax.jit(create, out_shardings=shardings),
        train_step=parallel.compile_train_step(step, mesh, shardings, backend),
        params_key=params_key,
        dropout_key=dropout_key,
    )


def text_hashes(config: Config, corpora: list[Corpus], validation: Split) -> Hashes:
    """Return the names and hashes of the training text, and of the validation text as the last."""
    name = f"the validation split {config.data.validation}".rstrip()
    return content_hashes(corpora) + content_hashes([in_memory(name, validation)])


def from_config(
    config: Config, model: Transformer, sum_devices: Callable[[Any], Any] = lambda tree: tree
) -> tuple[Any, Any, Any]:
    """Return a config's schedule, a function from a key to initial states, and the train step."""
    rate = learning_rate(config)
    optimizer = make_optimizer(config.optimizer, rate)
    create = functools.partial(create_state, model, optimizer, with_ema=config.train.ema_decay > 0)
    return rate, create, make_train_step(model, optimizer, config.train, sum_devices)


def restore_or_init(setup: TrainSetup, checkpoints: Checkpoints) -> tuple[TrainState, dict]:
    """Return the state and the position of the newest checkpoint, or initial ones."""
    if checkpoints.steps():
        like = jax.eval_shape(setup.create, setup.params_key)  # with the shardings of its results
        state, position = checkpoints.restore_newest(like, setup.vocabularies.hash)
        step = int(state.step)
        metadata = checkpoints.metadata(step)
        check_config(metadata, setup.config, setup.workdir, step)
        say(f"resuming from step {step}")
        if changed := changed_versions(metadata.get("versions", {}), setup.config):
            say(f"versions    {changed}: results may differ from those of an uninterrupted run")
        return state, NEW | position
    checkpoints.remove_best()
    state = setup.create(setup.params_key)
    if setup.config.train.init_from:
        config = setup.config
        params = initial_params(config, state.params, setup.vocabularies)
        ema = None if state.ema is None else jax.tree.map(jax.numpy.copy, params)
        state = dataclasses.replace(state, params=params, ema=ema)
    return state, NEW


def write_run_files(config: Config, vocabularies: Vocabularies, workdir: Path) -> None:
    if jax.process_index() == 0:
        workdir.mkdir(exist_ok=True)
        write_config(config, workdir / rundir.CONFIG)
        texts = [text for _, _, text in walk_components(config)]
        for name, file in files_of(texts).items():
            copies = workdir / rundir.COMPONENTS
            copies.mkdir(exist_ok=True)
            replace_file(copies / name, file.content)
        vocabularies.save(workdir)


def is_complete(config: Config, workdir: Path) -> bool:
    """Return whether a run is trained, and it is decided which parameters it serves."""
    newest = max(Checkpoints(workdir).steps(), default=0)
    return bool(rundir.served_checkpoint(workdir, newest)) and is_trained(config, workdir)


def is_trained(config: Config, workdir: Path) -> bool:
    """Return whether a run has done all its steps or has been ended by early stopping.

    A run whose last checkpoint is damaged is not: it resumes from the one before.
    """
    checkpoints = Checkpoints(workdir)
    newest = max(checkpoints.steps(), default=0)
    if newest < config.train.steps:
        position = checkpoints.newest_position()
        ended = position.get("ended", False)
        if not ended or not 0 < config.train.patience <= position["best"]["worse"]:
            return False
    # Last, as it reads the whole checkpoint; a run with steps to go does so when it resumes.
    return checkpoints.is_whole(newest)


def describe_complete(config: Config, step: int, workdir: Path) -> str:
    """Return the line about a run that is complete at `step`, with the key that trains on."""
    way_on = "steps=MORE goes on"
    if step < config.train.steps:
        way_on = "patience=0 goes on"
    elif depends_on_train_steps(config):
        way_on = f"init_from={workdir} begins another one, in another workdir"
    return f"the run is complete at step {step}; config.train.{way_on}"


def check_same_config(config: Config, workdir: Path) -> None:
    """Raise `UserError` if `workdir` holds a run of another config, naming the keys that differ."""
    checkpoints = Checkpoints(workdir)
    if not checkpoints.steps() and checkpoints.best_step() is None:
        return  # nothing to lose: without a checkpoint the run starts from scratch
    before = dataclasses.asdict(rundir.config_of(workdir))
    fixed = "train.steps" if depends_on_train_steps(config) else ""
    if differing := changed_keys(before, config, fixed):
        raise UserError(
            f"{workdir} holds a run of another config: {'; '.join(differing)}. "
            f"Choose another workdir, or give the same values"
        )


def check_same_text(text: Hashes, workdir: Path) -> None:
    """Raise `UserError` if the run in `workdir` was trained with other text, naming a file."""
    before = Checkpoints(workdir).newest_position().get("text", text)
    for (old_name, old), (name, content) in zip_longest(before, text, fillvalue=("", "")):
        if old != content:
            raise UserError(
                f"{name or old_name}: has changed since the run in {workdir} was trained with it. "
                f"Put it back, or begin a new run with what this one has learned: "
                f"config.train.init_from={workdir} in another workdir"
            )


def check_same_vocabulary(
    config: Config, corpora: list[Corpus], content: str, own: Vocabularies, workdir: Path
) -> None:
    """Raise `UserError` if the config names other vocabulary files, with another content."""
    changed = config.data.vocabulary != rundir.config_of(workdir).data.vocabulary
    if changed and make_vocabularies(corpora, content, config.data).hash != own.hash:
        reason = f"is not the vocabulary that the run in {workdir} was trained with"
        raise config.data.wrong("vocabulary", reason)


def describe(setup: TrainSetup, state: TrainState) -> str:
    """Return lines that describe the model, data, batches and devices of a run."""
    config, batches, mesh = setup.config, setup.batches, setup.mesh
    leaves = jax.tree.leaves(state.params)
    parameters = sum(leaf.size for leaf in leaves)
    split = sum(leaf.size for leaf in leaves if not leaf.sharding.is_fully_replicated)
    both = dict.fromkeys(setup.vocabularies)  # one if joint
    sizes = " and ".join(f"{vocabulary.size:,}" for vocabulary in both)
    shapes = ", ".join(f"{rows}x{S}+{T}" for rows, S, T in batches.layout.shapes)
    per_epoch = len(batches.epoch(0))
    epochs = config.train.steps / per_epoch
    devices = f"{mesh.size} x {mesh.devices.flat[0].device_kind}"
    if mesh.size > 1:
        devices += f" ({', '.join(f'{name} {size}' for name, size in mesh.shape.items())})"
    if split:
        devices += f", {split / parameters:.0%} of the parameters split among them"
    computed = f"{config.model.compute_dtype}, attention by "
    computed += "cuDNN" if config.model.fused_attention else "XLA"
    warning = f"\nwarning     {text}" if (text := warning_of_epochs(epochs)) else ""
    pairs = f"{len(batches.rows):,} training pairs an epoch; {'; '.join(setup.report.lines())}"
    return (
        f"model       {parameters:,} parameters, vocabulary of {sizes}, {computed}\n"
        f"data        {pairs}\n"
        f"batches     {shapes} (rows x source + target tokens, each of these "
        f"{len(batches.layout.shapes)} compiled once);\n"
        f"            {batches.token_utilization():.0%} of positions hold a token\n"
        f"training    {config.train.steps:,} steps, {epochs:.1f} epochs of {per_epoch:,}, "
        f"by {config.parallel.backend} on {devices}{warning}"
    )


def warning_of_epochs(epochs: float) -> str:
    """Return a line if a run has so many epochs that it likely overfits, else nothing."""
    if epochs <= MANY_EPOCHS:
        return ""
    return (
        f"{epochs:,.1f} epochs: more than {MANY_EPOCHS} likely overfit the training text; lower "
        f"config.train.steps, or set config.train.patience to stop early"
    )


def advice_on_memory(train: TrainConfig) -> str:
    """Return what to do where a train step does not fit into the memory."""
    return (
        f"with config.train.batch_tokens={train.batch_tokens:,} positions a side in a batch, "
        f"computed in config.train.accumulate={train.accumulate} parts. Raise accumulate, which "
        f"gives the same result, or lower batch_tokens; `summary` with the same --config and "
        f"--memory=GIGABYTES says which fit"
    )
