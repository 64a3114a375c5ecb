"""Measurements that need a GPU, in two calls of five minutes.

    python -m experiments.benchmarks.gpu first|second --output=DIR [--minutes=5]
        [--platform=gpu|cpu] [--only=PATTERN] [--configs=base,big] [--tokens=49152,24576]
        [--length=256] [--vocabulary=37000] [--sentences=256,64,1024] [--rounds=3] [--steps=10]

`first` measures:

- the speed of a large matrix product
- the train step of each config on packed rows of random tokens: time, MFU, memory, compile time
- the difference between cuDNN attention and XLA attention
- a profile of the first config's step: its longest kernels and the times of their memory traffic

`second` measures:

- a PyTorch peer on the same tokens
- whether a resumed run ends with the same bits
- the search
- variants of the train step: XLA attention, Triton matrix products, and no packing

Each measurement runs in its own process with a time limit, the most important ones first. If one
fails or has no time left, its row has the reason. Each row is appended at once to
DIR/results.jsonl, and DIR/results.md is rewritten. `mfu` is defined as in metrics.jsonl: the share
of the data-sheet peak that is spent on tokens, without padding. `of_roofline` is the measured time
divided by the roofline time from jformer/extras/targets.py.

If the machine has no package index, run `sh experiments/benchmarks/wheels.sh` elsewhere to fill the
folder wheels. Copy the folder and run `pip install --no-index --no-deps wheels/*`.
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
from pathlib import Path
from typing import Any

from experiments.benchmarks import turns

LONGEST_MEASUREMENT = 120.0  # seconds
SHORTEST_MEASUREMENT = 15.0  # seconds that must be left to start a measurement
PEERS = ("torch bf16 compile", "marian bf16 compile")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A call of a function in gpu_work.py, which runs in its own process."""

    name: str
    function: str
    arguments: dict[str, Any]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("call", choices=("first", "second"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--platform", choices=turns.PLATFORMS, default="gpu")
    parser.add_argument("--only", default="*", help="pattern for the names of measurements")
    parser.add_argument("--configs", default="base,big")
    parser.add_argument("--tokens", default="49152,24576", help="tokens per batch and side")
    parser.add_argument("--length", type=int, default=256, help="length of a packed row")
    parser.add_argument("--vocabulary", type=int, default=37000)
    parser.add_argument("--sentences", default="256,64,1024", help="batch sizes of decoding")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="steps per round")
    options = parser.parse_args()
    measurements = (first if options.call == "first" else second)(options)
    chosen = [each for each in measurements if fnmatch.fnmatchcase(each.name, options.only)]
    if not chosen:
        parser.error(f"--only={options.only} does not match any measurement")
    options.output.mkdir(parents=True, exist_ok=True)
    measure_all(chosen, options)


def steps(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the arguments of the train step for each config."""
    keys = {"data.vocabulary_size": options.vocabulary}
    same = {"length": options.length, "keys": keys}
    pairs = zip(options.configs.split(","), options.tokens.split(","), strict=True)
    return [{**same, "config": config, "tokens": int(tokens)} for config, tokens in pairs]


def first(options: argparse.Namespace) -> list[Measurement]:
    rounds = {"rounds": options.rounds, "steps": options.steps}
    step, *others = steps(options)
    # The profiler knows the names of kernels only without command buffers.
    named = {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}
    return [
        Measurement("peak", "peak", {"rounds": options.rounds}),
        Measurement(f"train {step['config']}", "train", {**step, **rounds}),
        Measurement("agree", "agree", step),
        *(Measurement(f"train {each['config']}", "train", {**each, **rounds}) for each in others),
        Measurement(f"profile {step['config']}", "profile", step, named),
    ]


def second(options: argparse.Namespace) -> list[Measurement]:
    rounds = {"rounds": options.rounds, "steps": options.steps}
    step = {**steps(options)[0], **rounds}
    config, keys = step["config"], step["keys"]
    peer = {name: step[name] for name in ("config", "tokens", "rounds", "steps")}
    peer |= {"vocabulary": options.vocabulary, "platform": options.platform}
    # The peer and jformer share the GPU, so neither may preallocate all of its memory.
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    decode = {"config": config, "beam": 4, "keys": keys, "rounds": options.rounds}
    xla, unpacked = {"model.attention_kernel": "xla"}, {"data.batching": "buckets"}
    triton = {"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=true"}
    sizes = [int(number) for number in options.sentences.split(",")]
    decodes = [
        Measurement(f"decode {size} sentences", "decode", {**decode, "places": size})
        for size in sizes
    ]
    return [
        Measurement(PEERS[0], "peers", {**peer, "peer": PEERS[0]}, shared),
        Measurement("resume", "resume", {}),
        decodes[0],
        Measurement("train attention by XLA", "train", {**step, "keys": {**keys, **xla}}),
        Measurement("train products by Triton", "train", step, triton),
        Measurement("train unpacked", "train", {**step, "keys": {**keys, **unpacked}}),
        Measurement(PEERS[1], "peers", {**peer, "peer": PEERS[1]}, shared),
        *decodes[1:],
    ]


def measure_all(chosen: list[Measurement], options: argparse.Namespace) -> None:
    """Run the measurements in order, and write each row at once."""
    end = time.monotonic() + 60 * options.minutes
    path = options.output / "results.jsonl"
    path.touch()
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for each in chosen:
        began = time.monotonic()
        found = in_process(each, options.platform, end - began)
        took = time.monotonic() - began
        rows.append({"name": each.name, "function": each.function, **found, "took": took})
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        (options.output / "results.md").write_text(tables(rows), encoding="utf-8")
        print(f"{each.name}: {found}", file=sys.stderr, flush=True)
    print(tables(rows))


def in_process(each: Measurement, platform: str, left: float) -> dict[str, Any]:
    """Return the result of a measurement in a new process, or the error that ended it."""
    if left < SHORTEST_MEASUREMENT:
        return {"error": "skipped: no time left"}
    flags = f"{os.environ.get('XLA_FLAGS', '')} {each.environment.get('XLA_FLAGS', '')}"
    environment = {**os.environ, **each.environment, "XLA_FLAGS": flags.strip()}
    environment["JAX_PLATFORMS"] = turns.PLATFORMS[platform]
    module, work = "experiments.benchmarks.gpu_work", json.dumps(each.arguments)
    process = subprocess.Popen(
        [sys.executable, "-m", module, each.function, work],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=min(left, LONGEST_MEASUREMENT))
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)  # also kills its child processes
        process.communicate()
        return {"error": f"not finished after {error.timeout:.3g} s"}
    if process.returncode:
        last = (errors.strip().splitlines() or [""])[-1]
        return {"error": f"exit status {process.returncode}: {last[:300]}"}
    return json.loads(output.splitlines()[-1])


def tables(rows: list[dict[str, Any]]) -> str:
    """Return the machine, a table for each function, and the kernels of each profile."""
    parts = [turns.machine()]
    for function in dict.fromkeys(row["function"] for row in rows):
        group = [row for row in rows if row["function"] == function]
        parts.append(f"## {function}\n\n{table(group, hidden=('function', 'kernels'))}")
        parts += [table(row["kernels"]) for row in group if "kernels" in row]
    return "\n\n".join(parts) + "\n"


def table(rows: list[dict[str, Any]], hidden: tuple[str, ...] = ()) -> str:
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in hidden]
    return turns.markdown(keys, [[cell(row.get(key)) for key in keys] for row in rows])


def cell(value: Any) -> str:
    if isinstance(value, list):
        return turns.spread(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "/")


if __name__ == "__main__":
    main()
