"""The comparison of runs, as a table and as a page with learning curves.

Each config has one row with its differences, scores and cost. Run directories are only read, and
their runs may still be training.
"""

import dataclasses
import html
import itertools
import logging
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jformer import console
from jformer.components import parse
from jformer.config import Config
from jformer.console import as_duration
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError, import_extra
from jformer.extras.cost import parameters
from jformer.extras.paper import TABLE_3, PaperRow, flat_with_widths, paper_row
from jformer.model.transformer import Transformer
from jformer.results import read_results
from jformer.rundir import CONFIG, VOCABULARY, config_of, has_run, read_metrics
from jformer.schema import flatten, walk_components
from jformer.training.restore import parameter_shapes

log = logging.getLogger(__name__)

REPORTED = {  # the scores in the table: short names and decimal places
    "bleu": ("BLEU", 2),
    "bleu_lowercase": ("lc", 2),
    "chrf": ("chrF", 2),
    "f1": ("F1", 2),
    "perplexity": ("PPL", 3),
}
# Keys that affect neither training nor scores: runs that differ only in them share a row.
IGNORED = {
    "name",
    "seed",
    "compilation_cache",
    "data.cache",
    "data.directory",
    "train.log_every",
    "train.checkpoint_minutes",
    "train.keep_every",
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
LEGEND_WIDTH = 60  # characters; longer labels are shortened
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 96rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { border-bottom: 1px solid #ccc; padding: .25rem .6rem; text-align: right; }
:is(th, td):is(:nth-child(1), :nth-child(2)) { text-align: left; white-space: normal; }
"""


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


@dataclasses.dataclass(frozen=True)
class Row:
    """Runs whose configs differ only in IGNORED keys."""

    changes: dict[str, Any]  # keys whose values differ from the most common value of all runs
    runs: list[RunSummary]
    paper: PaperRow | None

    @property
    def label(self) -> str:
        return named(self.changes) or "base"


def named(values: dict[str, Any]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())


def base_line(rows: list[Row]) -> str:
    """Return the most common values of the keys that rows change; empty without changes."""
    kept = {}
    for key in dict.fromkeys(key for row in rows for key in row.changes):
        # At least one run has the most common value, so at least one row does not change it.
        other = next(row for row in rows if key not in row.changes)
        kept[key] = flatten(other.runs[0].config)[key]
    return f"base: {named(kept)}" if kept else ""


def find_runs(folders: Sequence[str | Path]) -> list[Path]:
    """Return the run directories among `folders`, and the run directories directly inside others.

    Within a folder they are sorted by name.
    """
    found = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder}: not found; must be a run directory, or a folder of runs")
        inside = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
        runs = [folder] if has_run(folder) else inside
        if not runs:
            raise UserError(f"{folder}: contains no started run")
        found += runs
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
        model = Transformer(config.model, words.target.size, words.source.size)
        count = sum(parameters(parameter_shapes(model)).values())
    return RunSummary(workdir, config, count, read_metrics(workdir), read_results(workdir))


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
    flat = [flat_with_widths(run.config) for run in runs]
    given = [
        {key: value for key, value in flatten(run.config).items() if key not in IGNORED}
        for run in runs
    ]
    # The most frequent value of each key; the first if several tie.
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
    # The base is first, followed by the rows of the paper's Table 3 in its order.
    printed = [*TABLE_3, None]
    rows.sort(key=lambda row: (bool(row.changes), printed.index(row.paper)))
    return rows


def table(rows: list[Row]) -> list[list[str]]:
    """Return the heading, then the cells of every row."""
    columns = {"run": [", ".join(str(run.workdir) for run in row.runs) for row in rows]}
    columns["changed"] = [row.label for row in rows]
    if any(len(row.runs) > 1 for row in rows):
        columns["seeds"] = [str(len({run.config.seed for run in row.runs})) for row in rows]
    columns["state"] = [", ".join(dict.fromkeys(run.state for run in row.runs)) for row in rows]
    columns["validation NLL"] = [spread(last_likelihoods(row), 3) for row in rows]
    splits = dict.fromkeys(split for row in rows for run in row.runs for split in run.scores)
    for split, name in itertools.product(splits, reported(rows)):
        metric, digits = REPORTED[name]
        means = [spread(scores_of(row, split, name), digits) for row in rows]
        if {*means} != {"-"}:
            columns[f"{split} {metric}"] = means
    counts = [row.runs[0].parameters for row in rows]
    columns["parameters"] = ["-" if count is None else f"{count:,}" for count in counts]
    flops = [mean_spent(row, "flops") for row in rows]
    columns["FLOPs"] = [f"{spent:.1e}" if spent else "-" for spent in flops]
    seconds = [mean_spent(row, "seconds") for row in rows]
    columns["time"] = ["-" if spent is None else as_duration(spent) for spent in seconds]
    if any(row.paper for row in rows if row.changes):
        papers = zip(*(of_paper(row.paper) for row in rows), strict=True)
        for name, cells in zip(("row", "BLEU", "PPL", "parameters"), papers, strict=True):
            columns[f"paper's {name}"] = [*cells]
    return [[*columns], *map(list, zip(*columns.values(), strict=True))]


def reported(rows: list[Row]) -> list[str]:
    """Return the scores to print; lowercased BLEU only for runs on lowercased text."""
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


def markdown(rows: list[Row]) -> str:
    """Format the table in Markdown, followed by a line about the base of its rows."""
    return "\n\n".join(filter(None, [console.markdown(table(rows)), base_line(rows)]))


def page(rows: list[Row]) -> str:
    """Return the table and the learning curves as one self-contained HTML page."""
    heading, *lines = table(rows)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>jformer: {len(lines)} rows</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Runs side by side</h1>
<div class="wide"><table>
{html_row(heading, "th")}
{"".join(html_row(line, "td") for line in lines)}</table></div>
<p>{html.escape(base_line(rows))}</p>
{curves(rows)}
</body>
</html>
"""


def html_row(cells: list[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>\n"


def curves(rows: list[Row]) -> str:
    """Return the HTML of one plot for each kind of curve that any run has."""
    plotly = import_extra("plotly.graph_objects", "--output", "plotly")
    palette = import_extra("plotly.colors", "--output", "plotly").qualitative.Plotly
    parts: list[str] = []
    for split, name, title, unit in CURVES:
        figure = plotly.Figure(layout={"title": title, "template": "plotly_white"})
        figure.update_layout(xaxis_title="step (parameter updates)", yaxis_title=unit)
        for number, row in enumerate(rows):
            label = textwrap.shorten(row.label, LEGEND_WIDTH, placeholder=" ...")
            for symbol, run in enumerate(row.runs):
                if curve := run.curve(split, name):
                    figure.add_scatter(
                        x=[step for step, _ in curve],
                        y=[value for _, value in curve],
                        name=f"{label}, seed {run.config.seed}" if len(row.runs) > 1 else label,
                        mode="lines+markers",
                        marker_symbol=symbol,
                        line_color=palette[number % len(palette)],
                        line_dash="solid" if number < len(palette) else "dash",
                    )
        if figure.data:
            # The first plot includes plotly itself, for all of them.
            parts.append(figure.to_html(full_html=False, include_plotlyjs=not parts))
    return "\n".join(parts)
