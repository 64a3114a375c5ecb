"""Logging of a run: metrics.jsonl, TensorBoard, progress, and JAX's profile.

The first process alone writes and prints.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jformer.config import Config
from jformer.console import Progress, say
from jformer.data.batches import Batch
from jformer.errors import RunError, UserError
from jformer.rundir import PROFILE, MetricsFile
from jformer.training.clock import Clock
from jformer.training.flops import peak_flops, step_flops
from jformer.training.metrics import MetricsAccumulator
from jformer.training.tensorboard import TensorBoardWriter

OnMetrics = Callable[[int, str, dict[str, float]], Any]
NOT_SHOWN = ("flops", "seconds")  # numbers of metrics.jsonl that a line of progress leaves out
FIRST_ESTIMATE = 20  # steps after which the first line with the time left is printed


class Profile:
    """Writes JAX's trace of COUNT steps from STEP on, for `--profile=STEP:COUNT`."""

    def __init__(self, text: str, workdir: Path):
        if text and not re.fullmatch(r"0*[1-9]\d{0,9}:0*[1-9]\d{0,9}", text, re.ASCII):
            raise UserError(f"--profile={text}: must be STEP:COUNT, as 100:5")
        first, count = map(int, text.split(":")) if text else (0, 0)
        self._steps, self._folder = range(first, first + count), workdir / PROFILE
        self._last = 0  # step in the trace; 0: no trace is being written

    def step_begins(self, step: int) -> None:
        if step == self._steps.start:
            jax.profiler.start_trace(self._folder)
            self._last = step

    def step_ended(self, step: int, metrics: Any) -> None:
        if self._last:
            self._last = step
            if step == self._steps[-1]:
                jax.block_until_ready(metrics)
                self.close()

    def close(self) -> None:
        """Write the trace, which is shorter where the run has ended before."""
        if self._last:
            jax.profiler.stop_trace()
            say(f"profile     steps {self._steps.start} to {self._last} in {self._folder}")
            self._steps, self._last = range(0), 0
        elif self._steps:
            say(f"profile     none: there was no step {self._steps.start}")


class Monitor:
    """Writes the log of one run, and measures where its time goes.

    `first` is the step that the run resumes from, `seconds` the time that it took up to there.
    `on_metrics` is called with the step, the split and the numbers of each line of metrics.jsonl;
    where it returns a true value, `ends_now` becomes true. What it raises is kept as `failure`, for
    the loop to end with once the step is saved, and it is not called again.
    """

    def __init__(
        self,
        config: Config,
        workdir: Path,
        first: int,
        mesh: Mesh,
        clock: Clock,
        seconds: float,
        on_metrics: OnMetrics | None = None,
    ):
        self.clock, self._config, self._seconds_before = clock, config, seconds
        self._on_metrics, self.ends_now = on_metrics, False
        self.failure: BaseException | None = None
        self._progress = Progress("step", config.train.steps, done=first, lines=False)
        self._steps_here = 0
        self._shapes: set[tuple] = set()
        self.compiles = False  # the step that is under way
        self._peak = mesh.size * peak_flops(mesh.local_devices[0], config.model.compute_dtype)
        self._busy_before = 0.0
        self.writes = jax.process_index() == 0
        if self.writes:
            self._file = MetricsFile(workdir, first)
            self.board = TensorBoardWriter(workdir, first, config)

    def step(self, batch: Batch) -> Any:
        """Return a context that counts the time of a step; the first of a shape is compilation."""
        shape = tuple(rows.shape for rows in batch.values())
        self.compiles = shape not in self._shapes
        if not self._shapes:
            say("compiling   the first step ...")
        self._shapes.add(shape)
        return self.clock("compilation" if self.compiles else "step")

    def step_ended(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Show the progress; waits for the first step, whose time then holds the compilation."""
        self._steps_here += 1
        if self._steps_here == 1:
            jax.block_until_ready(metrics)
        seconds = self._progress.advance(compiled=self.compiles)
        if self._steps_here == 1:
            total = self._config.train.steps
            say(f"step {step}/{total}  done in {seconds:.0f} s, with compilation")
        if self._steps_here == FIRST_ESTIMATE:
            self._progress.report("")

    def flops_a_token(self, batch: Batch) -> float:
        B, T = batch["target_BT"].shape
        return step_flops(self._config, B, batch["source_BS"].shape[1], T) / (B * T)

    def train_line(self, step: int, metrics: MetricsAccumulator, rate: float) -> None:
        """Log the means since the last line; the speed is that of steps and input alone."""
        clock = self.clock.seconds
        busy = clock.get("step", 0.0) + clock.get("input", 0.0)
        elapsed, self._busy_before = busy - self._busy_before, busy
        means = metrics.means(elapsed, self._peak)
        self.line(step, "train", **means, learning_rate=rate, seconds=self.seconds)

    @property
    def seconds(self) -> float:
        """The time that the whole run took, without what was lost where it was killed."""
        return self._seconds_before + sum(self.clock.seconds.values())

    def line(self, step: int, split: str, **numbers: float) -> None:
        """Write a line of metrics.jsonl, and show most of it."""
        if self.writes:
            self._file.write(step, split, **numbers)
            self.board.scalars(step, split, numbers)
            shown = [f"{name} {n:.4g}" for name, n in numbers.items() if name not in NOT_SHOWN]
            self._progress.report(f"{split}  {'  '.join(shown)}", done=step)
            if self._on_metrics and not self.failure:
                self._call_on_metrics(self._on_metrics, step, split, dict(numbers))

    def _call_on_metrics(
        self, on_metrics: OnMetrics, step: int, split: str, numbers: dict[str, float]
    ) -> None:
        alone = jax.process_count() == 1
        try:
            ends = on_metrics(step, split, numbers)
        except BaseException as error:
            if not alone:
                raise  # to save takes all processes, and the others do not hear of this
            self.failure = error
            return
        if ends and not alone:
            raise RunError("on_metrics can end a run of one process only")
        self.ends_now = self.ends_now or bool(ends)

    def close(self) -> None:
        self._progress.close()
        if self.writes:
            self.board.close()
        say(self.clock.report())
