"""Contenders of a benchmark that take turns, each in a process of its own.

In one process the threads of two libraries would get into each other's way, and the peak memory of
one contender could not be told from another's.
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

PLATFORMS = {"cpu": "cpu", "gpu": "cuda"}  # and what JAX, PyTorch and CTranslate2 call them
PAUSE = 0.5  # seconds between two turns: the threads of OpenMP go on spinning for 0.2
LIBRARIES = ("jax", "flax", "torch", "transformers", "ctranslate2")


@dataclasses.dataclass
class Result:
    name: str
    seconds: list[float]  # of each round
    first: float  # seconds of the first turn, which compiles
    memory: float  # peak in bytes, of the host
    answer: Any  # what the last turn returned
    error: str = ""  # why it could not take part

    def ratios(self, other: "Result") -> list[float]:
        """Return its speed relative to another's, round by round."""
        return [b / a for a, b in zip(self.seconds, other.seconds, strict=True)]


def take_turns(
    contenders: dict[str, tuple[Callable[..., Callable[[], Any]], tuple]], rounds: int
) -> list[Result]:
    """Time one turn of each contender in each round.

    A contender is `(make, arguments)`: in a process of its own `make(*arguments)` returns the
    function that is a turn.
    """
    give_huge_pages()
    context = multiprocessing.get_context("spawn")
    pipes, results = {}, {}
    for name, (make, arguments) in contenders.items():
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, make, arguments), daemon=True).start()
        theirs.close()
        first, answer, error = ours.recv()
        results[name] = Result(name, [], first, 0.0, answer, error)
        print(f"{name}: {error or f'ready, {first:.1f} s'}", file=sys.stderr)
        if not error:
            pipes[name] = ours
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
    """Let all contenders have malloc on huge pages, as jformer's commands do by themselves."""
    os.environ.setdefault(*HUGE_PAGES)


def in_order(names: Sequence[Any], number: int) -> list[Any]:
    """Return the contenders in the order of a round, another one in each.

    A contender may find the processor warm, or its cache full.
    """
    first = number % len(names)
    return [*names[first:], *names[:first]]


def serve(pipe: Connection, make: Callable, arguments: tuple) -> None:
    """Take a turn, the first at once, for each True that is received."""
    try:
        turn = make(*arguments)
        pipe.send(timed(turn))
    except Exception as error:  # noqa: BLE001  told in the table, the others go on without it
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
    """Return the processor and the versions that figures depend on."""
    processor = platform.processor()
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        parts = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        facts = {name.strip(): value.strip() for name, _, value in parts}
        name = facts.get("model name", processor)  # a processor of ARM has neither name nor flags
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
            continue  # the contenders that need it say so
    return f"{processor}; {', '.join(versions)}"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, with the smallest and the largest of several."""
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def add_flags(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add the flags that all benchmarks of contenders have."""
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--platform", choices=PLATFORMS, default="cpu")
    parser.add_argument("--contenders", help="names, with commas; default: all", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)


def chosen(
    parser: argparse.ArgumentParser,
    contenders: dict[str, Any],
    names: str,
    always: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the contenders that are named, with commas between, and those that always take part.

    A name that there is not ends the program.
    """
    wanted = {*names.split(","), *always} if names else set(contenders)
    if unknown := wanted - set(contenders):
        parser.error(f"--contenders: no {', '.join(unknown)}; there are {', '.join(contenders)}")
    return {name: each for name, each in contenders.items() if name in wanted}


def publish(
    title: str,
    table: str,
    results: Sequence[Result],
    flags: argparse.Namespace,
    not_drawn: Sequence[str] = (),
) -> None:
    """Print the table; write the JSON and the chart, relative to the first, where flags say so."""
    print(f"{title}\n{machine()}\n\n{table}")
    if flags.json:
        data = {"title": title, "machine": machine()}
        rows = [dataclasses.asdict(result) for result in results]
        flags.json.write_text(json.dumps({**data, "results": rows}, indent=1), encoding="utf-8")
    if flags.chart:
        drawn = [result for result in results if result.name not in not_drawn]
        draw(title, drawn).write_html(flags.chart)


def draw(title: str, results: Sequence[Result]) -> Any:
    """Draw each contender's speed relative to the first, with the spread of the rounds."""
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
