"""The comparison of runs: a row per config with its differences, its scores and its cost.

Run directories are only read, never written to; their runs may still be in training.
"""

import dataclasses
import hashlib
import itertools
import logging
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jformer import console
from jformer.components import parse
from jformer.config import Config
from jformer.console import as_duration
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError
from jformer.extras.cost import parameters
from jformer.extras.paper import TABLE_3, PaperRow, flat_with_widths, paper_row
from jformer.model.transformer import Transformer
from jformer.results import SACREBLEU, read_results
from jformer.rundir import CONFIG, VOCABULARY, config_of, has_run, read_metrics
from jformer.schema import flatten, walk_components
from jformer.training.checkpoints import Checkpoints
from jformer.training.restore import parameter_shapes

log = logging.getLogger(__name__)

REPORTED = {  # the scores in the table: their short names and digits after the decimal point
    "bleu": ("BLEU", 2),
    "bleu_lowercase": ("lc", 2),
    "chrf": ("chrF", 2),
    "f1": ("F1", 2),
    "perplexity": ("PPL", 3),
}
UNSEEN = ("name", "seed")  # keys in which the runs of one row may differ


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """The config, the number of parameters, the metrics and the scores of a run directory."""

    workdir: Path
    config: Config
    parameters: int | None  # None: there is no vocabulary yet
    lines: list[dict[str, Any]]  # of metrics.jsonl
    scores: dict[str, dict[str, Any]]  # by split
    text: str = ""  # identifies pairs given from Python, which the config does not name

    @property
    def step(self) -> int:
        return max((line["step"] for line in self.lines), default=0)

    @property
    def state(self) -> str:
        steps = self.config.train.steps
        ended = any(line["split"] == "ended" for line in self.lines)
        if self.step < steps and not ended:
            return f"step {self.step:,} of {steps:,}"
        return "complete" if self.scores else "trained"

    def spent(self, name: str) -> float | None:
        """Return the `seconds` or `flops` of training so far; None where none are recorded."""
        found = [line[name] for line in self.lines if name in line]
        return found[-1] if found else None

    def curve(self, split: str, name: str) -> list[tuple[int, float]]:
        return [
            (line["step"], line[name])
            for line in self.lines
            if line["split"] == split and name in line
        ]


@dataclasses.dataclass(frozen=True)
class Row:
    """Runs whose configs differ in seed and name at most."""

    changes: dict[str, Any]  # keys whose values are not the most common ones of all runs
    runs: list[RunSummary]
    paper: PaperRow | None

    @property
    def label(self) -> str:
        return named(self.changes) or "base"


def named(values: dict[str, Any]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())


def base_line(rows: list[Row]) -> str:
    """Return the most common values of the keys that some row changes; empty if there are none."""
    kept = {}
    for key in dict.fromkeys(key for row in rows for key in row.changes):
        # Some run has the most common value, so there is a row that does not change it.
        other = next(row for row in rows if key not in row.changes)
        kept[key] = flat_as_given(other.runs[0])[key]
    return f"base: {named(kept)}" if kept else ""


def find_runs(folders: Sequence[str | Path]) -> list[Path]:
    """Return the run directories among `folders`, and those directly inside the others.

    Within a folder they are sorted by name, numbers in numeric order.
    """
    found = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; name run directories, or folders of them")
        inside = sorted((path.parent for path in folder.glob(f"*/{CONFIG}")), key=natural)
        runs = [folder] if has_run(folder) else inside
        if not runs:
            deeper = sorted({path.parents[1] for path in folder.glob(f"*/*/{CONFIG}")})
            hint = f"; name {', '.join(map(str, deeper))}" if deeper else ""
            raise UserError(f"{folder}: no run has begun there{hint}")
        found += runs
    return list(dict.fromkeys(found))


def natural(path: Path) -> list[tuple[bool, int | str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in parts if part]


def read_run(workdir: Path) -> RunSummary:
    config = config_of(workdir)
    count = None
    needs_files = any(
        key.startswith("config.model.") and parse(text).file
        for key, _, text in walk_components(config)
    )
    if (workdir / VOCABULARY).exists() and not needs_files:
        words = Vocabularies.load(workdir, config.data.joint_vocabulary)
        model = Transformer(config.model, words.target.size, words.source.size)
        count = sum(parameters(parameter_shapes(model)).values())
    lines = read_metrics(workdir)
    text = given_text(workdir) if config.data.name == "given" else ""
    return RunSummary(workdir, config, count, lines, read_results(workdir), text)


def given_text(workdir: Path) -> str:
    """Return a short hash of the text of a run; before its first checkpoint, its directory."""
    hashes = [content for _, content in Checkpoints(workdir).newest("position").get("text", [])]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:8] if hashes else str(workdir)


