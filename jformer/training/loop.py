"""A training run: prepare, resume, train, log, validate, save.

Read it from top to bottom. Every random draw is a function of the seed and the step, and
a checkpoint holds the position in the data and the sums of the log. So a run that was stopped and
resumed ends with the same bits as one that was not.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jformer import rundir
from jformer.components import files_of
from jformer.config import Config, write_config
from jformer.console import say
from jformer.data.batches import Batch, Batches, Position, iterate
from jformer.data.cache import content_hashes
from jformer.data.corpora import Corpus, Report, Split, in_memory
from jformer.data.pipeline import make_augment, make_batches, open_data
from jformer.data.tokenize import make_vocabularies, tokenize_corpora, trainable
from jformer.data.vocabulary import Vocabularies
from jformer.errors import RunError, Stopped, UserError, explaining_out_of_memory
from jformer.evaluation.scores import check_tokenizer
from jformer.files import replace_file
from jformer.model.transformer import Transformer
from jformer.schema import flatten, walk_components
from jformer.training import provenance, sharding
from jformer.training.checkpoints import Checkpoints, averaged
from jformer.training.checks import check_own_components
from jformer.training.compilation import use_compilation_cache
from jformer.training.evaluate import Best, likelihood, on_one_device, scores_of_outputs
from jformer.training.flops import peak_flops
from jformer.training.logging import Clock, Log, OnMetrics, Profile, Window, describe
from jformer.training.optimizer import make_optimizer
from jformer.training.provenance import (
    check_same_config,
    check_same_text,
    check_same_vocabulary,
    is_complete,
    is_trained,
)
from jformer.training.restore import (
    Restored,
    bleu_tokenizer,
    describe_parameters,
    initial_params,
    run_and_checkpoint,
)
from jformer.training.schedules import learning_rate
from jformer.training.signals import SAVE, Signals
from jformer.training.step import TrainState, create_state, make_train_step

# What checkpoints store beside the state, of a run that has not begun.
NEW: dict[str, Any] = {"data": None, "window": {}, "best": {}, "skipped": [], "seconds": 0.0}
MAX_SKIPPED = 10  # consecutive updates that are not finite


def train(
    config: Config,
    workdir: Path,
    profile: str = "",
    data: tuple[list[Corpus], dict[str, Split]] | None = None,
    on_metrics: OnMetrics | None = None,
) -> dict[str, Split]:
    """Train until step `config.train.steps`, from the newest checkpoint if there is one.

    Returns the splits of `config.train.scored`. `profile` is STEP:COUNT, and `data` replaces the
    corpora that the config names. Raises `Stopped` if a signal ended the run, `RunError` if it
    cannot continue or save, and what `on_metrics` raises, each after a last checkpoint.
    """
    clock = Clock()
    check_same_config(config, workdir)
    say(f"workdir     {workdir}")
    steps, corpus = f"{config.train.steps:,} steps", config.data
    say(f"config      {config.name}, {steps} on {corpus.name}, {corpus.languages}")
    if on_metrics and jax.process_count() > 1:
        raise UserError("on_metrics requires a run of one process")
    use_compilation_cache(config)
    sharding.check_shared(workdir)
    mesh, tracing = sharding.make_mesh(config), Profile(profile, workdir)
    corpora, splits = data or open_data(config)
    wanted = config.train.scored
    scored = {
        name: split
        for name, split in splits.items()
        if wanted == "all" or (name == "validation") == (wanted == "validation")
    }
    if is_complete(config, workdir):
        if data:
            check_same_text(text_hashes(config, corpora, splits["validation"]), workdir)
        return scored
    memory = (
        f"with config.train.batch_tokens={config.train.batch_tokens:,} and "
        f"config.train.accumulate={config.train.accumulate}. Raise accumulate, which gives the "
        f"same result in more parts, or lower batch_tokens; `summary --memory=GB` says what fits"
    )
    lock = rundir.locked(workdir) if sharding.is_first() else contextlib.nullcontext()
    with lock, explaining_out_of_memory(memory):
        check_own_components(config)
        setup = prepare(config, corpora, splits["validation"], workdir, mesh)
        say(f"data        {'; '.join(setup.report.lines())}")
        with Checkpoints(workdir, config.train) as checkpoints:
            state, position = resume(setup, checkpoints)
            write_run_files(setup)  # after everything that can be a mistake of the user
            log = Log(config, workdir, clock, int(state.step), position["seconds"], on_metrics)
            say(describe(config, setup.vocabularies, setup.batches, mesh, state.params))
            with contextlib.closing(log), contextlib.closing(tracing):
                if not is_trained(config, workdir):  # else killed after its last checkpoint
                    state = Loop(setup, state, position, checkpoints, log, tracing).run()
                with log.clock("evaluation"):
                    choose_served(setup, state, checkpoints)
    return scored


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything about a run that does not change from step to step."""

    config: Config
    workdir: Path
    mesh: Mesh
    vocabularies: Vocabularies
    batches: Batches
    report: Report
    text: list[tuple[str, str]]  # names and hashes of the training and validation text
    validation: Split
    bleu_tokenizer: str  # sacreBLEU's, chosen when the run began
    likelihood: Callable[[Any], dict[str, float]]  # of parameters, on `validation`
    model: Transformer
    rate: Callable[[int], Any]
    create: Callable[[jax.Array], TrainState]
    train_step: Callable
    params_key: jax.Array
    dropout_key: jax.Array


