"""The comparison of runs, as a table and as a page with learning curves.

Each config has one row with its differences, scores and cost. Run directories are only read, and
their runs may still be training.
"""

import collections
import dataclasses
import functools
import hashlib
import html
import importlib.resources
import itertools
import logging
import os
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

from jformer import console
from jformer.components import parse, without_folders
from jformer.config import Config, ModelConfig
from jformer.console import as_duration
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError, import_extra
from jformer.model.transformer import Transformer
from jformer.results import read_results
from jformer.rundir import CONFIG, VOCABULARY, config_of, has_run, read_metrics
from jformer.schema import walk, walk_components
from jformer.training.checkpoints import Checkpoints
from jformer.training.restore import parameter_shapes

log = logging.getLogger(__name__)

REPORTED = {  # the scores in the table: short names and decimal places
    "bleu": ("BLEU", 2),
    "bleu_lowercase": ("lc", 2),
    "chrf": ("chrF", 2),
    "f1": ("F1", 2),
    "perplexity": ("PPL", 3),
}
# Keys without effect on the model, besides paths: runs that differ only in them share a row.
IGNORED = {
    "name",
    "seed",
    "compilation_cache",
    "train.log_every",
    "train.checkpoint_every",
    "train.checkpoint_minutes",
    "train.keep_checkpoints",
    "train.keep_every",
    "parallel.coordinator",
    "decode.batch_size",
    "decode.read_ahead",
}
# Split and name in metrics.jsonl, title of the plot, label of its y axis.
CURVES = (
    ("validation", "nll", "Validation likelihood", "NLL, nats per token"),
    ("validation", "bleu", "Validation BLEU of the first pairs", "BLEU"),
    ("validation", "f1", "Validation F1 of the first sentences", "F1"),
    ("train", "nll", "Training likelihood", "NLL, nats per token"),
)


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """The config, the number of parameters, the metrics and the scores of a run directory."""

    workdir: Path
    config: Config
    parameters: int | None  # None without a vocabulary
    lines: list[dict[str, Any]]  # of metrics.jsonl
    scores: dict[str, dict[str, Any]]  # by split

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
        """Return the `seconds` or `flops` of training so far; None if not recorded."""
        found = [line[name] for line in self.lines if name in line]
        return found[-1] if found else None

    def curve(self, split: str, name: str) -> list[tuple[int, float]]:
        return [
            (line["step"], line[name])
            for line in self.lines
            if line["split"] == split and name in line
        ]

    def scored(self, split: str) -> str:
        """Return which checkpoint the scores of a split are of: `average`, `last (step 500)`."""
        scores = self.scores[split]
        checkpoint, step = scores.get("checkpoint", ""), scores.get("step", self.step)
        return checkpoint if step == self.step else f"{checkpoint}, step {step:,}"


@dataclasses.dataclass(frozen=True)
class Row:
    """Runs of one config, code and text; they may differ in IGNORED keys and paths."""

    label: str
    common: dict[str, Any]  # the most common value of each key, of the rows of a table
    changes: dict[str, Any]  # the values that differ from these
    runs: list[RunSummary]


def find_runs(folders: Sequence[str | Path]) -> list[Path]:
    """Return the run directories in `folders` at any depth; within a folder, sorted by name."""
    found = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder}: not found; must be a run directory, or a folder of runs")
        runs = []
        for path, inside, files in os.walk(folder):
            if CONFIG in files:
                runs.append(Path(path))
                inside.clear()  # a run does not contain runs
        if not runs:
            raise UserError(f"{folder}: contains no started run")
        found += sorted(runs)
    return list(dict.fromkeys(found))


def read_run(workdir: Path) -> RunSummary:
    config = config_of(workdir)
    count = None
    needs_files = any(
        key.startswith("config.model.") and parse(text).file
        for key, _, text in walk_components(config)
    )
    if (workdir / VOCABULARY).exists() and not needs_files:
        words = Vocabularies.load(workdir, config.data.joint_vocabulary)
        count = count_parameters(config.model, words.target.size, words.source.size)
    return RunSummary(workdir, config, count, read_metrics(workdir), read_results(workdir))


