"""What one sees of a run: metrics.jsonl, and progress with the time left on standard error."""

import json
import sys
import time
from pathlib import Path

import jax
from tqdm import tqdm

from jformer.config import replace_file


class Window:
    """Sums of the metrics since the log's last line; the devices are asked only for `sums`."""

    def __init__(self, sums: dict[str, float]):
        self._sums = dict(sums)
        self._pending: list[dict[str, jax.Array]] = []
        self.began = time.monotonic()

    def add(self, metrics: dict[str, jax.Array]) -> None:
        self._pending.append(metrics)
        # Two steps run behind the dispatch: the devices stay busy, the progress stays true, and
        # batches do not pile up in their memory.
        if len(self._pending) > 2:
            jax.block_until_ready(self._pending[-3])

    def sums(self) -> dict[str, float]:
        for metrics in jax.device_get(self._pending):
            for name, value in metrics.items():
                self._sums[name] = self._sums.get(name, 0.0) + float(value)
        self._pending = []
        return dict(self._sums)


class MetricsFile:
    """One JSON object a line, each with `step` and `split`."""

    def __init__(self, path: Path, resume_step: int):
        """Drop the lines after `resume_step`: that part of the run happens again."""
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # no half last line
        kept = [line for line in lines if json.loads(line)["step"] <= resume_step]
        replace_file(path, b"".join(line + b"\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, split: str, **numbers: float) -> None:
        self._file.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Progress:
    """A bar on a terminal; elsewhere a line for each report, so that a log file stays readable."""

    def __init__(self, start: int, total: int):
        self._start, self._total, self._began = start, total, time.monotonic()
        self._bar = tqdm(
            initial=start, total=total, unit="step", dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
        )  # fmt: skip

    def advance(self) -> None:
        self._bar.update()

    def report(self, step: int, text: str) -> None:
        """`text` beside the step and the time that the rest will take at the pace so far."""
        if not self._bar.disable:
            self._bar.set_postfix_str(text)
            return
        elapsed = time.monotonic() - self._began
        left = elapsed / max(step - self._start, 1) * (self._total - step)
        say(f"step {step}/{self._total}  {text}  ETA {tqdm.format_interval(left)}")

    def close(self) -> None:
        self._bar.close()


def say(text: str) -> None:
    """One line on standard error, above a progress bar if there is one."""
    tqdm.write(text, file=sys.stderr)
    sys.stderr.flush()


def format_numbers(**numbers: float) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in numbers.items())
