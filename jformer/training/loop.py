"""A training run: prepare, resume, train, log, validate, save.

Random draws depend on the seed and the step alone. A checkpoint also has the position in the data
and the sums of the log. So a resumed run ends with the bits of an uninterrupted one.
"""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from jformer import rundir
from jformer.backend import use_compilation_cache
from jformer.config import Config
from jformer.console import say
from jformer.data.batches import Batch, Position, iterate, make_batches
from jformer.data.corpora import Corpus, Split
from jformer.data.datasets import open_data
from jformer.data.tokens import make_vocabularies, tokenize_corpora
from jformer.data.vocabulary import Vocabularies
from jformer.errors import Stopped, explaining_out_of_memory
from jformer.evaluation.scores import tokenizer_for
from jformer.model.transformer import Transformer
from jformer.run import Run
from jformer.schema import flatten, replaced
from jformer.training import provenance, sharding
from jformer.training.checkpoints import Checkpoints, averaged
from jformer.training.evaluate import check_decoding, likelihood, scores_of_outputs
from jformer.training.init_from import initial_params
from jformer.training.logging import Log, Window, describe, profiled_steps
from jformer.training.optimizer import make_optimizer
from jformer.training.schedules import learning_rate
from jformer.training.signals import Signals
from jformer.training.step import create_state, make_train_step

# Called with the step, the split and the numbers of a line, and the current run.
OnMetrics = Callable[[int, str, dict[str, float], Run], Any]
# The best validation score, negated unless it is the NLL, and the number of scores since then.
NO_BEST = {"score": math.inf, "step": 0, "worse": 0}
# The contents of a checkpoint besides the state, before the first step.
NEW: dict[str, Any] = {"data": None, "window": {}, "best": NO_BEST, "seconds": 0.0}


def train(
    config: Config,
    workdir: Path,
    profile: str = "",
    data: tuple[list[Corpus], dict[str, Split]] | None = None,
    on_metrics: OnMetrics | None = None,
) -> dict[str, Split]:
    """Train until step `config.train.steps`, from the newest checkpoint if there is one.

    Returns the splits of `config.train.scored`. `profile` is STEP:COUNT. `data` replaces the
    corpora of the config. Raises `Stopped` if a signal ended the run, after a save, and `RunError`
    if it cannot continue or save.
    """
    provenance.check_same_config(config, workdir)
    data_set = f"{config.data.name}, {config.data.languages}"
    say(f"workdir     {workdir}")
    say(f"config      {config.name}, {config.train.steps:,} steps on {data_set}")
    use_compilation_cache(config.compilation_cache)
    mesh, profiled = sharding.make_mesh(config), profiled_steps(profile)
    corpora, splits = data or open_data(config)
    validation = splits["validation"]
    scored = {"validation": validation} if config.train.scored == "validation" else dict(splits)
    if config.train.scored == "test":
        del scored["validation"]
    text = provenance.text_hashes(config, corpora, validation)
    provenance.check_same_text(text, workdir)
    if provenance.is_complete(config, workdir):
        say("the run is complete; to train longer, increase config.train.steps or train.patience")
        return scored
    check_decoding(config)
    lock = rundir.locked(workdir) if sharding.is_first() else contextlib.nullcontext()
    advice = f"with {config.train.assignment('batch_tokens')}: lower it, or raise train.accumulate"
    with lock, explaining_out_of_memory(advice):
        training = Training(config, corpora, validation, workdir, mesh)
        with (
            Checkpoints(workdir, config.train) as checkpoints,
            Checkpoints(workdir, config.train, rundir.BEST) as best,
        ):
            training.resume(checkpoints, best)
            if sharding.is_first():  # after everything that can be a user error
                provenance.write_files(config, training.vocabularies, workdir)
            if not provenance.is_trained(config, workdir):  # else killed after its last checkpoint
                training.run(profiled, on_metrics)
            training.choose_served()
    return scored


