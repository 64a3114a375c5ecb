"""Everything that only a GPU can show, measured in one call within a budget of minutes.

    python -m experiments.benchmarks.gpu --output=DIR [--minutes=25] [--platform=gpu|cpu]
        [--only=train,decode,...] [--configs=base,big] [--tokens=25000,50000,100000] [--length=256]
        [--vocabulary=37000] [--sentences=64,256,1024] [--rounds=5] [--steps=10]

Groups of measurements: `peak` is the speed of a large matrix product; `train` the step in bfloat16
on packed rows of random tokens, over batch sizes; `variants` the same with other config keys or
flags of XLA and JAX, on the smallest batch; `peers` the steps of experiments.benchmarks.train;
`decode` the search of a model that has not been trained, whose hypotheses hardly ever end before
their limit; `resume` whether a run stopped at half and resumed ends with the same bits.
`only` takes the beginnings of "GROUP NAME", as the table has them.

Each measurement is a process of its own with a time limit, the most important ones first. One that
fails, or that the budget has no time for, is a row with the reason. Every row is written at once: a
line of DIR/results.jsonl, and DIR/results.md anew. `mfu` is that of metrics.jsonl: the share of the
peak by data sheet spent on tokens, without padding.

On a machine without a package index, carry the packages that it lacks: `pip download -d wheels
NAMES` where there is one, and there `pip install --no-index --find-links wheels NAMES`.
"""

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.benchmarks import turns

LONGEST_MEASUREMENT = 240.0  # seconds
SHORTEST_MEASUREMENT = 20.0  # with less left of the budget none is begun
PEERS = ("marian bf16 compile", "torch bf16 compile", "marian bf16", "torch bf16")


@dataclasses.dataclass(frozen=True)
class Measurement:
    group: str
    name: str
    rank: int  # those of rank 1 come first
    arguments: dict[str, Any]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.group} {self.name}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--only", default="", help="beginnings of titles, with commas")
    parser.add_argument("--configs", default="base,big")
    parser.add_argument("--tokens", default="25000,50000,100000", help="of a side of a batch")
    parser.add_argument("--length", type=int, default=256, help="of a packed row")
    parser.add_argument("--vocabulary", type=int, default=37000)
    parser.add_argument("--sentences", default="64,256,1024", help="decoded at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    options = parser.parse_args()
    wanted = tuple(options.only.split(","))
    chosen = [each for each in measurements(options) if each.title.startswith(wanted)]
    if not (options.output and chosen):
        parser.error("--output=DIR is missing, or --only fits no measurement")
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "results.jsonl").open("w", encoding="utf-8") as file:
        measure_all(sorted(chosen, key=lambda each: each.rank), options, file)


def measure_all(chosen: list[Measurement], options: argparse.Namespace, file: Any) -> None:
    """Measure one after the other, and write each row as soon as it is there."""
    end = time.monotonic() + 60 * options.minutes
    rows: list[dict[str, Any]] = []
    for each in chosen:
        began = time.monotonic()
        found = in_process(each, options.platform, end - began)
        took = {"took": time.monotonic() - began}
        rows.append({"group": each.group, "name": each.name, **found, **took})
        file.write(json.dumps(rows[-1]) + "\n")
        file.flush()
        (options.output / "results.md").write_text(tables(rows), encoding="utf-8")
        print(f"{each.title}: {found}", file=sys.stderr)
    print(tables(rows))


