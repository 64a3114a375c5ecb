"""Everything that only a GPU can show, measured in one call within a budget of minutes.

    python -m experiments.benchmarks.gpu --output=DIR [--minutes=25] [--platform=gpu|cpu]
        [--only=PATTERN,...] [--configs=base,big] [--tokens=25000,50000,100000] [--length=256]
        [--vocabulary=37000] [--sentences=64,256,1024] [--rounds=5] [--steps=10]

Groups of measurements: `peak` is the speed of a large matrix product; `train` the step in bfloat16
on packed rows of random tokens, over batch sizes; `variants` the same with other config keys or
flags of XLA and JAX, on the smallest batch; `peers` the steps of experiments.benchmarks.train;
`decode` the search of a model that has not been trained, whose hypotheses hardly ever end before
their limit; `resume` whether a run stopped at half and resumed ends with the same bits.
`only` takes patterns as of a shell for "GROUP NAME": train*,variants*cudnn.

Each measurement is a process of its own with a time limit, the most important ones first. One that
fails, or that the budget has no time for, is a row with the reason. Every row is written at once,
below those that are there: a line of DIR/results.jsonl, and DIR/results.md anew. `mfu` is that of
metrics.jsonl: the share of the peak by data sheet spent on tokens, without padding.

On a machine without a package index, carry the packages that it lacks: `pip download -d wheels
NAMES` where there is one, and there `pip install --no-index --find-links wheels NAMES`.
"""

import argparse
import dataclasses
import fnmatch
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
XLA_FLAGS = ("--xla_gpu_enable_command_buffer=", "--xla_gpu_enable_latency_hiding_scheduler=true")


@dataclasses.dataclass(frozen=True)
class Measurement:
    group: str
    name: str
    rank: int  # those of rank 1 come first
    arguments: dict[str, Any]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--platform", choices=turns.PLATFORMS, default="gpu")
    parser.add_argument("--only", default="*", help="patterns of GROUP NAME, with commas")
    parser.add_argument("--configs", default="base,big")
    parser.add_argument("--tokens", default="25000,50000,100000", help="of a side of a batch")
    parser.add_argument("--length", type=int, default=256, help="of a packed row")
    parser.add_argument("--vocabulary", type=int, default=37000)
    parser.add_argument("--sentences", default="64,256,1024", help="decoded at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    options = parser.parse_args()
    wanted, chosen = options.only.split(","), []
    for each in measurements(options):
        if any(fnmatch.fnmatchcase(f"{each.group} {each.name}", pattern) for pattern in wanted):
            chosen.append(each)
    if not (options.output and chosen):
        parser.error("--output=DIR is missing, or --only fits no measurement")
    options.output.mkdir(parents=True, exist_ok=True)
    measure_all(sorted(chosen, key=lambda each: each.rank), options)


def measure_all(chosen: list[Measurement], options: argparse.Namespace) -> None:
    """Measure one after the other, and add each row as soon as it is there."""
    end = time.monotonic() + 60 * options.minutes
    path = options.output / "results.jsonl"
    path.touch()
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for each in chosen:
        began = time.monotonic()
        found = in_process(each, options.platform, end - began)
        took = {"took": time.monotonic() - began}
        rows.append({"group": each.group, "name": each.name, **found, **took})
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        (options.output / "results.md").write_text(tables(rows), encoding="utf-8")
        print(f"{each.group} {each.name}: {found}", file=sys.stderr)
    print(tables(rows))


def measurements(options: argparse.Namespace) -> Iterator[Measurement]:
    configs, tokens = options.configs.split(","), [int(size) for size in options.tokens.split(",")]
    sentences = [int(number) for number in options.sentences.split(",")]
    first, smallest, rounds = configs[0], min(tokens), {"rounds": options.rounds}
    keys = {"data.vocabulary_size": options.vocabulary}
    step = {**rounds, "steps": options.steps, "length": options.length, "keys": keys}
    yield Measurement("peak", options.platform, 1, rounds)
    for size in tokens:
        for name in configs:
            arguments = {**step, "config": name, "tokens": size}
            yield Measurement("train", f"{name} {size} tokens", 1, arguments)
    for name in configs:
        yield from variants(name, {**step, "config": name, "tokens": smallest}, name == first)
    for number, peer in enumerate(PEERS):
        arguments = {
            **rounds, "platform": options.platform, "config": first, "peer": peer,
            "tokens": smallest, "steps": options.steps, "vocabulary": options.vocabulary,
        }  # fmt: skip
        # The peer and ours are on the GPU together, so neither may take all of its memory.
        shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        yield Measurement("peers", f"{first} {peer}", 1 + number // 2, arguments, shared)
    for size in sentences:
        for name in configs:
            for beam in (4, 1):
                rank = 1 if size == sentences[len(sentences) // 2] else 3
                arguments = {**rounds, "config": name, "places": size, "beam": beam, "keys": keys}
                yield Measurement("decode", f"{name} beam {beam} places {size}", rank, arguments)
    yield Measurement("resume", "as it is", 1, {})
    flag = "--xla_gpu_deterministic_ops=true"
    yield Measurement("resume", flag, 2, {}, {"XLA_FLAGS": flag})


def variants(name: str, step: dict[str, Any], in_full: bool) -> Iterator[Measurement]:
    """Yield the steps of a config with other keys or flags: in full, or the first of them."""
    keys = step["keys"]
    for key, value in (
        ("model.attention_kernel", "cudnn"),
        ("train.loss_chunk", 1024),
        ("train.loss_chunk", 16384),
        ("train.loss_chunk", 0),
        ("data.vocabulary_size", -(-keys["data.vocabulary_size"] // 128) * 128),
        ("model.dtype", "float32"),
    )[: None if in_full else 1]:
        rank = 1 if value == "cudnn" else 2
        yield Measurement(
            "variants", f"{name} {key}={value}", rank, {**step, "keys": {**keys, key: value}}
        )
    if in_full:
        flag, level = "jax_optimization_level", "O2"
        yield Measurement(
            "variants", f"{name} {flag}={level}", 2, {**step, "jax_flags": {flag: level}}
        )
        for flag in XLA_FLAGS:
            yield Measurement("variants", f"{name} {flag}", 2, step, {"XLA_FLAGS": flag})


def in_process(each: Measurement, platform: str, left: float) -> dict[str, Any]:
    """Return what a process of its own measures, or the error that ended it."""
    if left < SHORTEST_MEASUREMENT:
        return {"error": "skipped: the minutes are over"}
    flags = f"{os.environ.get('XLA_FLAGS', '')} {each.environment.get('XLA_FLAGS', '')}"
    environment = {**os.environ, **each.environment, "XLA_FLAGS": flags.strip()}
    environment["JAX_PLATFORMS"] = turns.PLATFORMS[platform]
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
        return {"error": f"not done after {error.timeout:.3g} s"}
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