def prepare(
    config: Config, corpora: list[Corpus], validation: Split, workdir: Path, mesh: Mesh
) -> Setup:
    """Tokenize the text and build the train step, without writing to the run directory yet."""
    begins = not Checkpoints(workdir).steps()
    if begins and config.train.init_from:  # fails early if this is not a run
        rundir.config_of(run_and_checkpoint(config.train.init_from)[0])
    text = text_hashes(config, corpora, validation)
    check_same_text(text, workdir)
    content = " ".join(digest for _, digest in text[:-1])  # of the training text
    if begins:
        vocabularies = make_vocabularies(corpora, content, config.data)
    else:
        vocabularies = Vocabularies.load(workdir, config.data.joint_vocabulary)
        check_same_vocabulary(config, corpora, content, vocabularies, workdir)
    check_tokenizer(tokenizer := bleu_tokenizer(config, Checkpoints(workdir)))
    make_augment(config.data, vocabularies)  # raises before the text is tokenized
    own = {f"config.{name}": value for name, value in flatten(config).items()}
    del own["config.parallel.coordinator"]  # it has the index of the process
    hashes = [digest for _, digest in text], provenance.component_hashes(config)
    facts = [jax.__version__, own, *hashes, vocabularies.hash, tokenizer]
    sharding.check_same(json.dumps(facts))

    tokenized = tokenize_corpora(corpora, content, vocabularies, config.data)
    batches = make_batches(config, tokenized.pairs, trainable(tokenized, config.data), vocabularies)
    model = Transformer(config.model, vocabularies.target.size, vocabularies.source.size)
    backend = config.parallel.backend
    rate, create, step = from_config(config, model, sharding.sum_devices(backend))
    everywhere = sharding.replicated(mesh)
    # The two keys of a run. The step folds its number into the dropout key, see step.py.
    params_key, dropout_key = jax.jit(
        lambda: jax.random.split(jax.random.key(config.seed)), out_shardings=everywhere
    )()
    shardings = sharding.state_shardings(jax.eval_shape(create, params_key), mesh)
    return Setup(
        config=config,
        workdir=workdir,
        mesh=mesh,
        vocabularies=vocabularies,
        batches=batches,
        report=tokenized.report,
        text=text,
        validation=validation,
        bleu_tokenizer=tokenizer,
        likelihood=likelihood(model, vocabularies, validation, config, mesh),
        model=model,
        rate=rate,
        create=jax.jit(create, out_shardings=shardings),
        train_step=sharding.compile_train_step(step, mesh, shardings, backend),
        params_key=params_key,
        dropout_key=dropout_key,
    )


def text_hashes(config: Config, corpora: list[Corpus], validation: Split) -> list[tuple[str, str]]:
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


def resume(setup: Setup, checkpoints: Checkpoints) -> tuple[TrainState, dict[str, Any]]:
    """Return the state and the position of the newest checkpoint, or those of a new run."""
    config = setup.config
    if checkpoints.steps():
        like = jax.eval_shape(setup.create, setup.params_key)  # with the shardings of its results

        def check(metadata: dict[str, Any]) -> None:
            provenance.check_metadata(metadata, config, setup.vocabularies.hash, setup.workdir)

        state, position, metadata = checkpoints.restore_newest(like, check)
        say(f"resuming from step {state.step}")
        if changed := provenance.changed_versions(metadata["versions"], config):
            say(f"versions    {changed}: results may differ from those of an uninterrupted run")
        return state, NEW | position
    checkpoints.delete(checkpoints.steps(best=True), best=True)  # left by a run without others
    state = setup.create(setup.params_key)
    if config.train.init_from:
        params = initial_params(config, state.params, setup.vocabularies)
        ema = None if state.ema is None else jax.tree.map(jnp.copy, params)
        state = dataclasses.replace(state, params=params, ema=ema)
    return state, NEW


