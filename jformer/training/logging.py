"""The log of a run: metrics.jsonl, progress and TensorBoard.

In a run of several processes, only the first writes and prints. Steps never decrease in the log of
a run, however often it is stopped and resumed.
"""

import collections
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jformer.config import Config
from jformer.console import Progress, as_duration, say
from jformer.data.batches import Batch, Batches, Position
from jformer.data.corpora import Report, Split
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError
from jformer.files import replace_file
from jformer.rundir import METRICS, TENSORBOARD, read_metrics
from jformer.schema import flatten
from jformer.training.flops import sheet_flops, step_flops
from jformer.training.loss import perplexity
from jformer.training.sharding import is_first

NOT_SHOWN = ("flops", "seconds")  # in metrics.jsonl, not on the terminal
TRANSLATIONS_SHOWN = 20  # in TensorBoard


class Window:
    """Sums of the metrics of train steps since the last line of the log.

    Metrics are fetched two steps late, so that the devices never wait for the host. This also keeps
    the host from running ahead with batches.
    """

    def __init__(self, config: Config, mesh: Mesh, sums: dict[str, float]):
        self._config = config
        peak = sheet_flops(mesh.devices.flat[0].device_kind, config.model.compute_dtype)
        self._peak = peak and mesh.size * peak
        self._pending: collections.deque = collections.deque()
        self._shapes: set[tuple[int, int, int]] = set()
        self._start(sums)

    def _start(self, sums: dict[str, float]) -> None:
        self.sums: Any = collections.Counter(sums)
        self._timed: Any = collections.Counter()
        self.seconds = 0.0  # of steps that did not compile, without evaluation and saving

    def add(self, batch: Batch, after: Position, metrics: Any) -> bool:
        """Add a step; return whether it compiled, as the first step of each shape does."""
        B, S = batch["source_BS"].shape
        T = batch["target_BT"].shape[1]
        compiled = (B, S, T) not in self._shapes
        self._shapes.add((B, S, T))
        flops_per_token = step_flops(self._config, B, S, T) / (B * T)
        self._pending.append((after, metrics, flops_per_token, not compiled))
        return compiled

    def fetch(self, behind: int = 0) -> Iterator[tuple[Position, dict[str, float]]]:
        """Fetch all but the last few steps, and yield each with the position after it."""
        while len(self._pending) > behind:
            after, metrics, flops_per_token, is_timed = self._pending.popleft()
            metrics = {name: float(value) for name, value in jax.device_get(metrics).items()}
            work = {"tokens": metrics["tokens"], "flops": flops_per_token * metrics["tokens"]}
            self.sums.update(metrics, steps=1.0, flops_in_all=work["flops"])
            if is_timed:
                self._timed.update(work)
            yield after, metrics

    def means(self) -> dict[str, float]:
        """Return the means since the last line, and reset the sums.

        Loss and NLL are per token. `mfu` is the model FLOPs utilization (see flops.py): the FLOPs
        per second that tokens require, without padding and recomputation, over the devices' peak.
        """
        sums, seconds = self.sums, max(self.seconds, 1e-9)
        tokens, updates = max(sums["tokens"], 1), max(sums["steps"] - sums["skipped"], 1)
        means = {
            "loss": sums["loss"] / tokens,
            "nll": sums["nll"] / tokens,
            "perplexity": perplexity(sums["nll"], tokens),
            "gradient_norm": sums["gradient_norm"] / updates,
            "skipped": sums["skipped"],
            "tokens_per_second": self._timed["tokens"] / seconds,
            "flops": sums["flops_in_all"],  # since the run began
        }
        if self._peak:
            means["mfu"] = self._timed["flops"] / seconds / self._peak
        self._start({"flops_in_all": sums["flops_in_all"]})
        return means


