"""What one sees of a run: metrics.jsonl, and progress with the time left on standard error."""

import json
import statistics
import sys
import time
from pathlib import Path

import jax
from tqdm import tqdm

from jformer.keys import replace_file
from jformer.training.loss import perplexity


class Window:
    """Sums of the metrics since the log's last line, fetched from the devices only when due."""

    def __init__(self, sums: dict[str, float]):
        self._sums = dict(sums)
        self._pending: list[dict[str, jax.Array]] = []
        self._tokens_before = sums.get("tokens", 0.0)
        self._began = time.monotonic()

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

    def means(self) -> dict[str, float]:
        """A token's loss and NLL, their perplexity, and the tokens a second since the beginning."""
        sums = self.sums()
        new_tokens = sums["tokens"] - self._tokens_before
        return {
            "loss": sums["loss"] / sums["tokens"],
            "nll": sums["nll"] / sums["tokens"],
            "perplexity": perplexity(sums),
            "tokens_per_second": new_tokens / (time.monotonic() - self._began),
        }


class MetricsFile:
    """One JSON object a line, each with `step` and `split`."""

    def __init__(self, path: Path, resume_step: int):
        """Drop the lines after `resume_step`: that part of the run happens again."""
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # no half last line
        kept = [line for line in lines if json.loads(line)["step"] <= resume_step]
        replace_file(path, b"".join(line + b"\n" for line in kept))
        self._path = path

    def write(self, step: int, split: str, **numbers: float) -> str:
        """Append a line, and return it as text to read."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")
        return f"{split}  " + "  ".join(f"{name} {n:.4g}" for name, n in numbers.items())


class Progress:
    """A bar on a terminal; elsewhere only the reported lines, so that a log file stays readable."""

    def __init__(self, first: int, total: int):
        self._first, self._total = first, total
        self._seconds: list[float] = []
        self._last = time.monotonic()
        self._bar = tqdm(initial=first, total=total, unit="step", disable=not sys.stderr.isatty())

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


def say(text: str) -> None:
    """One line on standard error, above a progress bar if there is one."""
    tqdm.write(text, file=sys.stderr)
    sys.stderr.flush()