@functools.cache  # a second for each config, and a sweep has several seeds of each
def count_parameters(config: ModelConfig, target_size: int, source_size: int) -> int:
    shapes = parameter_shapes(Transformer(config, target_size, source_size))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def read_rows(workdirs: Sequence[Path]) -> list[Row]:
    """Return one row per config from all started runs.

    Damaged runs are excluded with a warning.
    """
    runs = []
    for workdir in filter(has_run, workdirs):
        try:
            runs.append(read_run(workdir))
        except (UserError, OSError) as error:
            log.warning("%s is excluded: %s", workdir, error)
    if not runs:
        return []
    facts = [comparable(run) for run in runs]
    # The most frequent value of each key; the first if several tie.
    keys = dict.fromkeys(itertools.chain(*facts))
    common = {key: statistics.mode(each[key] for each in facts if key in each) for key in keys}
    together: dict[tuple[tuple[str, Any], ...], list[RunSummary]] = {}
    for run, values in zip(runs, facts, strict=True):
        changes = tuple((key, value) for key, value in values.items() if value != common[key])
        together.setdefault(changes, []).append(run)
    names = short_names({key for changes in together for key, _ in changes})
    rows = [
        Row(named(dict(changes), names), common, dict(changes), alike)
        for changes, alike in together.items()
    ]
    return sorted(rows, key=lambda row: bool(row.changes))  # the base first


def comparable(run: RunSummary) -> dict[str, Any]:
    """Return what the scores of a run depend on: keys, and hashes of its code and text.

    The hashes are known from the first checkpoint on. Files count by their content, except
    `train.init_from`.
    """
    facts: dict[str, Any] = {}
    for key, field, value in walk(run.config):
        if field.metadata.get("component"):
            value = without_folders(value)
        is_path = field.metadata.get("is_path") and key != "train.init_from"
        if key not in IGNORED and not is_path:
            facts[key] = value
    checkpoints = Checkpoints(run.workdir)
    metadata, position = checkpoints.newest("metadata"), checkpoints.newest("position")
    versions = metadata.get("versions", {})
    facts |= {name: key for name, key in versions.items() if name.endswith(".py")}
    if "source" in versions:
        facts["code"] = versions["source"]
    if "text" in position:
        texts = [metadata["vocabulary_hash"], *(digest for _, digest in position["text"])]
        facts["text"] = hashlib.sha256("".join(texts).encode()).hexdigest()[:12]
    return facts


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the last part of each key, or the full key if another has the same last part."""
    ends = collections.Counter(key.rpartition(".")[2] for key in keys)
    return {key: end if ends[end := key.rpartition(".")[2]] == 1 else key for key in keys}


def named(values: dict[str, Any], names: dict[str, str]) -> str:
    return ", ".join(f"{names[key]}={value}" for key, value in values.items()) or "base"


def base_line(rows: list[Row]) -> str:
    """Return the most common values of the keys that rows change; empty without changes."""
    changed = dict.fromkeys(key for row in rows for key in row.changes)
    values = {key: rows[0].common[key] for key in changed}
    return f"base: {named(values, short_names(changed))}" if changed else ""


def table(rows: list[Row]) -> list[list[str]]:
    """Return the heading, then the cells of every row; the best scores are between `**`."""
    folder = common_folder(rows)
    columns = {
        "run": [", ".join(os.path.relpath(run.workdir, folder) for run in row.runs) for row in rows]
    }
    columns["changed"] = [row.label for row in rows]
    if any(len(row.runs) > 1 for row in rows):
        columns["seeds"] = [str(len({run.config.seed for run in row.runs})) for row in rows]
    columns["state"] = [", ".join(dict.fromkeys(run.state for run in row.runs)) for row in rows]
    columns["validation NLL"] = score_cells([last_likelihoods(row) for row in rows], 3, lowest=True)
    runs = [run for row in rows for run in row.runs]
    scored = dict.fromkeys((split, run.scored(split)) for run in runs for split in run.scores)
    several = len({checkpoint for _, checkpoint in scored}) > 1
    lowercase = any(run.config.data.is_lowercase for run in runs)
    for (split, checkpoint), (name, (metric, digits)) in itertools.product(
        scored, REPORTED.items()
    ):
        values = [scores_of(row, split, checkpoint, name) for row in rows]
        if any(values) and (lowercase or name != "bleu_lowercase"):
            heading = f"{split} {metric}" + several * f" ({checkpoint})"
            columns[heading] = score_cells(values, digits, lowest=name == "perplexity")
    counts = [row.runs[0].parameters for row in rows]
    columns["parameters"] = ["-" if count is None else f"{count:,}" for count in counts]
    flops = [mean_spent(row, "flops") for row in rows]
    columns["FLOPs"] = [f"{spent:.1e}" if spent else "-" for spent in flops]
    seconds = [mean_spent(row, "seconds") for row in rows]
    columns["time"] = ["-" if spent is None else as_duration(spent) for spent in seconds]
    return [[*columns], *map(list, zip(*columns.values(), strict=True))]


def common_folder(rows: list[Row]) -> str:
    return os.path.commonpath([run.workdir.absolute().parent for row in rows for run in row.runs])


def last_likelihoods(row: Row) -> list[float]:
    curves = [run.curve("validation", "nll") for run in row.runs]
    return [curve[-1][1] for curve in curves if curve]


def scores_of(row: Row, split: str, checkpoint: str, name: str) -> list[float]:
    runs = [run for run in row.runs if split in run.scores and run.scored(split) == checkpoint]
    return [run.scores[split][name] for run in runs if name in run.scores[split]]


def score_cells(rows: list[list[float]], digits: int, lowest: bool = False) -> list[str]:
    """Format each row's mean, with the standard deviation of several values; mark the best mean."""
    means = [round(statistics.mean(values), digits) for values in rows if values]
    best = (min if lowest else max)(means, default=None)
    cells = []
    for values in rows:
        if not values:
            cells.append("-")
            continue
        mean = statistics.mean(values)
        cell = f"{mean:.{digits}f}"
        if len(values) > 1:
            cell += f" ± {statistics.stdev(values):.{digits}f}"
        is_best = len(means) > 1 and round(mean, digits) == best
        cells.append(f"**{cell}**" if is_best else cell)
    return cells


