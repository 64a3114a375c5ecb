"""Successive halving: all points with few steps, then the better half of them with twice as many.

Jamieson and Talwalkar 2016. Each round is a sweep of its own, the last one with all steps.
"""

import dataclasses
import json
import math
import statistics

from jformer.command_line import parse
from jformer.config import Config
from jformer.errors import UserError
from jformer.sweeps.points import Point
from jformer.training.setup import check_same_config


def make_rounds(points: list[Point], rounds: int) -> list[list[Point]]:
    """Return the checked points of each round, as if none were left out on the way.

    The last round has the points as they are, those before are in `round-1` and so on beside them.
    """
    for point in points if rounds > 1 else []:
        train = point.config.train
        if train.scored != "validation":
            raise UserError(
                f"--rounds={rounds}: {point.name} is scored on {train.scored}, and what goes on is "
                f"chosen on validation; give --config.train.scored=validation"
            )
        if train.steps >> (rounds - 1) == 0:
            raise UserError(f"--rounds={rounds}: {point.name} has {train.steps} steps to halve")
    earlier = [[shorten(point, number, rounds) for point in points] for number in range(1, rounds)]
    return [*earlier, points]


def shorten(point: Point, number: int, rounds: int) -> Point:
    steps = point.config.train.steps >> (rounds - number)
    flags = (*point.flags, f"--config.train.steps={steps}")
    _, config = parse([*flags], {})
    workdir = point.workdir.parent / f"round-{number}" / point.name
    check_same_config(config, workdir)
    return Point(workdir, config, flags)


def promote(points: list[Point], next_round: list[Point]) -> list[Point]:
    """Return those of the next round whose scores were in the better half, by means over seeds.

    Where the run of one seed failed, those of the others are left out, too.
    """
    alike: dict[Config, list[Point]] = {}
    for point in points:
        alike.setdefault(dataclasses.replace(point.config, seed=0), []).append(point)
    scored = [runs for runs in alike.values() if all(run.is_complete for run in runs)]
    scored.sort(key=lambda runs: statistics.fmean(map(score_of, runs)), reverse=True)
    better = scored[: math.ceil(len(alike) / 2)]
    names = [run.name for runs in better for run in runs]
    return [point for point in next_round if point.name in names]


def score_of(point: Point) -> float:
    """Return the F1 of validation's trees, or the BLEU: without case where there is none."""
    scores = json.loads(point.scores.read_text())["validation"]
    bleu = "bleu_lowercase" if point.config.data.normalization == "lower" else "bleu"
    return scores["f1" if "f1" in scores else bleu]