def measurements(options: argparse.Namespace) -> Iterator[Measurement]:
    configs, work = options.configs.split(","), {"rounds": options.rounds}
    tokens, sentences = (
        [int(number) for number in each.split(",")] for each in (options.tokens, options.sentences)
    )
    first, smallest = configs[0], min(tokens)
    keys = {"data.vocabulary_size": options.vocabulary}
    step = {**work, "steps": options.steps, "length": options.length}
    yield Measurement("peak", options.platform, 1, work)
    for size in tokens:
        for name in configs:
            arguments = {**step, "config": name, "tokens": size, "keys": keys}
            yield Measurement("train", f"{name}, {size:,} tokens", 1, arguments)
    smaller = {**step, "tokens": smallest}
    for name in configs:
        more = {**keys, "model.attention_kernel": "cudnn"}
        arguments = {**smaller, "config": name, "keys": more}
        yield Measurement("variants", f"{name} model.attention_kernel=cudnn", 1, arguments)
    smaller["config"] = first
    for key, value in (
        ("train.loss_chunk", 4096),
        ("train.loss_chunk", 16384),
        ("train.loss_chunk", 0),
        ("data.vocabulary_size", -(-options.vocabulary // 128) * 128),
        ("model.dtype", "float32"),
    ):
        arguments = {**smaller, "keys": {**keys, key: value}}
        yield Measurement("variants", f"{first} {key}={value}", 2, arguments)
    smaller["keys"] = keys
    flags = {"jax_optimization_level": "O2"}
    name = f"{first} jax_optimization_level=O2"
    yield Measurement("variants", name, 2, {**smaller, "jax_flags": flags})
    for flag in (
        "--xla_gpu_enable_command_buffer=",
        "--xla_gpu_enable_latency_hiding_scheduler=true",
    ):
        yield Measurement("variants", f"{first} {flag}", 2, smaller, {"XLA_FLAGS": flag})
    for number, peer in enumerate(PEERS):
        arguments = {
            **work, "platform": options.platform, "config": first, "peer": peer,
            "tokens": smallest, "steps": options.steps, "vocabulary": options.vocabulary,
        }  # fmt: skip
        # The peer and ours are on the GPU together, so neither may take all of its memory.
        shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        yield Measurement("peers", f"{first} {peer}", 1 + number // 2, arguments, shared)
    for size in sentences:
        for name in configs:
            for beam in (4, 1):
                rank = 1 if size == sentences[len(sentences) // 2] else 3
                arguments = {**work, "config": name, "places": size, "beam": beam, "keys": keys}
                yield Measurement("decode", f"{name}, beam {beam}, {size:,}", rank, arguments)
    yield Measurement("resume", "as it is", 1, {})
    flag = "--xla_gpu_deterministic_ops=true"
    yield Measurement("resume", flag, 2, {}, {"XLA_FLAGS": flag})


def in_process(each: Measurement, platform: str, left: float) -> dict[str, Any]:
    """Return what a process of its own measures, or the error that ended it."""
    if left < SHORTEST_MEASUREMENT:
        return {"error": "skipped: the minutes are over"}
    flags = f"{os.environ.get('XLA_FLAGS', '')} {each.environment.get('XLA_FLAGS', '')}"
    environment = {**os.environ, **each.environment, "XLA_FLAGS": flags.strip()}
    environment["JAX_PLATFORMS"] = {"cpu": "cpu", "gpu": "cuda"}[platform]
    module, work = "experiments.benchmarks.gpu_work", json.dumps(each.arguments)
    process = subprocess.Popen(
        [sys.executable, "-m", module, each.group, work],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=min(left, LONGEST_MEASUREMENT))
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
        process.communicate()
        return {"error": f"not done after {error.timeout:.0f} s"}
    if process.returncode:
        last = (errors.strip().splitlines() or [""])[-1]
        return {"error": f"exit status {process.returncode}: {last[:300]}"}
    return json.loads(output.splitlines()[-1])


def tables(rows: list[dict[str, Any]]) -> str:
    """Return the machine and a table a group, with a column for each key of any of its rows."""
    parts = [turns.machine()]
    for group in dict.fromkeys(row["group"] for row in rows):
        ours = [row for row in rows if row["group"] == group]
        keys = list(dict.fromkeys(key for row in ours for key in row if key != "group"))
        cells = [[cell(row.get(key)) for key in keys] for row in ours]
        parts.append(f"## {group}\n\n{turns.markdown(keys, cells)}")
    return "\n\n".join(parts) + "\n"


def cell(value: Any) -> str:
    if isinstance(value, list):
        return turns.spread(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "/")


if __name__ == "__main__":
    main()
