"""The log of a run: metrics.jsonl, progress and TensorBoard.

Only the first of several processes writes. Steps never decrease, also in a resumed run.
"""

import collections
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jformer.config import Config
from jformer.console import Progress, as_duration, say
from jformer.data.batches import Batch, Batches
from jformer.data.corpora import Report, Split
from jformer.errors import RunError, UserError
from jformer.files import replace_file
from jformer.rundir import METRICS, TENSORBOARD, read_metrics
from jformer.schema import flatten
from jformer.training.flops import sheet_flops, step_flops
from jformer.training.loss import perplexity
from jformer.training.sharding import is_first

MAX_SKIPPED = 10  # consecutive updates that are not finite
NOT_SHOWN = ("flops", "seconds")  # in metrics.jsonl, not on the terminal
TRANSLATIONS_SHOWN = 20  # in TensorBoard


class Window:
    """Sums of the metrics of train steps since the last line of the log.

    Metrics are fetched two steps late, so that the devices never wait for the host, and the host
    does not run ahead.
    """

    def __init__(self, config: Config, mesh: Mesh, sums: dict[str, float]):
        self._config = config
        peak = sheet_flops(mesh.devices.flat[0].device_kind, config.model.compute_dtype)
        self._peak = peak and mesh.size * peak
        self._pending: collections.deque = collections.deque()
        self._shapes: set[tuple[int, ...]] = set()
        self._skipped = 0  # consecutive updates
        self.sums: Any = collections.Counter(sums)

    def add(self, batch: Batch, metrics: Any) -> bool:
        """Add a step; return whether it compiled, as the first step of each shape does."""
        shape = (*batch["source_BS"].shape, batch["target_BT"].shape[1])
        is_new = shape not in self._shapes
        self._shapes.add(shape)
        self._pending.append((shape, metrics))
        return is_new

    def fetch(self, behind: int = 0) -> None:
        """Fetch all but the last few steps. Raises `RunError` after MAX_SKIPPED skipped updates."""
        while len(self._pending) > behind:
            (B, S, T), metrics = self._pending.popleft()
            metrics = {name: float(value) for name, value in jax.device_get(metrics).items()}
            flops = step_flops(self._config, B, S, T) / (B * T) * metrics["tokens"]
            self.sums.update(metrics, steps=1.0, flops=flops, flops_in_all=flops)
            self._skipped = self._skipped + 1 if metrics["skipped"] else 0
            if self._skipped == MAX_SKIPPED:
                raise RunError(
                    f"the last {MAX_SKIPPED} updates were skipped: the loss or its gradient was "
                    f"not finite. Lower the learning rate or set config.optimizer.clip_norm, in "
                    f"another workdir"
                )

    def means(self) -> dict[str, float]:
        """Return the means since the last line, and reset the sums.

        Loss and NLL are per token. For `mfu`, see flops.py; padding and recomputation do not count.
        """
        sums, tokens = self.sums, max(self.sums["tokens"], 1)
        # Compilation, evaluation and saving are not timed.
        timed_share = sums["timed_steps"] / sums["steps"]
        seconds = max(sums["timed_seconds"], 1e-9)
        means = {
            "loss": sums["loss"] / tokens,
            "nll": sums["nll"] / tokens,
            "perplexity": perplexity(sums["nll"], tokens),
            "gradient_norm": sums["gradient_norm"] / max(sums["steps"] - sums["skipped"], 1),
            "skipped": sums["skipped"],
            "tokens_per_second": timed_share * sums["tokens"] / seconds,
            "flops": sums["flops_in_all"],  # since the run began
        }
        if self._peak:
            means["mfu"] = timed_share * sums["flops"] / seconds / self._peak
        self.sums = collections.Counter(flops_in_all=sums["flops_in_all"])
        return means


class Log:
    """Writes the lines of a run that resumes from `step` after `seconds` of training."""

    def __init__(self, config: Config, workdir: Path, step: int, seconds: float):
        self.lines: list[tuple[int, str, dict[str, float]]] = []  # not yet passed to `on_metrics`
        self.progress = Progress("step", config.train.steps, done=step)
        self._began = time.perf_counter() - seconds
        self._path = workdir / METRICS
        if is_first():
            lines = [json.dumps(line) for line in read_metrics(workdir) if line["step"] <= step]
            replace_file(self._path, "".join(f"{line}\n" for line in lines).encode())
        # TensorBoard hides the lines that a killed run wrote after its last checkpoint.
        self._board = summary_writer()(
            str(workdir / TENSORBOARD), purge_step=step + 1, write_to_disk=is_first()
        )
        self._write_text("config", [f"{key} = {x}" for key, x in flatten(config).items()], step)

    def __call__(self, step: int, split: str, **numbers: float) -> None:
        """Write a line of metrics.jsonl and its TensorBoard curves, and print it."""
        self.lines.append((step, split, numbers))
        if is_first():
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")
        for name, number in numbers.items():
            self._board.add_scalar(f"{split}/{name}", number, step)
        self._board.flush()
        shown = [f"{name} {n:.4g}" for name, n in numbers.items() if name not in NOT_SHOWN]
        self.progress.report(f"{split}  {'  '.join(shown)}")

    def translations(self, step: int, split: Split, outputs: list[str]) -> None:
        """Write some translations for TensorBoard."""
        lines = []
        rows = zip(split.sources, split.targets, outputs[:TRANSLATIONS_SHOWN], strict=False)
        for source, reference, output in rows:
            lines += [f"source     {source}", f"reference  {reference}", f"output     {output}", ""]
        self._write_text("validation/translations", lines, step)

    def _write_text(self, tag: str, lines: list[str], step: int) -> None:
        """Write lines that TensorBoard shows verbatim: Markdown's indented code."""
        self._board.add_text(tag, "\n".join(f"    {line}" for line in lines), step)

    @property
    def seconds(self) -> float:
        """The training time of the run, without time lost in kills."""
        return time.perf_counter() - self._began

    def close(self) -> None:
        self.progress.close()
        self._board.close()
        say(f"trained     {as_duration(self.seconds)} in total")


def summary_writer() -> Any:
    """Return tensorboardX's `SummaryWriter`, imported without torch.

    tensorboardX imports torch to name a type. That costs seconds and hundreds of MB, and loads a
    second set of CUDA libraries.
    """
    is_hidden = sys.modules.setdefault("torch", None) is None  # type: ignore[arg-type]
    from tensorboardX import SummaryWriter

    if is_hidden:
        del sys.modules["torch"]
    return SummaryWriter


def profiled_steps(text: str) -> range:
    """Return the steps of `--profile=STEP:COUNT`; none if it is empty."""
    match = re.fullmatch(r"(\d+):(\d+)", text or "0:0")
    if not match:
        raise UserError(f"--profile={text}: must be STEP:COUNT, for example 100:5")
    first, count = map(int, match.groups())
    return range(first, first + count)


def describe(config: Config, report: Report, batches: Batches, mesh: Mesh, params: Any) -> str:
    """Describe the model, the data, the batches and the devices of a run."""
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    per_epoch, utilization = len(batches.epoch(0)), batches.token_utilization()
    return (
        f"model       {parameters:,} parameters, {config.model.compute_dtype}\n"
        f"data        {len(batches.rows):,} pairs per epoch; {report}\n"
        f"batches     {per_epoch:,} per epoch, {utilization:.0%} of positions are tokens\n"
        f"devices     {mesh.size} x {mesh.devices.flat[0].device_kind}"
    )