class Training:
    """A training run: made from a config and text, then `resume`d, then `run`."""

    def __init__(
        self, config: Config, corpora: list[Corpus], validation: Split, workdir: Path, mesh: Mesh
    ):
        """Tokenize the text and build the train step, without writing to the run directory yet."""
        self.config, self.workdir, self.mesh, self.validation = config, workdir, mesh, validation
        self.text = provenance.text_hashes(config, corpora, validation)
        if Checkpoints(workdir).steps():
            self.vocabularies = Vocabularies.load(workdir, config.data.joint_vocabulary)
        else:
            self.vocabularies = make_vocabularies(corpora, config.data)
        tokenizer_for(config.data.target_language)  # raises if BLEU needs a missing package
        self.metadata = provenance.metadata(config, self.vocabularies.hash)
        own = flatten(config)
        del own["parallel.coordinator"]  # it has the index of the process
        facts = [own, self.text, self.vocabularies.hash, self.metadata["versions"]]
        sharding.check_same(facts, workdir)

        tokenized = tokenize_corpora(corpora, self.vocabularies, config.data)
        self.report = tokenized.report
        self.batches = make_batches(config, tokenized.pairs, tokenized.rows, self.vocabularies)
        sizes = self.vocabularies.target.size, self.vocabularies.source.size
        self.model = Transformer(config.model, *sizes)
        self.likelihood = likelihood(self.model, self.vocabularies, validation, config, mesh)
        # The step folds its number into the dropout key, see step.py.
        self.params_key, self.dropout_key = jax.jit(
            lambda: jax.random.split(jax.random.key(config.seed)),
            out_shardings=sharding.replicated(mesh),
        )()
        backend = config.parallel.backend
        create, step = from_config(config, self.model, sharding.sum_devices(backend))
        shardings = sharding.state_shardings(jax.eval_shape(create, self.params_key), mesh)
        self.create = jax.jit(create, out_shardings=shardings)
        self.like = jax.eval_shape(self.create, self.params_key)  # shapes and shardings of a state
        self.compiled_step = sharding.compile_train_step(step, mesh, shardings, backend)

    def resume(self, checkpoints: Checkpoints, best_checkpoint: Checkpoints) -> None:
        """Restore the state of the newest checkpoint, or start with new parameters."""
        self.checkpoints, self.best_checkpoint = checkpoints, best_checkpoint
        config, self.position = self.config, dict(NEW)
        if checkpoints.steps():
            self.state, stored, metadata = checkpoints.restore_newest(self.like)
            self.position |= stored
            say(f"resuming from step {self.state.step}")
            if changed := provenance.changed_versions(metadata["versions"], config):
                say(f"versions    {changed}: results may differ from an uninterrupted run")
        else:
            best_checkpoint.delete(best_checkpoint.steps())  # from a run with no other
            (self.workdir / rundir.RESULTS).unlink(missing_ok=True)
            self.state = self.create(self.params_key)
            if config.train.init_from:
                params = initial_params(config, self.state.params, self.vocabularies)
                ema = None if self.state.ema is None else jax.tree.map(jnp.copy, params)
                self.state = dataclasses.replace(self.state, params=params, ema=ema)
        # For FLOPs; the config only has the maximum size.
        sized = replaced(config, {"data": {"vocabulary_size": self.vocabularies.target.size}})
        self.window = Window(sized, self.mesh, self.position["window"])

    def run(self, profiled: range, on_metrics: OnMetrics | None) -> None:
        """Train to the last step and save it. Raises `Stopped` if a signal ends the run early."""
        config, train, position = self.config, self.config.train, self.position
        done = int(self.state.step)
        say(describe(config, self.report, self.batches, self.mesh, self.state.params))
        say("compiling   the first step ...")
        profiled = range(max(profiled.start, done + 1), min(profiled.stop, train.steps + 1))
        parts = jax.process_index(), jax.process_count()
        batches = iterate(self.batches, train.steps, position["data"], *parts)
        rate_after = learning_rate(config)
        minutes = train.checkpoint_minutes or math.inf
        self.saved_at = time.monotonic()
        with (
            contextlib.closing(Log(config, self.workdir, done, position["seconds"])) as self.log,
            Signals() as signals,
        ):
            for step in range(done + 1, train.steps + 1):
                if step in profiled[:1]:
                    jax.profiler.start_trace(self.workdir / rundir.PROFILE)
                self.train_step(step, batches)
                if step in profiled[-1:]:
                    jax.block_until_ready(self.state)
                    jax.profiler.stop_trace()
                if self.due(step, train.log_every):
                    rate = float(rate_after(step - 1))
                    numbers = {"learning_rate": rate, "seconds": self.log.seconds}
                    self.log(step, "train", **self.window.means(), **numbers)
                ended = self.validate(step)
                if self.due(step, train.checkpoint_every):
                    self.save(ended)
                ended |= self.call_back(on_metrics)
                stop = sharding.agree(signals.caught, step)
                is_late = time.monotonic() - self.saved_at >= 60 * minutes
                if ended or stop or sharding.agree(is_late, step):
                    self.save(ended)
                if ended or stop:
                    break
            self.checkpoints.steps()  # waits for the last save
            stop = sharding.agree(signals.caught)  # may have arrived during that save
        if stop:
            raise Stopped(stop)

    def due(self, step: int, interval: int) -> bool:
        """Return True at the multiples of an interval and at the last step; never if it is 0."""
        return bool(interval) and (step % interval == 0 or step == self.config.train.steps)

    def train_step(self, step: int, batches: Iterator[tuple[Batch, Position]]) -> None:
        """Run one step on the next batch, and fetch the metrics of earlier steps."""
        config, train, began = self.config, self.config.train, time.perf_counter()
        batch, self.position["data"] = next(batches)
        placed = sharding.shard_batch(batch, self.mesh, train.accumulate, config.parallel.backend)
        self.state, metrics = self.compiled_step(self.state, placed, self.dropout_key)
        compiled = self.window.add(batch, metrics)
        self.log.progress.advance()
        every = (train.log_every, train.evaluate_every, train.metrics_every, train.checkpoint_every)
        due = any(self.due(step, interval) for interval in every)
        self.window.fetch(behind=0 if due else 2)  # late, so that the devices never wait
        if not compiled:
            self.window.sums.update(timed_steps=1, timed_seconds=time.perf_counter() - began)

    def validate(self, step: int) -> bool:
        """Log the scores that are due, and save a best state; return whether patience has ended."""
        train = self.config.train
        scores: dict[str, float] = {}
        if self.due(step, train.evaluate_every):
            scores |= self.likelihood(self.validated_params)
        if self.due(step, train.metrics_every):
            outputs, scores_by_name = scores_of_outputs(self.as_run(), self.validation)
            scores |= scores_by_name
            self.log.translations(step, self.validation, outputs)
        if scores:
            self.log(step, "validation", **scores)
        best = self.position["best"]
        if train.best_by in scores:
            score = scores[train.best_by] * (1 if train.best_by == "nll" else -1)
            if score < best["score"]:  # NaN is not
                best = {"score": score, "step": step, "worse": 0}
                self.best_checkpoint.save(self.state, self.metadata)
            else:
                best = {**best, "worse": best["worse"] + 1}
            self.position["best"] = best
        ended = 0 < train.patience <= best["worse"]
        if ended:
            self.log(step, "ended", patience=train.patience, best_step=best["step"])
        return ended

    @property
    def validated_params(self) -> Any:
        """The moving average of the parameters, if the run has one, or the parameters."""
        return self.state.params if self.state.ema is None else self.state.ema

    def as_run(self) -> Run:
        """Return the current run, with the parameters on one device of this process."""
        which = "last" if self.state.ema is None else "average"
        # Several processes may hold shards.
        whole = multihost_utils.process_allgather(self.validated_params, tiled=True)
        params = jax.device_put(whole, jax.local_devices()[0])
        steps = (int(self.state.step),)
        return Run(self.workdir, which, self.config, self.vocabularies, self.model, params, steps)

    def save(self, ended: bool) -> None:
        """Save the state, unless it is saved, and everything else that a resumed run needs."""
        self.window.fetch()
        position = self.position | {
            "window": dict(self.window.sums),  # a copy: the save runs in the background
            "seconds": self.log.seconds,
            "text": self.text,
            "ended": ended,
        }
        self.checkpoints.save(self.state, self.metadata, position)
        self.saved_at = time.monotonic()

    def call_back(self, on_metrics: OnMetrics | None) -> bool:
        """Pass the new lines of the log to `on_metrics`; return whether it ends the run."""
        lines, self.log.lines = self.log.lines, []
        if not (lines and on_metrics):
            return False
        self.checkpoints.steps()  # waits for the save: a checkpoint of this step is complete
        run = self.as_run()
        ends = [on_metrics(*line, run) for line in lines]
        return any(ends)

    def choose_served(self) -> None:
        """Record in results.json whether the average or the last checkpoint is served.

        The lower validation NLL decides: the average (Section 6.1) of a short run is worse.
        """
        state, step = self.state, int(self.state.step)
        average = state.ema
        if average is None:
            steps = averaged(self.checkpoints.steps(), True, self.config.train)
            average = self.checkpoints.mean(steps, self.like.params)
        params_by_name = {"last": state.params, "average": average}
        nll = {name: self.likelihood(params)["nll"] for name, params in params_by_name.items()}
        checkpoint = min(nll, key=lambda name: nll[name])
        both = f"{nll['average']:.3f} of the average, {nll['last']:.3f} of the last checkpoint"
        say(f"served      {checkpoint}: validation nll {both}")
        if sharding.is_first():
            served = {"checkpoint": checkpoint, "step": step, "validation_nll": nll}
            rundir.write_results(self.workdir, rundir.SERVED, served)


def from_config(
    config: Config, model: Transformer, sum_devices: Callable[[Any], Any] = lambda tree: tree
) -> tuple[Any, Any]:
    """Return a function from a key to initial states, and the train step."""
    optimizer = make_optimizer(config.optimizer, learning_rate(config))
    create = functools.partial(create_state, model, optimizer, with_ema=config.train.ema_decay > 0)
    return create, make_train_step(model, optimizer, config.train, sum_devices)
