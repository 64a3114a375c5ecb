"""A benchmark of the train step's time over one axis at a time, with what it grows like.

    python -m experiments.benchmarks.scaling [--config=tiny:multi30k]
        [--axes=batch_tokens,length,d_model,vocabulary] [--rounds=5] [--platform=cpu|gpu]
        [--json=FILE] [--chart=FILE]

Each axis begins at the config's own size and doubles; all else stays, so a batch of longer rows has
fewer of them. Batches are of random tokens with padding in a quarter of the positions. In each
round all sizes take one step, in one process; the first step of each, which compiles, is apart. For
each axis are printed the line a + b x nearest to the medians, by how much it misses the farthest of
them, and the exponent of the growth between the ends, beside that of the model FLOPs.
"""

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jformer
from experiments.benchmarks import turns
from experiments.benchmarks.train import ours
from jformer.config import Config
from jformer.data.batches import rows_that_fit
from jformer.training.flops import step_flops

LENGTH = 32  # of a row on each side, where the axis is another
FACTORS = {
    "batch_tokens": (1, 2, 4, 8),
    "length": (1, 2, 4, 8),
    "d_model": (1, 2, 4),
    "vocabulary": (1, 2, 4, 8),
}
KEYS = {
    "batch_tokens": "train.batch_tokens",
    "d_model": "model.d_model",
    "vocabulary": "data.vocabulary_size",
}


class Work(NamedTuple):
    """The config and the shape of the batch that a step is timed with; axes may share some."""

    config: Config
    rows: int
    length: int

    @property
    def flops(self) -> float:
        return step_flops(self.config, self.rows, self.length, self.length)


@dataclasses.dataclass
class Timing:
    first: float  # seconds of the step that compiles
    seconds: list[float]  # of a step in each round


@dataclasses.dataclass
class Fit:
    """The line `a + b * size` nearest to seconds, and the exponent between the first and the last.

    `farthest` is the largest deviation of a measured value from the line, relative to the value.
    """

    a: float
    b: float
    farthest: float
    exponent: float


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> Fit:
    b, a = np.polyfit(sizes, seconds, 1).tolist()
    deviations = [
        abs(a + b * size - measured) / measured
        for size, measured in zip(sizes, seconds, strict=True)
    ]
    return Fit(a, b, max(deviations), exponent(sizes, seconds))


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    return math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0])


def works_of(name: str, axis: str) -> dict[int, Work]:
    """Return what is measured along an axis, by size."""
    config, works = jformer.get_config(name), {}
    for factor in FACTORS[axis]:
        if axis == "length":
            size = length = factor * LENGTH
            changed = config
        else:
            section, key = KEYS[axis].split(".")
            size, length = factor * getattr(getattr(config, section), key), LENGTH
            changed = jformer.get_config(name, **{KEYS[axis]: size})
        works[size] = Work(changed, rows_that_fit(changed.train.batch_tokens, length), length)
    return works


def measure(works: Sequence[Work], rounds: int, platform: str) -> dict[Work, Timing]:
    """Time a step of each work in each round, in another order each time."""
    steps: dict[Work, Callable[[], Any]] = {}
    timings = {}
    for work in dict.fromkeys(works):
        steps[work] = ours(*work, 1, platform)
        timings[work] = Timing(turns.timed(steps[work])[0], [])
    for number in range(rounds):
        for work in turns.in_order(list(steps), number):
            timings[work].seconds.append(turns.timed(steps[work])[0])
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="tiny:multi30k")
    parser.add_argument("--axes", default=",".join(FACTORS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--platform", choices=turns.PLATFORMS, default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    axes = options.axes.split(",")
    if unknown := set(axes) - set(FACTORS):
        parser.error(f"--axes: no {', '.join(unknown)}; there are {', '.join(FACTORS)}")
    works = {axis: works_of(options.config, axis) for axis in axes}
    everything = [work for of_axis in works.values() for work in of_axis.values()]
    timings = measure(everything, options.rounds, options.platform)
    fits = {axis: fit_of(of_axis, timings) for axis, of_axis in works.items()}
    title = f"Train step of {options.config} by one size at a time, {options.platform}"
    print(
        f"{title}\n{turns.machine()}\n\n{sizes_table(works, timings)}\n\n{fits_table(works, fits)}"
    )
    if options.json:
        points = [
            {"axis": axis, "size": size, "flops": work.flops, **dataclasses.asdict(timings[work])}
            for axis, of_axis in works.items()
            for size, work in of_axis.items()
        ]
        lines = {axis: dataclasses.asdict(line) for axis, line in fits.items()}
        data = {"title": title, "machine": turns.machine(), "points": points, "fits": lines}
        options.json.write_text(json.dumps(data, indent=1), encoding="utf-8")
    if options.chart:
        draw(title, works, timings).write_html(options.chart)


def fit_of(works: dict[int, Work], timings: dict[Work, Timing]) -> Fit:
    return fit([*works], [statistics.median(timings[work].seconds) for work in works.values()])


def sizes_table(works: dict[str, dict[int, Work]], timings: dict[Work, Timing]) -> str:
    rows = []
    for axis, of_axis in works.items():
        for size, work in of_axis.items():
            timing = timings[work]
            median = statistics.median(timing.seconds)
            rows.append(
                [
                    axis,
                    f"{size:,}",
                    f"{work.rows} x {work.length}",
                    turns.spread([1000 * seconds for seconds in timing.seconds], 1),
                    f"{work.flops / median / 1e9:.1f}",
                    f"{timing.first - median:.1f}",
                ]
            )
    header = ["axis", "size", "rows x positions", "ms a step", "GFLOP/s", "seconds to compile"]
    return turns.markdown(header, rows)


def fits_table(works: dict[str, dict[int, Work]], fits: dict[str, Fit]) -> str:
    rows = []
    for axis, fitted in fits.items():
        flops = [work.flops for work in works[axis].values()]
        rows.append(
            [
                axis,
                f"{1000 * fitted.a:.1f} + {1000 * fitted.b:.3g} x",
                f"{fitted.farthest:.1%}",
                f"{fitted.exponent:.2f}",
                f"{exponent([*works[axis]], flops):.2f}",
            ]
        )
    header = ["axis x", "ms a step", "farthest from it", "exponent", "exponent of the FLOPs"]
    return turns.markdown(header, rows)


def draw(title: str, works: dict[str, dict[int, Work]], timings: dict[Work, Timing]) -> Any:
    """Draw each axis' medians relative to its first size, with both scales logarithmic."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for axis, of_axis in works.items():
        sizes = [*of_axis]
        medians = [statistics.median(timings[work].seconds) for work in of_axis.values()]
        x = [size / sizes[0] for size in sizes]
        y = [median / medians[0] for median in medians]
        figure.add_scatter(x=x, y=y, name=axis, mode="lines+markers")
    figure.update_xaxes(type="log", title="size, relative to the first")
    figure.update_yaxes(type="log", title="time of a step, relative to the first")
    return figure.update_layout(title=title)


if __name__ == "__main__":
    main()
