"""What one sees of a run: metrics.jsonl, TensorBoard, and progress with the time left.

The first process alone writes and prints.
"""

import json
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from tqdm import tqdm

from jformer.config import Config
from jformer.data.batches import Batch
from jformer.errors import UserError
from jformer.files import replace_file
from jformer.training.clock import Clock
from jformer.training.metrics import MetricsAccumulator
from jformer.training.peak import peak_flops, step_flops
from jformer.training.tensorboard import TensorBoardWriter


def read_lines(path: Path) -> list[bytes]:
    """Those that were written whole; none where there is no file."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def content_of(line: bytes) -> dict[str, Any] | None:
    """The step, the split and the numbers of a line; None where it is damaged."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("step"), int):
        return None
    numbers = {**content}
    split = numbers.pop("split", None)
    whole = isinstance(split, str) and all(isinstance(n, int | float) for n in numbers.values())
    return content if whole else None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """What the lines hold; `UserError` names one that is damaged."""
    contents = [content_of(line) for line in read_lines(path)]
    if None in contents:
        raise UserError(
            f"{path}:{contents.index(None) + 1}: is damaged; remove the line, or go on with "
            f"the training, which puts it aside"
        )
    return [content for content in contents if content is not None]


def last_line(path: Path) -> dict[str, Any]:
    """The newest that is whole; empty where there is none."""
    contents = map(content_of, reversed(read_lines(path)))
    return next((content for content in contents if content is not None), {})


UNSEEN = ("flops", "seconds")  # numbers that a line of progress leaves to metrics.jsonl


class MetricsFile:
    """One JSON object a line, each with `step` and `split`."""

    def __init__(self, path: Path, resume_step: int):
        """Drop the lines after `resume_step`: that part of the run happens again.

        Damaged lines are put aside, into a file beside this one.
        """
        lines = read_lines(path)
        contents = [content_of(line) for line in lines]
        damaged = [i for i, content in enumerate(contents) if content is None]
        if damaged:
            aside = path.with_name(path.name + ".damaged")
            with aside.open("ab") as file:
                file.write(b"".join(lines[i] + b"\n" for i in damaged))
            numbers = ", ".join(str(i + 1) for i in damaged)
            say(f"{path}: damaged, and put aside into {aside.name}: line {numbers}")
        kept = [
            line
            for line, content in zip(lines, contents, strict=True)
            if content is not None and content["step"] <= resume_step
        ]
        replace_file(path, b"".join(line + b"\n" for line in kept))
        self._path = path

    def write(self, step: int, split: str, **numbers: float) -> str:
        """Append a line, and return most of it as text to read."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")
        shown = {name: number for name, number in numbers.items() if name not in UNSEEN}
        return f"{split}  " + "  ".join(f"{name} {n:.4g}" for name, n in shown.items())


class Progress:
    """A bar on a terminal; elsewhere only the reported lines, so that a log file stays readable."""

    def __init__(self, first: int, total: int):
        self._first, self._total = first, total
        self._seconds: list[float] = []
        self._last = time.monotonic()
        quiet = jax.process_index() > 0 or not sys.stderr.isatty()
        self._bar = tqdm(initial=first, total=total, unit="step", disable=quiet)

    def advance(self, metrics: dict[str, jax.Array]) -> None:
        """One step more; waits for the first, whose time then holds the compilation."""
        if not self._seconds:
            jax.block_until_ready(metrics)
        began, now = self._last, time.monotonic()
        self._seconds.append(now - began)
        self._last = now
        self._bar.update()
        if len(self._seconds) == 1:
            seconds = now - began
            say(f"step {self._first + 1}/{self._total}  done in {seconds:.0f} s, with compilation")
        if len(self._seconds) == 20:
            self.report(self._first + 20, "")

    def report(self, step: int, text: str) -> None:
        """`text` beside the step and the time that is left at the pace of the last steps."""
        # Compiling a new shape is no step's pace: the median passes over it.
        left = statistics.median(self._seconds[-200:]) * (self._total - step)
        say(f"step {step}/{self._total}  ETA {tqdm.format_interval(left)}  {text}")

    def close(self) -> None:
        self._bar.close()


class Profile:
    """JAX's trace of COUNT steps from STEP on, for `--profile=STEP:COUNT`."""

    def __init__(self, text: str, workdir: Path):
        if text and not re.fullmatch(r"0*[1-9]\d{0,9}:0*[1-9]\d{0,9}", text, re.ASCII):
            raise UserError(f"--profile={text}: must be STEP:COUNT, as 100:5")
        self._first, self._count = map(int, text.split(":")) if text else (0, 0)
        self._folder = workdir / "profile"
        self._last = 0  # of the steps that are in the trace; 0: nothing is traced

    def step_begins(self, step: int) -> None:
        if self._count and step == self._first:
            jax.profiler.start_trace(self._folder)
            self._last = step

    def step_ended(self, step: int, metrics: Any) -> None:
        if self._last:
            self._last = step
            if step == self._first + self._count - 1:
                jax.block_until_ready(metrics)
                self.close()

    def close(self) -> None:
        """Write the trace, which is shorter where the run ended before it did."""
        if self._last:
            jax.profiler.stop_trace()
            say(f"profile     steps {self._first} to {self._last} in {self._folder}")
            self._first = self._last = 0
        elif self._first:
            say(f"profile     none: there was no step {self._first}")