def write_run_files(setup: Setup) -> None:
    """Write the config, copies of component files, and the vocabularies."""
    config, workdir = setup.config, setup.workdir
    if not sharding.is_first():
        return
    write_config(config, workdir / rundir.CONFIG)
    texts = [text for _, _, text in walk_components(config)]
    for name, file in files_of(texts).items():
        (workdir / rundir.COMPONENTS).mkdir(exist_ok=True)
        replace_file(workdir / rundir.COMPONENTS / name, file.content)
    setup.vocabularies.save(workdir)


class Loop:
    """The loop over train steps, and all that changes from step to step."""

    def __init__(
        self,
        setup: Setup,
        state: TrainState,
        position: dict[str, Any],
        checkpoints: Checkpoints,
        log: Log,
        profile: Profile,
    ):
        self.setup, self.state, self.after = setup, state, position["data"]
        self.checkpoints, self.log, self.profile = checkpoints, log, profile
        self.best, self.skipped = Best(**position["best"]), [*position["skipped"]]
        device, dtype = setup.mesh.local_devices[0], setup.config.model.compute_dtype
        self.window = Window(
            setup.config, setup.mesh.size * peak_flops(device, dtype), position["window"]
        )
        self.metadata = provenance.metadata(setup.config, setup.vocabularies.hash)

    def run(self) -> TrainState:
        """Train to the last step, save it, and return the state.

        Raises `Stopped` if a signal ends the run before, with the state saved.
        """
        setup, log, train = self.setup, self.log, self.setup.config.train
        part, parts = sharding.parts_of(setup.mesh)
        batches = iterate(setup.batches, train.steps, self.after, part=part, parts=parts)
        request = 0
        with Signals(train.checkpoint_minutes) as self.signals:
            for step in range(int(self.state.step) + 1, train.steps + 1):
                request = self.train_step(step, batches)
                if self.due(step, train.log_every):
                    log.train_line(step, self.window, float(setup.rate(step - 1)))
                with log.clock("evaluation"):
                    self.validate(step)
                ended = 0 < train.patience <= self.best.worse
                if ended:
                    log(step, "ended", patience=train.patience, best_step=self.best.step)
                saved = ended or self.due(step, train.checkpoint_every)
                if saved:
                    self.save(ended)
                ends = self.call_back(step, saved)
                if (request or ends) and not saved:
                    self.save(ended=ends)
                self.checkpoints.check_errors()
                if request > SAVE or ended or ends:
                    break
            with log.clock("checkpoints"):
                self.checkpoints.steps()  # waits for the last one
            if jax.process_count() == 1:
                request = self.signals.request  # may have come during the last save
        if request > SAVE:
            raise Stopped(request - SAVE)
        return self.state

    def due(self, step: int, interval: int) -> bool:
        """Return True at the multiples of an interval and at the last step; never if it is 0."""
        return bool(interval) and (step % interval == 0 or step == self.setup.config.train.steps)

    def train_step(self, step: int, batches: Iterator[tuple[Batch, Position]]) -> int:
        """Do one step on the next batch; return what a process requests: to save, or to stop."""
        setup, log, config = self.setup, self.log, self.setup.config
        self.profile.step_begins(step)
        with log.clock("input"):
            batch, self.after = next(batches)
            accumulate, backend = config.train.accumulate, config.parallel.backend
            placed = sharding.shard_batch(batch, setup.mesh, accumulate, backend)
            request_X = sharding.place_request(self.signals.request, setup.mesh)
        compiles = log.is_new_shape(batch)
        with log.clock("compilation" if compiles else "steps"):
            self.state, metrics = setup.train_step(self.state, placed, setup.dropout_key, request_X)
            log.advance(step, metrics, compiles)
            self.profile.step_ended(step, metrics)
            self.window.add(batch, self.after, metrics, timed=not compiles)
            request = self.fetch(behind=2)  # late, so that the devices never wait for the host
            train = config.train
            every = (train.log_every, train.evaluate_every, train.metrics_every)
            if any(self.due(step, interval) for interval in (*every, train.checkpoint_every)):
                request = max(request, self.fetch())
        # Several processes must agree on the step, and learn of a request by its metrics.
        return self.signals.request if jax.process_count() == 1 else request

    def fetch(self, behind: int = 0) -> int:
        """Fetch metrics, and log the updates that were skipped; return the highest request."""
        request = 0
        for after, metrics in self.window.fetch(behind):
            request = max(request, int(metrics["request"]))
            if not metrics["skipped"]:
                self.skipped = []
                continue
            at = {"epoch": after["epoch"], "batch": after["batch"] - 1}
            self.skipped.append({"step": after["taken"], **at})
            self.log(after["taken"], "skipped", **at)
            if len(self.skipped) >= MAX_SKIPPED:
                batches = ", ".join(f"{one['epoch']}:{one['batch']}" for one in self.skipped)
                raise RunError(
                    f"steps {self.skipped[0]['step']} to {after['taken']}: the loss or its "
                    f"gradient was not finite (epoch:batch {batches}), and the updates were "
                    f"skipped. Lower the learning rate or set config.optimizer.clip_norm"
                )
        return request

    def validate(self, step: int) -> None:
        """Compute and log the scores that are due; save the state if it is the best so far."""
        setup, train = self.setup, self.setup.config.train
        scores: dict[str, float] = {}
        if self.due(step, train.evaluate_every):
            scores |= setup.likelihood(self.averaged_params)
        if self.due(step, train.metrics_every):
            scores |= scores_of_outputs(
                setup.model,
                self.averaged_params,
                setup.vocabularies,
                setup.validation,
                setup.config,
                setup.bleu_tokenizer,
                step,
                self.log.board if self.log.writes else None,
            )
        if scores:
            self.log(step, "validation", **scores)
        score = scores.get(train.best_by)
        if score is not None and self.best.note(step, train.best_by, score):
            self.checkpoints.save_best(self.state, {**self.metadata, "score": score})

    @property
    def averaged_params(self) -> Any:
        """The moving average of the parameters, or the parameters themselves without one."""
        return self.state.params if self.state.ema is None else self.state.ema

    def save(self, ended: bool) -> None:
        """Save the state, and everything else that a resumed run needs."""
        with self.log.clock("checkpoints"):
            self.fetch()
            position = {
                "data": self.after,
                "window": self.window.sums,
                "best": dataclasses.asdict(self.best),
                "skipped": self.skipped,
                "seconds": self.log.seconds,
                "text": self.setup.text,
                "bleu_tokenizer": self.setup.bleu_tokenizer,
                "ended": ended,
            }
            self.checkpoints.save(self.state, position, self.metadata)
            self.signals.reset_timer()

    def call_back(self, step: int, saved: bool) -> bool:
        """Call `on_metrics` if a line was logged; return whether it ends the run.

        The checkpoint of the step is complete by then. If it raises, the state is saved first.
        """
        if not self.log.has_callback:
            return False
        self.checkpoints.steps()  # waits for the save
        setup = self.setup

        @functools.cache
        def run() -> Restored:
            return Restored(
                setup.workdir,
                "last",
                setup.config,
                setup.vocabularies,
                setup.model,
                on_one_device(self.averaged_params),
                (step,),
                setup.bleu_tokenizer,
            )

        try:
            return self.log.call_back(run)
        except BaseException as error:
            if not saved:
                self.save(ended=False)
            error.add_note(f"progress saved at step {step}; the same call resumes")
            raise


