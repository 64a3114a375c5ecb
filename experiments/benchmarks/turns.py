"""Run the contenders of a benchmark in turns, each in its own process.

Within one process, the threads of two libraries would interfere, and the peak memory of the
contenders could not be separated.
"""

import argparse
import dataclasses
import json
import multiprocessing
import os
import platform as system
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jformer.cli import config_of_flags
from jformer.components import split_list
from jformer.config import Config
from jformer.main import HUGE_PAGES

PLATFORMS = {"cpu": "cpu", "gpu": "cuda"}  # the names in JAX, PyTorch and CTranslate2
PAUSE = 0.5  # seconds between turns; OpenMP's threads keep spinning for 0.2
LIBRARIES = ("jax", "flax", "torch", "transformers", "ctranslate2")

# In a new process, `make(*arguments)` returns the function to call in each turn.
Contender = tuple[Callable[..., Callable[[], Any]], tuple]


@dataclasses.dataclass
class Result:
    name: str
    seconds: list[float]  # per round
    first: float  # seconds of the first turn, which compiles
    memory: float  # peak memory in bytes
    answer: Any  # result of the last turn
    error: str = ""  # empty if the contender works

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def ratios(self, other: "Result") -> list[float]:
        """Return the speed relative to another contender, for each round."""
        return [b / a for a, b in zip(self.seconds, other.seconds, strict=True)]


def make_parser(doc: str, rounds: int, contenders: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of the flags that the benchmarks share."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--contenders", nargs="+", choices=contenders, default=[*contenders])
    parser.add_argument("--json", type=Path)
    return parser


def read_lines(path: str | Path) -> list[str]:
    return Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")


def make_config(flags: Sequence[str], keys: str) -> Config:
    """Return the config of flags with changes: KEY=VALUE,..."""
    return config_of_flags([*flags, *(f"--config.{each}" for each in split_list(keys))])


def take_turns(
    contenders: dict[str, Contender], rounds: int, platform: str = "cpu"
) -> list[Result]:
    """Time one turn of each contender in each round."""
    prepare_environment(platform)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # contenders share a GPU
    context = multiprocessing.get_context("spawn")
    pipes, results = {}, {}
    for name, (make, arguments) in contenders.items():
        pipe, remote = context.Pipe()
        process = context.Process(target=serve, args=(remote, make, arguments, platform))
        process.daemon = True
        process.start()
        remote.close()
        first, answer, error = pipe.recv()
        results[name] = Result(name, [], first, 0.0, answer, error)
        print(f"{name}: {error or f'ready, {first:.1f} s'}", file=sys.stderr)
        if not error:
            pipes[name] = pipe
    for number in range(rounds):
        for name in in_order(list(pipes), number):
            time.sleep(PAUSE)
            pipes[name].send(True)
            seconds, results[name].answer, _ = pipes[name].recv()
            results[name].seconds.append(seconds)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    for name, pipe in pipes.items():
        pipe.send(False)
        results[name].memory = pipe.recv()
    return list(results.values())


def prepare_environment(platform: str) -> None:
    """Select JAX's platform, and huge pages as in jformer's commands, for all new processes."""
    os.environ["JAX_PLATFORMS"] = PLATFORMS[platform]
    os.environ.setdefault(*HUGE_PAGES)


def in_order(names: Sequence[Any], number: int) -> list[Any]:
    """Return the contenders in the order of a round. The order rotates from round to round.

    This evens out effects of the contender before, such as a warm processor or a full cache.
    """
    first = number % max(1, len(names))
    return [*names[first:], *names[:first]]


def serve(pipe: Connection, make: Callable, arguments: tuple, platform: str) -> None:
    """Take the first turn at once, and another for each True from the pipe."""
    try:
        turn = make(*arguments)
        pipe.send(timed(turn))
    except Exception as error:  # noqa: BLE001  reported in the table
        pipe.send((0.0, None, f"{type(error).__name__}: {error}".splitlines()[0]))
        return
    while pipe.recv():
        pipe.send(timed(turn))
    pipe.send(peak_memory(platform))


def timed(turn: Callable[[], Any]) -> tuple[float, Any, str]:
    began = time.perf_counter()
    answer = turn()
    return time.perf_counter() - began, answer, ""


def peak_memory(platform: str) -> float:
    """Return the peak memory of this process: of the host, or of the GPU in PyTorch or JAX."""
    if platform == "cpu":
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if torch := sys.modules.get("torch"):
        return torch.cuda.max_memory_allocated()
    import jax

    return jax.devices()[0].memory_stats()["peak_bytes_in_use"]


def machine() -> str:
    """Return the processor and the library versions."""
    processor = system.processor()
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        parts = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        facts = {name.strip(): value.strip() for name, _, value in parts}
        processor = facts.get("model name", processor)  # ARM processors list neither name nor flags
        if flags := facts.get("flags", "").split():
            kinds = {"avx512f": "AVX-512", "amx_tile": "AMX"}
            has = [text if flag in flags else f"no {text}" for flag, text in kinds.items()]
            processor += f" ({', '.join(has)})"
    versions = []
    for library in LIBRARIES:
        try:
            versions.append(f"{library} {metadata.version(library)}")
        except metadata.PackageNotFoundError:
            continue  # contenders that need it report an error
    return f"{os.cpu_count()} cores of {processor}; {', '.join(versions)}"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, the smallest and the largest value as text."""
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def table(
    header: Sequence[str], results: Sequence[Result], cells: Callable[[Result], list[str]]
) -> str:
    """Return a Markdown table: the speed relative to the first result and the cells, or the error.

    The first result is the first without an error.
    """
    working = [result for result in results if not result.error]
    rows = []
    for result in results:
        if result.error:
            rows.append([result.name, result.error])
        else:
            rows.append([result.name, spread(result.ratios(working[0])), *cells(result)])
    first = working[0].name if working else ""
    return markdown(["", f"speed, {first} = 1", *header], rows)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rows = [[*row, *[""] * (len(header) - len(row))] for row in rows]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def publish(title: str, table: str, results: Any, options: argparse.Namespace) -> None:
    """Print the table, and write the results to the file of `--json`."""
    print(f"{title}\n{machine()}\n\n{table}")
    if options.json:
        data = {"title": title, "machine": machine(), "results": results}
        text = json.dumps(data, indent=1, default=dataclasses.asdict)
        options.json.write_text(text, encoding="utf-8")
