"""Successive halving: all points with few steps, then the better half of them with twice as many.

Jamieson and Talwalkar 2016. Each round is a sweep of its own, the last one with all steps.
"""

import dataclasses
import json
import math
import statistics

from jformer.cli import config_of_flags
from jformer.config import Config
from jformer.errors import UserError
from jformer.extras.sweeps.points import Point
from jformer.training.provenance import check_same_config


def make_rounds(points: list[Point], rounds: int) -> list[list[Point]]:
    """Return the checked points of each round, as if none were left out on the way.

    The last round has the points as they are, those before are in `round-1` and so on beside them.
    """
    if rounds == 1:
        return [points]
    for point in points:
        train = point.config.train
        if train.scored != "validation":
            raise UserError(
                f"--rounds={rounds}: {point.name} is scored on {train.scored}, and what goes on is "
                f"chosen on validation; give --config.train.scored=validation"
            )
        if train.steps >> (rounds - 1) == 0:
            raise UserError(
                f"--rounds={rounds}: {point.name} has {train.steps} steps, too few for so many "
                f"halvings"
            )
    earlier = [[shorten(point, number, rounds) for point in points] for number in range(1, rounds)]
    return [*earlier, points]


def shorten(point: Point, number: int, rounds: int) -> Point:
    steps = point.config.train.steps >> (rounds - number)
    flags = (*point.flags, f"--config.train.steps={steps}")
    workdir = point.workdir.parent / f"round-{number}" / point.name
    try:
        config = config_of_flags([*flags])
        check_same_config(config, workdir)
    except UserError as error:
        where = f"round {number} of {rounds}, {point.name}, {steps} steps"
        raise UserError(f"{where}: {error}") from error
    return Point(workdir, config, flags)


def promote(points: list[Point], next_round: list[Point]) -> list[Point]:
    """Return those of the next round whose scores were in the better half, which is rounded up.

    Scores are means over seeds. Where the run of one seed failed, those of the others are left out.
    """
    alike: dict[Config, list[Point]] = {}
    for point in points:
        alike.setdefault(dataclasses.replace(point.config, seed=0), []).append(point)
    scored = [runs for runs in alike.values() if all(run.is_complete for run in runs)]
    scored.sort(key=rank)
    better = scored[: math.ceil(len(alike) / 2)]
    names = [run.name for runs in better for run in runs]
    return [point for point in next_round if point.name in names]


def rank(runs: list[Point]) -> tuple[float, float]:
    """Return what is lowest for the best: the score as it is printed, then perplexity.

    The score is the BLEU of the validation split, or F1 for trees. With few steps it can be zero.
    """
    scores, perplexities = [], []
    for run in runs:
        found = json.loads(run.scores.read_text())["validation"]
        bleu = "bleu_lowercase" if run.config.data.is_lowercase else "bleu"
        scores.append(found["f1" if "f1" in found else bleu])
        perplexities.append(found.get("perplexity", math.inf))
    return -round(statistics.fmean(scores), 2), statistics.fmean(perplexities)
