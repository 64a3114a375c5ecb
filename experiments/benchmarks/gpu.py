"""Measure the train step on a GPU in less than ten minutes, the most important numbers first.

    python -m experiments.benchmarks.gpu --output=DIR [--minutes=9] [--only=PATTERN]
        [--platform=gpu|cpu] [--config=base] [--keys=KEY=VALUE,...] [--rows=192] [--length=256]

The script calls `experiments.benchmarks.train` for each of these measurements:

- `peak`: the rate of a large matrix product
- `train CONFIG`: the step on packed rows of random tokens: time, MFU, memory, compile time
- `variants CONFIG cudnn xla`: cuDNN attention and XLA attention in turns
- `train big`: the step of the big model, with half of the rows
- `peers CONFIG`: PyTorch and Marian on rows with one pair of up to 64 tokens

A measurement has its own process and a time limit. Its table, or the reason why it failed, is
appended to DIR/results.md at once, and its numbers are in DIR/NAME.json. `--only` selects
measurements by a pattern, such as `train*`.

If the machine has no package index, run `sh experiments/benchmarks/wheels.sh` elsewhere to fill the
folder wheels. Copy the folder and run `pip install --no-index --no-deps wheels/*`.
"""

import argparse
import fnmatch
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from experiments.benchmarks import turns

LONGEST = 180.0  # seconds of a measurement
PEERS = ("matrix product", "jformer", "torch bf16 compile", "marian bf16 compile")
PEER_LENGTH = 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--only", default="*", help="pattern for the names of measurements")
    parser.add_argument("--platform", choices=turns.PLATFORMS, default="gpu")
    parser.add_argument("--config", default="base")
    parser.add_argument("--keys", default="", help="changes of the config")
    parser.add_argument("--rows", type=int, default=192)
    parser.add_argument("--length", type=int, default=256, help="tokens of a packed row")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    for name, flags in measurements(options).items():
        if fnmatch.fnmatchcase(name, options.only):
            result = measure(name, flags, options, end - time.monotonic())
            print(f"## {name}\n\n{result}", flush=True)
            with (options.output / "results.md").open("a", encoding="utf-8") as file:
                file.write(f"## {name}\n\n{result}\n")


def measurements(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the flags of `experiments.benchmarks.train` for each measurement."""
    config, rows, length = options.config, options.rows, options.length
    same = [f"--config={config}", "--rounds=3", "--steps=10"]
    packed = [*same, f"--keys={options.keys},data.batching=packed"]
    packed += [f"--rows={rows}", f"--length={length}", "--contenders", "matrix product"]
    unpacked = [*same, f"--keys={options.keys}"]
    unpacked += [f"--rows={max(1, rows * length // PEER_LENGTH)}", f"--length={PEER_LENGTH}"]
    kernels = [f"--variant=model.attention_kernel={kernel}" for kernel in ("cudnn", "xla")]
    return {
        "peak": packed,
        f"train {config}": [*packed, "jformer"],
        f"variants {config} cudnn xla": [*packed, *kernels],
        "train big": [*packed, "jformer", "--config=big", f"--rows={max(1, rows // 2)}"],
        f"peers {config}": [*unpacked, "--contenders", *PEERS],
    }


def measure(name: str, flags: list[str], options: argparse.Namespace, left: float) -> str:
    """Return the table of a measurement in a new process, or the error that ended it."""
    if left <= 0:
        return "no time left"
    numbers = options.output / f"{name.replace(' ', '_')}.json"
    program = [sys.executable, "-m", "experiments.benchmarks.train", *flags]
    program += [f"--platform={options.platform}", f"--json={numbers}"]
    process = subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=min(left, LONGEST))
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)  # also kills its child processes
        process.communicate()
        return f"not finished after {error.timeout:.3g} s"
    if process.returncode:
        last = (errors.strip().splitlines() or [""])[-1]
        return f"exit status {process.returncode}: {last}"
    return output


if __name__ == "__main__":
    main()
