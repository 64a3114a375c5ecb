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
from jformer.data.batches import Batch, Position, iterate, make_augment, make_batches
from jformer.data.corpora import Corpus, Split, in_memory
from jformer.data.datasets import open_data
from jformer.data.tokens import (
    content_hashes,
    make_vocabularies,
    select_training_pairs,
    tokenize_corpora,
)
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
from jformer.training.step import create_state, make_train_step

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
    cannot continue or save, and what `on_metrics` raises. `Stopped` and the last come after a save.
    """
    clock = Clock()
    check_same_config(config, workdir)
    say(f"workdir     {workdir}")
    data_set = f"{config.data.name}, {config.data.languages}"
    say(f"config      {config.name}, {config.train.steps:,} steps on {data_set}")
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
    advice = (
        f"with config.train.batch_tokens={config.train.batch_tokens:,} and "
        f"config.train.accumulate={config.train.accumulate}. Raise accumulate, which gives the "
        f"same result in more parts, or lower batch_tokens; `summary` prints the memory of a step"
    )
    lock = rundir.locked(workdir) if sharding.is_first() else contextlib.nullcontext()
    with lock, explaining_out_of_memory(advice):
        check_own_components(config)
        training = Training(config, corpora, splits["validation"], workdir, mesh)
        with Checkpoints(workdir, config.train) as checkpoints:
            seconds = training.resume(checkpoints)
            training.write_files()  # after everything that can be a user error
            say(training.description())
            step = int(training.state.step)
            log = Log(config, workdir, clock, step, seconds, on_metrics)
            with contextlib.closing(log), contextlib.closing(tracing):
                if not is_trained(config, workdir):  # else killed after its last checkpoint
                    training.run(log, tracing)
                with log.clock("evaluation"):
                    training.choose_served()
    return scored


class Training:
    """A training run: made from config and text, then `resume`d, then `run`."""

    def __init__(
        self,
        config: Config,
        corpora: list[Corpus],
        validation: Split,
        workdir: Path,
        mesh: Mesh,
    ):
        """Tokenize the text and build the train step, without writing to the run directory yet."""
        self.config, self.workdir, self.mesh, self.validation = config, workdir, mesh, validation
        text_hash = self._open_vocabularies(corpora)
        tokenized = tokenize_corpora(corpora, text_hash, self.vocabularies, config.data)
        rows = select_training_pairs(tokenized, config.data)
        self.report = tokenized.report
        self.batches = make_batches(config, tokenized.pairs, rows, self.vocabularies)
        sizes = self.vocabularies.target.size, self.vocabularies.source.size
        self.model = Transformer(config.model, *sizes)
        self.likelihood = likelihood(self.model, self.vocabularies, validation, config, mesh)

        backend = config.parallel.backend
        self.rate, create, step = from_config(config, self.model, sharding.sum_devices(backend))
        # The two keys of a run. The step folds its number into the dropout key, see step.py.
        self.params_key, self.dropout_key = jax.jit(
            lambda: jax.random.split(jax.random.key(config.seed)),
            out_shardings=sharding.replicated(mesh),
        )()
        shardings = sharding.state_shardings(jax.eval_shape(create, self.params_key), mesh)
        self.create = jax.jit(create, out_shardings=shardings)
        self.compiled_step = sharding.compile_train_step(step, mesh, shardings, backend)
        self.metadata = provenance.metadata(config, self.vocabularies.hash)

    def _open_vocabularies(self, corpora: list[Corpus]) -> str:
        """Train the vocabularies, or load those of a run that resumes; return the text's hashes.

        Raises `UserError` if the run was trained with other text or vocabularies, or if another
        process has others.
        """
        config, workdir = self.config, self.workdir
        begins = not Checkpoints(workdir).steps()
        if begins and config.train.init_from:  # fails early if this is not a run
            rundir.config_of(run_and_checkpoint(config.train.init_from)[0])
        self.text = text_hashes(config, corpora, self.validation)
        check_same_text(self.text, workdir)
        text_hash = " ".join(digest for _, digest in self.text[:-1])  # of the training text
        if begins:
            self.vocabularies = make_vocabularies(corpora, text_hash, config.data)
        else:
            self.vocabularies = Vocabularies.load(workdir, config.data.joint_vocabulary)
            check_same_vocabulary(config, corpora, text_hash, self.vocabularies, workdir)
        self.bleu_tokenizer = bleu_tokenizer(config, Checkpoints(workdir))
        check_tokenizer(self.bleu_tokenizer)
        make_augment(config.data, self.vocabularies)  # raises before the text is tokenized
        own = flatten(config)
        del own["parallel.coordinator"]  # it has the index of the process
        hashes = [digest for _, digest in self.text], provenance.component_hashes(config)
        facts = [jax.__version__, own, *hashes, self.vocabularies.hash, self.bleu_tokenizer]
        sharding.check_same(json.dumps(facts))
        return text_hash

    def resume(self, checkpoints: Checkpoints) -> float:
        """Take the newest checkpoint, or begin; return the seconds of training so far."""
        self.checkpoints, config = checkpoints, self.config
        position = NEW
        if checkpoints.steps():
            like = jax.eval_shape(self.create, self.params_key)  # with the shardings of its results

            def check(metadata: dict[str, Any]) -> None:
                provenance.check_metadata(metadata, config, self.vocabularies.hash, self.workdir)

            self.state, stored, metadata = checkpoints.restore_newest(like, check)
            position = NEW | stored
            say(f"resuming from step {self.state.step}")
            if changed := provenance.changed_versions(metadata["versions"], config):
                say(f"versions    {changed}: results may differ from those of an unstopped run")
        else:
            checkpoints.delete(checkpoints.steps(best=True), best=True)  # of a run without others
            self.state = self.create(self.params_key)
            if config.train.init_from:
                params = initial_params(config, self.state.params, self.vocabularies)
                ema = None if self.state.ema is None else jax.tree.map(jnp.copy, params)
                self.state = dataclasses.replace(self.state, params=params, ema=ema)
        self.after = position["data"]  # the position in the data
        self.best, self.skipped = Best(**position["best"]), [*position["skipped"]]
        device, dtype = self.mesh.local_devices[0], config.model.compute_dtype
        peak = self.mesh.size * peak_flops(device, dtype)
        size = self.vocabularies.target.size  # for FLOPs; the config has the largest size allowed
        data = dataclasses.replace(config.data, vocabulary_size=size)
        self.window = Window(dataclasses.replace(config, data=data), peak, position["window"])
        return position["seconds"]

    def write_files(self) -> None:
        """Write the config, copies of component files, and the vocabularies."""
        if not sharding.is_first():
            return
        write_config(self.config, self.workdir / rundir.CONFIG)
        texts = [text for _, _, text in walk_components(self.config)]
        for name, file in files_of(texts).items():
            (self.workdir / rundir.COMPONENTS).mkdir(exist_ok=True)
            replace_file(self.workdir / rundir.COMPONENTS / name, file.content)
        self.vocabularies.save(self.workdir)

    def description(self) -> str:
        params = self.state.params
        return describe(
            self.config, self.vocabularies, self.report, self.batches, self.mesh, params
        )

    def run(self, log: Log, profile: Profile) -> None:
        """Train to the last step and save it. Raises `Stopped` if a signal ends the run early."""
        self.log, self.profile, train = log, profile, self.config.train
        part, parts = sharding.parts_of(self.mesh)
        batches = iterate(self.batches, train.steps, self.after, part=part, parts=parts)
        # Several processes must agree on the step, and learn of a request by its metrics.
        request, alone = 0, jax.process_count() == 1
        with Signals(train.checkpoint_minutes) as self.signals:
            for step in range(int(self.state.step) + 1, train.steps + 1):
                request = self.train_step(step, batches)
                if self.due(step, train.log_every):
                    log.train_line(step, self.window, float(self.rate(step - 1)))
                with log.clock("evaluation"):
                    self.validate(step)
                ended = 0 < train.patience <= self.best.worse
                if ended:
                    log(step, "ended", patience=train.patience, best_step=self.best.step)
                saved = ended or self.due(step, train.checkpoint_every)
                if saved:
                    self.save(ended)
                ends = self.call_back(step, saved)
                if alone:
                    request = self.signals.request
                if (request or ends) and not saved:
                    self.save(ended=ends)
                self.checkpoints.check_errors()
                if request > SAVE or ended or ends:
                    break
            with log.clock("checkpoints"):
                self.checkpoints.steps()  # waits for the last one
            if alone:
                request = self.signals.request  # may have come during the last save
        if request > SAVE:
            raise Stopped(request - SAVE)

    def due(self, step: int, interval: int) -> bool:
        """Return True at the multiples of an interval and at the last step; never if it is 0."""
        return bool(interval) and (step % interval == 0 or step == self.config.train.steps)

    def train_step(self, step: int, batches: Iterator[tuple[Batch, Position]]) -> int:
        """Do one step on the next batch; return what a process requests: to save, or to stop."""
        log, config = self.log, self.config
        self.profile.step_begins(step)
        with log.clock("input"):
            batch, self.after = next(batches)
            accumulate, backend = config.train.accumulate, config.parallel.backend
            placed = sharding.shard_batch(batch, self.mesh, accumulate, backend)
            request_X = sharding.place_request(self.signals.request, self.mesh)
        compiles = log.is_new_shape(batch)
        with log.clock("compilation" if compiles else "steps"):
            self.state, metrics = self.compiled_step(
                self.state, placed, self.dropout_key, request_X
            )
            log.advance(step, metrics, compiles)
            self.profile.step_ended(step, metrics)
            self.window.add(batch, self.after, metrics, timed=not compiles)
            request = self.fetch(behind=2)  # late, so that the devices never wait for the host
            train = config.train
            every = (train.log_every, train.evaluate_every, train.metrics_every)
            due = any(self.due(step, interval) for interval in (*every, train.checkpoint_every))
            stops_alone = jax.process_count() == 1 and self.signals.request
            if due or request or stops_alone:
                request = max(request, self.fetch())
        return request

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
                    f"skipped. Lower the learning rate or set config.optimizer.clip_norm, in "
                    f"another workdir; config.train.init_from={self.workdir} keeps the weights"
                )
        return request

    def validate(self, step: int) -> None:
        """Compute and log the scores that are due; save the state if it is the best so far."""
        train = self.config.train
        scores: dict[str, float] = {}
        if self.due(step, train.evaluate_every):
            scores |= self.likelihood(self.validated_params)
        if self.due(step, train.metrics_every):
            scores |= scores_of_outputs(
                self.model,
                self.validated_params,
                self.vocabularies,
                self.validation,
                self.config,
                self.bleu_tokenizer,
                step,
                self.log.board if self.log.writes else None,
            )
        if scores:
            self.log(step, "validation", **scores)
        score = scores.get(train.best_by)
        if score is not None and self.best.note(step, train.best_by, score):
            self.checkpoints.save_best(self.state, {**self.metadata, "score": score})

    @property
    def validated_params(self) -> Any:
        """The moving average of the parameters, or without one the parameters themselves."""
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
                "text": self.text,
                "bleu_tokenizer": self.bleu_tokenizer,
                "ended": ended,
            }
            self.checkpoints.save(self.state, position, self.metadata)
            self.signals.reset_timer()

    def call_back(self, step: int, saved: bool) -> bool:
        """Call `on_metrics` if a line was logged; return whether it ends the run.

        If the step has a checkpoint, it is complete by then. If the callback raises, the state is
        saved first.
        """
        if not self.log.has_pending_lines:
            return False
        self.checkpoints.steps()  # waits for the save

        @functools.cache
        def run() -> Restored:
            return Restored(
                self.workdir,
                "last" if self.state.ema is None else "average",
                self.config,
                self.vocabularies,
                self.model,
                on_one_device(self.validated_params),
                (step,),
                self.bleu_tokenizer,
            )

        try:
            return self.log.call_back(run)
        except BaseException as error:
            if not saved:
                self.save(ended=False)
            error.add_note(f"progress saved at step {step}; the same call resumes")
            raise

    def choose_served(self) -> None:
        """Record in results.json whether the average or the last checkpoint is served.

        It is the one with the lower NLL on the validation split. Early in training, the average of
        Section 6.1 is of parameters that differ too much, and far worse than any of them.
        """
        state, moving = self.state, self.state.ema is not None
        step = int(state.step)
        steps = [step] if moving else averaged(self.checkpoints.steps(), True, self.config.train)
        served: dict[str, Any] = {"checkpoint": "last", "step": step}
        if moving or steps != [step]:
            like = jax.eval_shape(self.create, self.params_key).params  # with their shardings
            average = state.ema if moving else self.checkpoints.mean(steps, like)
            nll_of_average = self.likelihood(average)["nll"]
            nll_of_last = self.likelihood(state.params)["nll"]
            served["validation_nll"] = {"average": nll_of_average, "last": nll_of_last}
            comparison = "worse"
            if nll_of_average <= nll_of_last:
                served["checkpoint"], comparison = "average", "better"
            say(
                f"served      {served['checkpoint']}: {describe_parameters(steps, moving)} has "
                f"validation nll {nll_of_average:.3f}, {comparison} than the last checkpoint's "
                f"{nll_of_last:.3f}"
            )
        if sharding.is_first():
            rundir.write_results(self.workdir, rundir.SERVED, served)


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
