"""Run the contenders of a benchmark in turns, each in its own process.

Within one process, the threads of two libraries would interfere, and the peak memory of the
contenders could not be separated.
"""

import argparse
import dataclasses
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jformer.main import HUGE_PAGES

PLATFORMS = {"cpu": "cpu", "gpu": "cuda"}  # the names in JAX, PyTorch and CTranslate2
PAUSE = 0.5  # seconds between turns; OpenMP's threads keep spinning for 0.2
LIBRARIES = ("jax", "flax", "torch", "transformers", "ctranslate2")


@dataclasses.dataclass
class Result:
    name: str
    seconds: list[float]  # per round
    first: float  # seconds of the first turn, which compiles
    memory: float  # peak host memory in bytes
    answer: Any  # result of the last turn
    error: str = ""  # empty if the contender works

    def ratios(self, other: "Result") -> list[float]:
        """Return the speed relative to another contender, for each round."""
        return [b / a for a, b in zip(self.seconds, other.seconds, strict=True)]


def take_turns(
    contenders: dict[str, tuple[Callable[..., Callable[[], Any]], tuple]], rounds: int
) -> list[Result]:
    """Time one turn of each contender in each round.

    A contender is `(make, arguments)`. In a new process, `make(*arguments)` returns the function to
    call in each turn.
    """
    give_huge_pages()
    context = multiprocessing.get_context("spawn")
    pipes, results = {}, {}
    for name, (make, arguments) in contenders.items():
        pipe, remote = context.Pipe()
        context.Process(target=serve, args=(remote, make, arguments), daemon=True).start()
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


def give_huge_pages() -> None:
    """Make malloc use huge pages in all contenders, as it does in jformer's commands."""
    os.environ.setdefault(*HUGE_PAGES)


def in_order(names: Sequence[Any], number: int) -> list[Any]:
    """Return the contenders in the order of a round. The order rotates from round to round.

    This evens out effects of the contender before, such as a warm processor or a full cache.
    """
    first = number % len(names)
    return [*names[first:], *names[:first]]


def serve(pipe: Connection, make: Callable, arguments: tuple) -> None:
    """Take the first turn at once, and another for each True from the pipe."""
    try:
        turn = make(*arguments)
        pipe.send(timed(turn))
    except Exception as error:  # noqa: BLE001  reported in the table
        pipe.send((0.0, None, f"{type(error).__name__}: {error}".splitlines()[0]))
        return
    while pipe.recv():
        pipe.send(timed(turn))
    pipe.send(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def timed(turn: Callable[[], Any]) -> tuple[float, Any, str]:
    began = time.perf_counter()
    answer = turn()
    return time.perf_counter() - began, answer, ""


def machine() -> str:
    """Return the processor and the library versions."""
    processor = platform.processor()
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        parts = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        facts = {name.strip(): value.strip() for name, _, value in parts}
        name = facts.get("model name", processor)  # ARM processors list neither name nor flags
        if flags := facts.get("flags", "").split():
            kinds = {"avx512f": "AVX-512", "amx_tile": "AMX"}
            has = [text if flag in flags else f"no {text}" for flag, text in kinds.items()]
            name += f" ({', '.join(has)})"
        processor = f"{multiprocessing.cpu_count()} cores of {name}"
    versions = []
    for library in LIBRARIES:
        try:
            versions.append(f"{library} {metadata.version(library)}")
        except metadata.PackageNotFoundError:
            continue  # contenders that need it report an error
    return f"{processor}; {', '.join(versions)}"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, the smallest and the largest value as text."""
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def add_flags(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add the flags that all benchmarks share."""
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--platform", choices=PLATFORMS, default="cpu")
    parser.add_argument("--contenders", help="comma-separated names; default: all", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)


def chosen(
    parser: argparse.ArgumentParser,
    contenders: dict[str, Any],
    names: str,
    always: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the contenders in the comma-separated `names` and in `always`.

    An unknown name ends the program.
    """
    wanted = {*names.split(","), *always} if names else set(contenders)
    if unknown := wanted - set(contenders):
        parser.error(
            f"--contenders: unknown {', '.join(unknown)}; choose from {', '.join(contenders)}"
        )
    return {name: each for name, each in contenders.items() if name in wanted}


def publish(
    title: str,
    table: str,
    results: Sequence[Result],
    flags: argparse.Namespace,
    not_drawn: Sequence[str] = (),
) -> None:
    """Print the table, and write the JSON file and the chart if the flags ask for them."""
    print(f"{title}\n{machine()}\n\n{table}")
    if flags.json:
        data = {"title": title, "machine": machine()}
        rows = [dataclasses.asdict(result) for result in results]
        flags.json.write_text(json.dumps({**data, "results": rows}, indent=1), encoding="utf-8")
    if flags.chart:
        drawn = [result for result in results if result.name not in not_drawn]
        draw(title, drawn).write_html(flags.chart)


def draw(title: str, results: Sequence[Result]) -> Any:
    """Draw the speed of each contender relative to the first, with its spread."""
    import plotly.graph_objects as go

    done = [result for result in results if not result.error][::-1]
    ratios = [result.ratios(results[0]) for result in done]
    medians = [statistics.median(each) for each in ratios]
    ends = {
        "array": [max(each) - median for each, median in zip(ratios, medians, strict=True)],
        "arrayminus": [median - min(each) for each, median in zip(ratios, medians, strict=True)],
    }
    names = [result.name for result in done]
    figure = go.Figure(go.Bar(x=medians, y=names, orientation="h", error_x=ends))
    return figure.update_layout(title=title, xaxis_title=f"speed relative to {results[0].name}")
