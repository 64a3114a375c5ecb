"""The log of a run: metrics.jsonl, progress, TensorBoard, callbacks and JAX's profile.

In a run of several processes only the first one writes and prints. Steps never decrease in the log
of a run, however often it is stopped and resumed.
"""

import collections
import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jformer.config import Config
from jformer.console import Progress, as_duration, say
from jformer.data.batches import Batch, Batches, Position
from jformer.data.corpora import Report
from jformer.data.vocabulary import Vocabularies
from jformer.errors import RunError, UserError
from jformer.files import replace_file, writing
from jformer.rundir import METRICS, PROFILE, TENSORBOARD, read_metrics
from jformer.schema import flatten
from jformer.training.flops import step_flops
from jformer.training.loss import perplexity
from jformer.training.restore import Restored

# Called with the step, the split and the numbers of a line, and the run as it is now.
OnMetrics = Callable[[int, str, dict[str, float], Any], Any]
SUMMED = ("loss", "nll", "tokens", "gradient_norm", "skipped")
NOT_SHOWN = ("flops", "seconds")  # in metrics.jsonl, not on the terminal
FIRST_ESTIMATE = 20  # steps after which the first line with the time left is printed
MANY_EPOCHS = 50


class Clock:
    """Counts the seconds of each activity: `with clock("input"): ...`."""

    def __init__(self):
        self._began = time.perf_counter()
        activities = ("compilation", "input", "steps", "evaluation", "checkpoints")
        self.seconds = dict.fromkeys(activities, 0.0)

    @contextlib.contextmanager
    def __call__(self, activity: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[activity] += time.perf_counter() - began

    @property
    def total(self) -> float:
        return time.perf_counter() - self._began

    def report(self) -> str:
        shares = [f"{name} {s / self.total:.0%}" for name, s in self.seconds.items()]
        return f"time        {as_duration(self.total)} in all: {', '.join(shares)}"


class Window:
    """Sums of the metrics of train steps since the last line of the log.

    Metrics are fetched two steps late, so that the devices never wait for the host. This also keeps
    the host from running ahead with batches.
    """

    def __init__(self, config: Config, peak: float, sums: dict[str, float]):
        self._config, self._peak = config, peak  # peak: FLOP per second of all devices
        self._pending: collections.deque = collections.deque()
        self._start(sums)

    def _start(self, sums: dict[str, float]) -> None:
        self.sums = {**dict.fromkeys((*SUMMED, "steps", "flops_in_all"), 0.0), **sums}
        self._timed_tokens = self._timed_flops = 0.0

    def add(self, batch: Batch, after: Position, metrics: Any, timed: bool) -> None:
        """Add a step. A step that compiles is not `timed`: the speed leaves it out."""
        B, T = batch["target_BT"].shape
        flops_per_token = step_flops(self._config, B, batch["source_BS"].shape[1], T) / (B * T)
        self._pending.append((after, metrics, flops_per_token, timed))

    def fetch(self, behind: int = 0) -> Iterator[tuple[Position, dict[str, Any]]]:
        """Fetch the steps but the last few, and yield each with the position after it."""
        while len(self._pending) > behind:
            after, metrics, flops_per_token, timed = self._pending.popleft()
            metrics = jax.device_get(metrics)
            for name in SUMMED:
                self.sums[name] += float(metrics[name])
            self.sums["steps"] += 1
            tokens = float(metrics["tokens"])
            self.sums["flops_in_all"] += flops_per_token * tokens
            self._timed_tokens += timed * tokens
            self._timed_flops += timed * flops_per_token * tokens
            yield after, metrics

    def means(self, seconds: float) -> dict[str, float]:
        """Return the means since the last line, and start again. The timed steps took `seconds`.

        Loss and NLL are per token. `mfu` is the model FLOPs utilization (see flops.py): the FLOPs
        that tokens require per second, without padding and recomputation, over the devices' peak.
        """
        sums = self.sums
        tokens, updates = max(sums["tokens"], 1), max(sums["steps"] - sums["skipped"], 1)
        means = {
            "loss": sums["loss"] / tokens,
            "nll": sums["nll"] / tokens,
            "perplexity": perplexity(sums["nll"], tokens),
            "gradient_norm": sums["gradient_norm"] / updates,
            "skipped": sums["skipped"],
            "tokens_per_second": self._timed_tokens / seconds,
            "mfu": self._timed_flops / seconds / self._peak,
            "flops": sums["flops_in_all"],  # since the run began
        }
        self._start({"flops_in_all": sums["flops_in_all"]})
        return means


class Log:
    """Writes the lines of a run that resumes from `step` after `seconds` of training."""

    def __init__(
        self,
        config: Config,
        workdir: Path,
        clock: Clock,
        step: int,
        seconds: float,
        on_metrics: OnMetrics | None = None,
    ):
        self.clock = clock
        self._steps, self._seconds_before, self._busy_before = config.train.steps, seconds, 0.0
        self._shapes: set[tuple] = set()
        self._steps_here = 0
        self._progress = Progress("step", config.train.steps, done=step, lines=False)
        self._on_metrics = on_metrics
        self._lines: list[tuple[int, str, dict[str, float]]] = []  # not yet passed to it
        self.writes = jax.process_index() == 0
        if self.writes:
            self._path = workdir / METRICS
            lines = [json.dumps(line) for line in read_metrics(workdir) if line["step"] <= step]
            replace_file(self._path, "".join(f"{line}\n" for line in lines).encode())
            self.board = TensorBoard(workdir, step, config)

    def __call__(self, step: int, split: str, **numbers: float) -> None:
        """Write a line of metrics.jsonl, its curves for TensorBoard, and most of it on stderr."""
        if not self.writes:
            return
        with writing(str(self._path), RunError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")
        self.board.scalars(step, split, numbers)
        shown = [f"{name} {n:.4g}" for name, n in numbers.items() if name not in NOT_SHOWN]
        self._progress.report(f"{split}  {'  '.join(shown)}", done=step)
        if self._on_metrics and split != "callback":
            self._lines.append((step, split, numbers))

    def train_line(self, step: int, window: Window, rate: float) -> None:
        """Log the means since the last line. The speed does not count evaluation and saving."""
        busy = self.clock.seconds["steps"] + self.clock.seconds["input"]
        elapsed, self._busy_before = busy - self._busy_before, busy
        self(step, "train", **window.means(elapsed), learning_rate=rate, seconds=self.seconds)

    @property
    def seconds(self) -> float:
        """The time that the run took, without what a kill lost."""
        return self._seconds_before + self.clock.total

    @property
    def has_pending_lines(self) -> bool:
        return bool(self._lines)

    def call_back(self, run: Callable[[], Restored]) -> bool:
        """Pass the lines of a step, with the run, to `on_metrics`; return whether it asked to end
        the run.

        Numbers that it returns are logged under the split `callback`.
        """
        ends, lines, self._lines = False, self._lines, []
        newest = lines[-1][0]
        for step, split, numbers in lines:
            result = self._on_metrics(step, split, dict(numbers), run())  # type: ignore[misc]
            if isinstance(result, Mapping):
                returned = {name: float(number) for name, number in result.items()}
                self(newest, "callback", **returned)
            else:
                ends |= bool(result)
        return ends

    def is_new_shape(self, batch: Batch) -> bool:
        """Return whether a step on this batch compiles, because of its shape."""
        shape = tuple(rows.shape for rows in batch.values())
        if not self._shapes:
            say("compiling   the first step ...")
        is_new = shape not in self._shapes
        self._shapes.add(shape)
        return is_new

    def advance(self, step: int, metrics: Any, compiled: bool) -> None:
        """Show the progress; waits for the first step, whose time includes the compilation."""
        self._steps_here += 1
        if self._steps_here == 1:
            jax.block_until_ready(metrics)
        seconds = self._progress.advance(compiled=compiled)
        if self._steps_here == 1:
            say(f"step {step}/{self._steps}  done in {seconds:.0f} s, with compilation")
        if self._steps_here == FIRST_ESTIMATE:
            self._progress.report("")

    def close(self) -> None:
        self._progress.close()
        if self.writes:
            self.board.close()
        say(self.clock.report())


class TensorBoard:
    """The event files that `tensorboard --logdir=WORKDIR` shows."""

    def __init__(self, workdir: Path, step: int, config: Config):
        self._writer = summary_writer()(
            str(workdir / TENSORBOARD),
            purge_step=step + 1,  # hides what a killed run wrote after its last checkpoint
            flush_secs=1,
            filename_suffix=f".{step:09}",  # a run that resumes within a second needs another name
        )
        rows = [(key, str(value)) for key, value in flatten(config).items()]
        self._writer.add_text("config", table(("key", "value"), rows), step)

    def scalars(self, step: int, split: str, numbers: dict[str, float]) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(f"{split}/{name}", number, step)
        self._writer.flush()

    def translations(self, step: int, rows: list[tuple[str, str, str]]) -> None:
        """Write a table of `(source, reference, output)`."""
        text = table(("source", "reference", "output"), rows)
        self._writer.add_text("validation/translations", text, step)

    def close(self) -> None:
        self._writer.close()


def summary_writer() -> Any:
    """Return tensorboardX's `SummaryWriter`, imported without torch.

    tensorboardX imports torch if it is installed, only to name a type. That would cost seconds,
    hundreds of MB, and a second set of CUDA libraries in the process of JAX.
    """
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]  # import raises ImportError
    try:
        from tensorboardX import SummaryWriter
    finally:
        if hidden:
            del sys.modules["torch"]
    return SummaryWriter


def table(head: tuple, rows: list[tuple]) -> str:
    """Return a table in Markdown, with cells escaped so that they appear literally."""
    lines = [head, ("---",) * len(head), *([cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    escaped = re.sub(r"([\\`*|\[\]])", r"\\\1", re.sub(r"[\r\n]+", " ", text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


class Profile:
    """Writes JAX's trace of COUNT steps from STEP on, for `--profile=STEP:COUNT`."""

    def __init__(self, text: str, workdir: Path):
        match = re.fullmatch(r"([1-9]\d{0,9}):([1-9]\d{0,9})", text, re.ASCII)
        if text and not match:
            raise UserError(f"--profile={text}: must be STEP:COUNT, for example 100:5")
        first, count = map(int, match.groups()) if match else (0, 0)
        self._steps, self._folder = range(first, first + count), workdir / PROFILE
        self._traced = 0  # steps in the trace

    def step_begins(self, step: int) -> None:
        if self._steps and step == self._steps[0]:
            jax.profiler.start_trace(self._folder)
            self._traced = 1
        elif self._traced:
            self._traced += 1

    def step_ended(self, step: int, metrics: Any) -> None:
        if self._traced and step == self._steps[-1]:
            jax.block_until_ready(metrics)
            self.close()

    def close(self) -> None:
        """Write the trace. It is shorter if the run ended earlier."""
        if self._traced:
            jax.profiler.stop_trace()
            first = self._steps[0]
            say(f"profile     {self._traced} steps, starting at {first}, written to {self._folder}")
        elif self._steps:
            say(f"profile     none: step {self._steps[0]} was not run")
        self._steps, self._traced = range(0), 0


def describe(
    config: Config,
    vocabularies: Vocabularies,
    report: Report,
    batches: Batches,
    mesh: Mesh,
    params: Any,
) -> str:
    """Return lines that describe the model, the data, the batches and the devices of a run."""
    leaves = jax.tree.leaves(params)
    parameters = sum(leaf.size for leaf in leaves)
    split = sum(leaf.size for leaf in leaves if not leaf.sharding.is_fully_replicated)
    both = dict.fromkeys(vocabularies)  # one if joint
    sizes = " and ".join(f"{vocabulary.size:,}" for vocabulary in both)
    shapes = ", ".join(f"{B}x{S}+{T}" for B, S, T in batches.layout.shapes)
    per_epoch = len(batches.epoch(0))
    epochs = config.train.steps / per_epoch
    devices = f"{mesh.size} x {mesh.devices.flat[0].device_kind}"
    if mesh.size > 1:
        devices += f" ({', '.join(f'{name} {size}' for name, size in mesh.shape.items())})"
    if split:
        devices += f", {split / parameters:.0%} of the parameters split among them"
    kernel = "cuDNN" if config.model.fused_attention else "XLA"
    warning = f"\nwarning     {text}" if (text := warning_of_epochs(epochs)) else ""
    return (
        f"model       {parameters:,} parameters, vocabulary of {sizes}, "
        f"{config.model.compute_dtype}, attention by {kernel}\n"
        f"data        {len(batches.rows):,} pairs an epoch; {'; '.join(report.lines())}\n"
        f"batches     {shapes} (rows x source + target tokens, each of these "
        f"{len(batches.layout.shapes)} compiled once);\n"
        f"            {per_epoch:,} batches an epoch, "
        f"{batches.token_utilization():.0%} of positions hold a token\n"
        f"training    {config.train.steps:,} steps, {epochs:.1f} epochs, "
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