class Monitor:
    """All that is written of one run, and where its time goes.

    `seconds` are those that the run took before this process, up to the step `first`.
    """

    def __init__(
        self, config: Config, workdir: Path, first: int, mesh: Mesh, clock: Clock, seconds: float
    ):
        self.clock, self._config, self._seconds_before = clock, config, seconds
        self.progress = Progress(first, config.train.steps)
        self._shapes: set[tuple] = set()
        self._peak = mesh.size * peak_flops(mesh.local_devices[0], config.model.compute_dtype)[0]
        self._busy_before = 0.0
        self.writes = jax.process_index() == 0
        if self.writes:
            self._file = MetricsFile(workdir / "metrics.jsonl", first)
            self.board = TensorBoardWriter(workdir, first, config)

    def step(self, batch: Batch) -> Any:
        """The time of a step, as a context: the first of each shape is compiled."""
        shape = tuple(rows.shape for rows in batch.values())
        name = "step" if shape in self._shapes else "compilation"
        self._shapes.add(shape)
        return self.clock(name)

    def flops_a_token(self, batch: Batch) -> float:
        B, T = batch["target_BT"].shape
        return step_flops(self._config, B, batch["source_BS"].shape[1], T) / (B * T)

    def train_line(self, step: int, window: MetricsAccumulator, rate: float) -> None:
        """The means since the last line; their speed is that of steps and input alone."""
        clock = self.clock.seconds
        busy = clock.get("step", 0.0) + clock.get("input", 0.0)
        elapsed, self._busy_before = busy - self._busy_before, busy
        means = window.means(elapsed, self._peak)
        self.line(step, "train", **means, learning_rate=rate, seconds=self.seconds)

    @property
    def seconds(self) -> float:
        """All that the run has taken, without what was lost where it was killed."""
        return self._seconds_before + sum(self.clock.seconds.values())

    def line(self, step: int, split: str, **numbers: float) -> None:
        if self.writes:
            self.progress.report(step, self._file.write(step, split, **numbers))
            self.board.scalars(step, split, numbers)

    def close(self) -> None:
        self.progress.close()
        if self.writes:
            self.board.close()
        say(self.clock.report())


def say(text: str) -> None:
    """One line on standard error, above a progress bar if there is one; of several processes, of
    the first alone."""
    if jax.process_index() == 0:
        tqdm.write(text, file=sys.stderr)
        sys.stderr.flush()