def choose_served(setup: Setup, state: TrainState, checkpoints: Checkpoints) -> None:
    """Record in results.json whether the average or the last checkpoint is served.

    It is the one with the lower NLL on the validation split. Early in training, the average of
    Section 6.1 is of parameters that differ too much, and far worse than any of them.
    """
    train, step, moving = setup.config.train, int(state.step), state.ema is not None
    steps = [step] if moving else averaged(checkpoints.steps(), True, train)
    served: dict[str, Any] = {"checkpoint": "last", "step": step}
    if moving or steps != [step]:
        like = jax.eval_shape(setup.create, setup.params_key).params  # with their shardings
        average = state.ema if moving else checkpoints.mean(steps, like)
        nll_of_average = setup.likelihood(average)["nll"]
        nll_of_last = setup.likelihood(state.params)["nll"]
        served["validation_nll"] = {"average": nll_of_average, "last": nll_of_last}
        if nll_of_average <= nll_of_last:
            served["checkpoint"] = "average"
        better = "better" if nll_of_average <= nll_of_last else "worse"
        say(
            f"served      {served['checkpoint']}: {describe_parameters(steps, moving)} has "
            f"validation nll {nll_of_average:.3f}, {better} than {nll_of_last:.3f} of the last "
            f"checkpoint"
        )
    if sharding.is_first():
        rundir.write_results(setup.workdir, rundir.SERVED, served)