class Log:
    """Writes the lines of a run that resumes from `step` after `seconds` of training."""

    def __init__(self, config: Config, workdir: Path, step: int, seconds: float):
        self.lines: list[tuple[int, str, dict[str, float]]] = []  # not yet passed to `on_metrics`
        self._began = time.perf_counter() - seconds
        self._writes = is_first()
        self.progress = Progress("step", config.train.steps, done=step)
        if not self._writes:
            return
        self._path = workdir / METRICS
        lines = [json.dumps(line) for line in read_metrics(workdir) if line["step"] <= step]
        replace_file(self._path, "".join(f"{line}\n" for line in lines).encode())
        # TensorBoard hides the lines that a killed run wrote after its last checkpoint.
        self._board = summary_writer()(str(workdir / TENSORBOARD), purge_step=step + 1)
        self._write_text("config", [f"{key} = {x}" for key, x in flatten(config).items()], step)

    def __call__(self, step: int, split: str, **numbers: float) -> None:
        """Write a line of metrics.jsonl and its TensorBoard curves, and print most of it."""
        if not self._writes:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")
        for name, number in numbers.items():
            self._board.add_scalar(f"{split}/{name}", number, step)
        self._board.flush()
        shown = [f"{name} {n:.4g}" for name, n in numbers.items() if name not in NOT_SHOWN]
        self.progress.report(f"{split}  {'  '.join(shown)}")
        self.lines.append((step, split, numbers))

    def translations(self, step: int, split: Split, outputs: list[str]) -> None:
        """Write some translations for TensorBoard."""
        lines = []
        rows = zip(split.sources, split.targets, outputs[:TRANSLATIONS_SHOWN], strict=False)
        for source, reference, output in rows:
            lines += [f"source     {source}", f"reference  {reference}", f"output     {output}", ""]
        self._write_text("validation/translations", lines, step)

    def _write_text(self, tag: str, lines: list[str], step: int) -> None:
        """Write lines that TensorBoard shows verbatim: Markdown's indented code."""
        if self._writes:
            self._board.add_text(tag, "\n".join(f"    {line}" for line in lines), step)

    @property
    def seconds(self) -> float:
        """The training time of the run, without time lost in kills."""
        return time.perf_counter() - self._began

    def close(self) -> None:
        self.progress.close()
        if self._writes:
            self._board.close()
        say(f"trained     {as_duration(self.seconds)} in total")


def summary_writer() -> Any:
    """Return tensorboardX's `SummaryWriter`, imported without torch.

    tensorboardX imports torch if it is installed, only to name a type. That would cost seconds,
    hundreds of MB, and a second set of CUDA libraries in the process of JAX.
    """
    is_hidden = sys.modules.setdefault("torch", None) is None  # type: ignore[arg-type]
    from tensorboardX import SummaryWriter

    if is_hidden:
        del sys.modules["torch"]
    return SummaryWriter


def profiled_steps(text: str) -> range:
    """Return the COUNT steps from STEP for `--profile=STEP:COUNT`; no steps if it is empty."""
    match = re.fullmatch(r"(\d+):(\d+)", text or "0:0")
    if not match:
        raise UserError(f"--profile={text}: must be STEP:COUNT, for example 100:5")
    first, count = map(int, match.groups())
    return range(first, first + count)


def describe(
    config: Config,
    vocabularies: Vocabularies,
    report: Report,
    batches: Batches,
    mesh: Mesh,
    params: Any,
) -> str:
    """Return lines that describe the model, the data, the batches and the devices of a run."""
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    both = dict.fromkeys(vocabularies)  # one if joint
    sizes = " and ".join(f"{vocabulary.size:,}" for vocabulary in both)
    kernel = "cuDNN" if config.model.fused_attention else "XLA"
    shapes = ", ".join(f"{B}x{S}+{T}" for B, S, T in batches.layout.shapes)
    per_epoch = len(batches.epoch(0))
    epochs = config.train.steps / per_epoch
    devices = f"{mesh.size} x {mesh.devices.flat[0].device_kind}"
    if mesh.size > 1:
        devices += f" ({', '.join(f'{name} {size}' for name, size in mesh.shape.items())})"
    return (
        f"model       {parameters:,} parameters, vocabulary of {sizes}, "
        f"{config.model.compute_dtype}, {kernel} attention\n"
        f"data        {len(batches.rows):,} pairs per epoch; {'; '.join(report.lines())}\n"
        f"batches     {shapes} (rows x source + target tokens);\n"
        f"            {per_epoch:,} batches per epoch, "
        f"{batches.token_utilization():.0%} of positions are tokens\n"
        f"training    {config.train.steps:,} steps, {epochs:.1f} epochs, "
        f"using {config.parallel.backend} on {devices}"
    )