def read_rows(workdirs: Sequence[Path]) -> list[Row]:
    """Return a row per config from all runs that have begun; runs that differ in seed share a row.

    Damaged runs are left out with a warning.
    """
    runs = []
    for workdir in filter(has_run, workdirs):
        try:
            runs.append(read_run(workdir))
        except (UserError, OSError) as error:
            log.warning("%s is left out: %s", workdir, error)
    if not runs:
        return []
    flat = [flat_with_widths(run.config) for run in runs]
    given = [flat_as_given(run) for run in runs]
    # The most frequent value of each key; of equally frequent ones, the first.
    common = {key: statistics.mode(values[key] for values in given) for key in given[0]}
    base = {key: statistics.mode(values[key] for values in flat) for key in flat[0]}
    together: dict[tuple[tuple[str, Any], ...], list[RunSummary]] = {}
    for run, values in zip(runs, given, strict=True):
        changes = tuple((key, value) for key, value in values.items() if value != common[key])
        together.setdefault(changes, []).append(run)
    rows = [
        Row(dict(changes), alike, paper_row(base, dict(changes)))
        for changes, alike in together.items()
    ]
    # The base comes first, then the rows of the paper's Table 3 in its order.
    printed = [*TABLE_3, None]
    rows.sort(key=lambda row: (bool(row.changes), printed.index(row.paper)))
    return rows


def flat_as_given(run: RunSummary) -> dict[str, Any]:
    flat = {**flatten(run.config), "data.text": run.text}
    return {key: value for key, value in flat.items() if key not in UNSEEN}


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return for each path the fewest of its last parts that no other path ends with."""
    parts = {name: Path(name).parts for name in names}
    found = {}
    for name, own in parts.items():
        others = [other for other in parts if other != name]
        tails = (own[-n:] for n in range(1, len(own) + 1))
        alone = (t for t in tails if all(parts[other][-len(t) :] != t for other in others))
        found[name] = str(Path(*next(alone, own)))
    return found


def names_of_test_sets(rows: list[Row]) -> dict[str, str]:
    """Return the name of each test set in the columns: for one that is a path a short one."""
    names = dict.fromkeys(name for row in rows for run in row.runs for name in run.scores)
    short = short_names([*names])
    return {name: name if name.startswith(SACREBLEU) else short[name] for name in names}


def notes(rows: list[Row]) -> list[str]:
    """Return the lines below the table: the base of its rows, and its test sets' paths."""
    sets = [f"{short}: {name}" for name, short in names_of_test_sets(rows).items() if short != name]
    return [*filter(None, [base_line(rows)]), *sets]


def table(rows: list[Row]) -> list[list[str]]:
    """Return the heading, then the cells of every row."""
    folders = [[str(run.workdir) for run in row.runs] for row in rows]
    names = short_names([*itertools.chain.from_iterable(folders)])
    columns = {"run": [", ".join(names[folder] for folder in of_row) for of_row in folders]}
    columns["changed"] = [row.label for row in rows]
    if any(len(row.runs) > 1 for row in rows):
        columns["seeds"] = [str(len({run.config.seed for run in row.runs})) for row in rows]
    columns["state"] = [", ".join(dict.fromkeys(run.state for run in row.runs)) for row in rows]
    columns["validation NLL"] = [spread(last_likelihoods(row), 3) for row in rows]
    for (split, short), name in itertools.product(names_of_test_sets(rows).items(), reported(rows)):
        metric, digits = REPORTED[name]
        means = [spread(scores_of(row, split, name), digits) for row in rows]
        if {*means} != {"-"}:
            columns[f"{short} {metric}"] = means
    counts = [row.runs[0].parameters for row in rows]
    columns["parameters"] = ["-" if count is None else f"{count:,}" for count in counts]
    columns["FLOPs"] = [exponent(mean_spent(row, "flops")) for row in rows]
    columns["time"] = [duration(mean_spent(row, "seconds")) for row in rows]
    if any(row.paper for row in rows if row.changes):
        papers = zip(*(of_paper(row.paper) for row in rows), strict=True)
        for name, cells in zip(("row", "BLEU", "PPL", "parameters"), papers, strict=True):
            columns[f"paper's {name}"] = [*cells]
    columns["directory"] = [", ".join(of_row) for of_row in folders]
    return [[*columns], *map(list, zip(*columns.values(), strict=True))]


def reported(rows: list[Row]) -> list[str]:
    """Return the scores to print; BLEU without case is one only of runs on text without it."""
    lower = any(run.config.data.is_lowercase for row in rows for run in row.runs)
    return [name for name in REPORTED if lower or name != "bleu_lowercase"]


def last_likelihoods(row: Row) -> list[float]:
    curves = [run.curve("validation", "nll") for run in row.runs]
    return [curve[-1][1] for curve in curves if curve]


def scores_of(row: Row, split: str, name: str) -> list[float]:
    scores = [run.scores.get(split, {}) for run in row.runs]
    return [score[name] for score in scores if name in score]


def of_paper(row: PaperRow | None) -> list[str]:
    if row is None:
        return ["", "", "", ""]
    millions = f"{row.millions} M" if row.millions else ""
    return [row.name, f"{row.bleu:.1f}", f"{row.perplexity:.2f}", millions]


def spread(values: list[float], digits: int) -> str:
    """Format the mean, with the standard deviation if there are several values."""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values):.{digits}f}"


def mean_spent(row: Row, name: str) -> float | None:
    spent = [spent for run in row.runs if (spent := run.spent(name)) is not None]
    return statistics.mean(spent) if spent else None


def exponent(value: float | None) -> str:
    """Format a number with two digits and an exponent, as 3.3e18."""
    if not value:
        return "-"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits}e{int(power)}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return as_duration(seconds).removeprefix("0")


def markdown(rows: list[Row]) -> str:
    """Format the table in Markdown, followed by its notes."""
    return "\n\n".join([console.markdown(table(rows)), *notes(rows)])