def mean_spent(row: Row, name: str) -> float | None:
    spent = [spent for run in row.runs if (spent := run.spent(name)) is not None]
    return statistics.mean(spent) if spent else None


def markdown(rows: list[Row]) -> str:
    """Format the table in Markdown, followed by a line about the base of its rows."""
    return "\n\n".join(filter(None, [console.markdown(table(rows)), base_line(rows)]))


def page(rows: list[Row]) -> str:
    """Return the table and the learning curves as one self-contained HTML page."""
    heading, *lines = table(rows)
    content = {
        "{heading}": "".join(f"<th>{breakable(name)}</th>" for name in heading),
        "{rows}": "".join(html_row(heading, line) for line in lines),
        "{base}": html.escape(base_line(rows)),
        "{curves}": curves(rows),
    }
    text = (importlib.resources.files("jformer.extras") / "report.html").read_text("utf-8")
    for name, part in content.items():
        text = text.replace(name, part)
    return text


def html_row(heading: list[str], cells: list[str]) -> str:
    columns = []
    for name, cell in zip(heading, cells, strict=True):
        text = breakable(cell) if name in ("run", "changed") else html.escape(cell.strip("*"))
        text = f"<b>{text}</b>" if cell.startswith("**") else text
        columns.append(f'<td data-column="{html.escape(name)}">{text}</td>')
    return f"<tr>{''.join(columns)}</tr>\n"


def breakable(text: str) -> str:
    """Return HTML that a browser may break into lines within a long name."""
    return re.sub("([+/_])", r"\1<wbr>", html.escape(text))


def curves(rows: list[Row]) -> str:
    """Return the HTML of one plot for each kind of curve that any run has."""
    plotly = import_extra("plotly.graph_objects", "--output", "plotly")
    palette = import_extra("plotly.colors", "--output", "plotly").qualitative.Plotly
    folder, parts = common_folder(rows), list[str]()
    for split, name, title, unit in CURVES:
        figure = plotly.Figure(layout={"title": title, "template": "plotly_white"})
        # The legend is below the plot, because names are long and a phone is narrow.
        figure.update_layout(
            xaxis_title="step (parameter updates)",
            yaxis_title=unit,
            legend={"orientation": "h", "y": -0.25},
            margin={"l": 50, "r": 10},
            showlegend=True,
        )
        for number, row in enumerate(rows):
            for symbol, run in enumerate(row.runs):
                if curve := run.curve(split, name):
                    figure.add_scatter(
                        x=[step for step, _ in curve],
                        y=[value for _, value in curve],
                        name=os.path.relpath(run.workdir, folder),
                        mode="lines+markers",
                        marker_symbol=symbol,
                        line_color=palette[number % len(palette)],
                        line_dash="solid" if number < len(palette) else "dash",
                    )
        if figure.data:
            # The first plot includes plotly itself, for all of them.
            options = {"include_plotlyjs": not parts, "config": {"responsive": True}}
            parts.append(figure.to_html(full_html=False, **options))
    return "\n".join(parts)
