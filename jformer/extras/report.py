"""Compare runs side by side, also while they are running.

The table has one row per config: its changes, scores, parameters, FLOPs and training time.
"""

import collections
import dataclasses
import hashlib
import html
import importlib.resources
import logging
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jformer import cli, console
from jformer.components import without_folders
from jformer.config import Config
from jformer.errors import UserError, import_extra
from jformer.files import check_output
from jformer.rundir import CONFIG, SERVED, config_of, has_run, read_metrics, read_results
from jformer.schema import walk

log = logging.getLogger(__name__)

REPORTED: dict[str, tuple[str, int, Callable]] = {  # short name, decimal places, the best value
    "bleu": ("BLEU", 2, max),
    "bleu_lowercase": ("lc", 2, max),
    "chrf": ("chrF", 2, max),
    "f1": ("F1", 2, max),
    "perplexity": ("PPL", 3, min),
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


def add_flags(parser: cli.Parser) -> None:
    text = "a run directory, or a folder of runs"
    parser.add_argument("folders", nargs="+", metavar="DIR", help=text)
    parser.add_path("--output", "FILE", "page to write with the table and the learning curves")


def main(args: Any) -> int:
    check_output(args.output, ())
    comparison = compare(find_runs(args.folders))
    if not comparison.rows:
        raise UserError("no run can be read")
    if args.output:
        Path(args.output).write_text(page(comparison), encoding="utf-8")
    print(markdown(comparison))
    return 0


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """The config, the metrics and the scores of a run directory."""

    workdir: Path
    config: Config
    lines: list[dict[str, Any]]  # of metrics.jsonl
    scores: dict[tuple[str, str], dict[str, Any]]  # by split and checkpoint

    @property
    def progress(self) -> str:
        return f"{last_step(self.lines):,} of {self.config.train.steps:,}"

    def curve(self, split: str, name: str) -> list[tuple[int, float]]:
        return [
            (line["step"], line[name])
            for line in self.lines
            if line["split"] == split and name in line
        ]


@dataclasses.dataclass(frozen=True)
class Row:
    """Runs of one config, code and text; they may differ in IGNORED keys and paths."""

    label: str  # the values that differ from the base
    runs: list[RunSummary]

    def last(self, split: str, name: str) -> list[float]:
        """Return the last number of each run's curve."""
        curves = [run.curve(split, name) for run in self.runs]
        return [curve[-1][1] for curve in curves if curve]

    def scores(self, key: tuple[str, str], name: str) -> list[float]:
        found = [run.scores.get(key, {}) for run in self.runs]
        return [scores[name] for scores in found if name in scores]


@dataclasses.dataclass(frozen=True)
class Comparison:
    rows: list[Row]
    table: list[list[str]]  # the heading, then the cells of every row
    base: str  # the most common values of the keys that rows change


def find_runs(folders: Sequence[str | Path]) -> list[Path]:
    """Return the run directories in `folders` at any depth; within a folder, sorted by name."""
    found: list[Path] = []
    for folder in map(Path, folders):
        runs = sorted(path.parent for path in folder.rglob(CONFIG))
        if not runs:
            raise UserError(f"{folder}: not found, or contains no started run")
        found += runs
    return list(dict.fromkeys(found))


def read_run(workdir: Path) -> RunSummary:
    config, lines, scores = config_of(workdir), read_metrics(workdir), {}
    for split, found in read_results(workdir).items():
        if split == SERVED:
            continue
        checkpoint, step = found.get("checkpoint", ""), found.get("step")
        if step not in (None, last_step(lines)):
            checkpoint += f", step {step:,}"
        scores[split, checkpoint] = found
    return RunSummary(workdir, config, lines, scores)


def last_step(lines: list[dict[str, Any]]) -> int:
    return max((line["step"] for line in lines), default=0)


def compare(workdirs: Sequence[Path]) -> Comparison:
    """Compare all started runs, one row per config; damaged runs are excluded with a warning."""
    runs = []
    for workdir in filter(has_run, workdirs):
        try:
            runs.append(read_run(workdir))
        except (UserError, OSError) as error:
            log.warning("%s is excluded: %s", workdir, error)
    if not runs:
        return Comparison([], [], "")
    facts = [comparable(run) for run in runs]
    keys = dict.fromkeys(key for each in facts for key in each)
    # The most frequent value of each key; the first if several tie.
    common = {key: statistics.mode(each[key] for each in facts if key in each) for key in keys}
    together: dict[tuple[tuple[str, Any], ...], list[RunSummary]] = {}
    for run, each in zip(runs, facts, strict=True):
        changes = tuple((key, value) for key, value in each.items() if value != common[key])
        together.setdefault(changes, []).append(run)
    names = short_names(dict.fromkeys(key for changes in together for key, _ in changes))

    def label(values: Iterable[tuple[str, Any]]) -> str:
        return ", ".join(f"{names[key]}={value}" for key, value in values)

    rows = [Row(label(changes) or "base", alike) for changes, alike in together.items()]
    rows.sort(key=lambda row: row.label != "base")
    base = label((key, common[key]) for key in names)
    return Comparison(rows, make_table(rows), f"base: {base}" if base else "")


def comparable(run: RunSummary) -> dict[str, Any]:
    """Return what the scores of a run depend on: keys, and hashes of its code and text.

    The hashes are known from the first checkpoint on. Files count by their content, except
    `train.init_from`.
    """
    from jformer.training.checkpoints import Checkpoints

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
    ends = {key: key.rpartition(".")[2] for key in keys}
    counts = collections.Counter(ends.values())
    return {key: end if counts[end] == 1 else key for key, end in ends.items()}


def count_parameters(run: RunSummary) -> str:
    """Count parameters; "-" without a vocabulary, or if that would run a component's file."""
    import jax

    from jformer.data.vocabulary import Vocabularies
    from jformer.model.transformer import Transformer
    from jformer.training.restore import parameter_shapes

    try:
        words = Vocabularies.load(run.workdir, run.config.data.joint_vocabulary)
        model = Transformer(run.config.model, words.target.size, words.source.size)
        return f"{sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(model))):,}"
    except UserError:
        return "-"


def make_table(rows: list[Row]) -> list[list[str]]:
    """Return the heading, then the cells of every row; the best scores are between `**`."""
    runs = [run for row in rows for run in row.runs]
    columns = {"run": [", ".join(names_of(row.runs, runs)) for row in rows]}
    columns["changed"] = [row.label for row in rows]
    if len(runs) > len(rows):
        columns["seeds"] = [str(len({run.config.seed for run in row.runs})) for row in rows]
    columns["steps"] = [", ".join(dict.fromkeys(run.progress for run in row.runs)) for row in rows]
    columns["validation NLL"] = score_cells([row.last("validation", "nll") for row in rows], 3, min)
    scored = dict.fromkeys(key for run in runs for key in run.scores)
    several = len({checkpoint for _, checkpoint in scored}) > 1
    lowercase = any(run.config.data.is_lowercase for run in runs)
    for split, checkpoint in scored:
        for name, (metric, digits, best) in REPORTED.items():
            values = [row.scores((split, checkpoint), name) for row in rows]
            if any(values) and (lowercase or name != "bleu_lowercase"):
                heading = f"{split} {metric} ({checkpoint})" if several else f"{split} {metric}"
                columns[heading] = score_cells(values, digits, best)
    columns["parameters"] = [count_parameters(row.runs[0]) for row in rows]
    columns["FLOPs"] = [mean_cell(row.last("train", "flops"), "{:.1e}".format) for row in rows]
    columns["time"] = [mean_cell(row.last("train", "seconds"), console.as_duration) for row in rows]
    return [[*columns], *map(list, zip(*columns.values(), strict=True))]


def names_of(runs: list[RunSummary], all_runs: list[RunSummary]) -> list[str]:
    """Return the folders of runs, relative to the folder that contains all runs."""
    folder = os.path.commonpath([run.workdir.absolute().parent for run in all_runs])
    return [os.path.relpath(run.workdir, folder) for run in runs]


def score_cells(rows: list[list[float]], digits: int, best: Callable) -> list[str]:
    """Format each row's mean, with the standard deviation of several values; mark the best mean."""
    means = [round(statistics.mean(values), digits) if values else None for values in rows]
    known = [mean for mean in means if mean is not None]
    cells = []
    for values, mean in zip(rows, means, strict=True):
        cell = "-" if mean is None else f"{mean:.{digits}f}"
        if len(values) > 1:
            cell += f" ± {statistics.stdev(values):.{digits}f}"
        is_best = len(known) > 1 and mean == best(known)
        cells.append(f"**{cell}**" if is_best else cell)
    return cells


def mean_cell(values: list[float], form: Callable[[float], str]) -> str:
    return form(statistics.mean(values)) if values else "-"


def markdown(comparison: Comparison) -> str:
    """Format the table in Markdown, followed by a line about the base of its rows."""
    return f"{console.markdown(comparison.table)}\n\n{comparison.base}".rstrip()


def page(comparison: Comparison) -> str:
    """Return the table and the learning curves as one self-contained HTML page."""
    template = (importlib.resources.files("jformer.extras") / "report.html").read_text("utf-8")
    text = template.replace("{table}", html_table(comparison.table))
    text = text.replace("{base}", html.escape(comparison.base))
    return text.replace("{curves}", curves(comparison.rows))


def html_table(lines: list[list[str]]) -> str:
    heading, *rows = [[*map(html.escape, cells)] for cells in lines]
    breakable = [name.replace("_", "_<wbr>") for name in heading]
    text = f"<tr><th>{'</th><th>'.join(breakable)}</th></tr>\n"
    for cells in rows:
        text += "<tr>"
        for name, cell in zip(heading, cells, strict=True):
            shown = f"<b>{cell.strip('*')}</b>" if cell.startswith("**") else cell
            text += f'<td data-column="{name}">{shown}</td>'
        text += "</tr>\n"
    return text


def curves(rows: list[Row]) -> str:
    """Return the HTML of one plot for each kind of curve that any run has."""
    plotly = import_extra("plotly.graph_objects", "--output", "plotly")
    runs = [run for row in rows for run in row.runs]
    parts: list[str] = []
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
        colors = figure.layout.template.layout.colorway
        for number, row in enumerate(rows):
            for run, label in zip(row.runs, names_of(row.runs, runs), strict=True):
                if points := run.curve(split, name):
                    figure.add_scatter(
                        x=[step for step, _ in points],
                        y=[value for _, value in points],
                        name=label,
                        line_color=colors[number % len(colors)],
                    )
        if figure.data:
            # The first plot includes plotly itself, for all of them.
            options = {"include_plotlyjs": not parts, "config": {"responsive": True}}
            parts.append(figure.to_html(full_html=False, **options))
    return "\n".join(parts)
