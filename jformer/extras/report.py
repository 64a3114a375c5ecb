"""Compare runs side by side, also while they are running.

The table has one row per config: its changes, scores, parameters, FLOPs and training time.
"""

import collections
import dataclasses
import functools
import hashlib
import html
import importlib.resources
import logging
import os
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jformer import cli, console
from jformer.components import without_folders
from jformer.config import Config
from jformer.errors import UserError, import_extra
from jformer.rundir import CONFIG, config_of, has_run, read_metrics, read_scores
from jformer.schema import walk

log = logging.getLogger(__name__)

# Of metrics.jsonl and results.json: heading, format and, of scores, the best value.
METRICS: dict[str, tuple[str, Callable[[float], str], Callable | None]] = {
    "flops": ("FLOPs", "{:.1e}".format, None),
    "seconds": ("time", console.as_duration, None),
    "nll": ("NLL", "{:.3f}".format, min),
    "bleu": ("BLEU", "{:.2f}".format, max),
    "bleu_lowercase": ("lc", "{:.2f}".format, max),
    "chrf": ("chrF", "{:.2f}".format, max),
    "f1": ("F1", "{:.2f}".format, max),
    "perplexity": ("PPL", "{:.3f}".format, min),
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
# Split and name in metrics.jsonl, title of the plot.
CURVES = (
    ("validation", "nll", "Validation NLL, nats per token"),
    ("validation", "bleu", "Validation BLEU of the first pairs"),
    ("validation", "f1", "Validation F1 of the first sentences"),
    ("train", "nll", "Training NLL, nats per token"),
)


def add_flags(parser: cli.Parser) -> None:
    text = "a run directory, or a folder of runs"
    parser.add_argument("folders", nargs="+", metavar="DIR", help=text)
    parser.add_path("--output", "FILE", "page to write with the table and the learning curves")


def main(args: Any) -> int:
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
    results: dict[str, Any]  # of results.json

    @property
    def last_step(self) -> int:
        return max((line["step"] for line in self.lines), default=0)

    def curve(self, split: str, name: str) -> list[tuple[int, float]]:
        return [
            (line["step"], line[name])
            for line in self.lines
            if line["split"] == split and name in line
        ]

    @functools.cached_property
    def numbers(self) -> dict[tuple[str, str], float]:
        """The newest metrics and the scores, by heading and by name in `METRICS`."""
        found = {}
        for split, name in (("train", "flops"), ("train", "seconds"), ("validation", "nll")):
            if curve := self.curve(split, name):
                found[f"{split} {METRICS[name][0]}", name] = curve[-1][1]
        decode = dataclasses.asdict(self.config.decode)
        for split, scores in self.results.items():
            made_by = [scores["checkpoint"]]
            if scores["step"] != self.last_step:
                made_by.append(f"step {scores['step']:,}")
            for key, value in scores.get("decode", {}).items():
                if key in decode and decode[key] != value:
                    made_by.append(f"{key}={value}")
            for name, (title, _, best) in METRICS.items():
                is_needed = self.config.data.is_lowercase or name != "bleu_lowercase"
                if best and name in scores and is_needed:
                    found[f"{split} {title} ({', '.join(made_by)})", name] = scores[name]
        return found


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Runs in the same row may differ in IGNORED keys and paths."""

    rows: dict[str, list[RunSummary]]  # by the values that differ from the base
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
    lines, scores = read_metrics(workdir), read_scores(workdir)
    return RunSummary(workdir, config_of(workdir), lines, scores)


def compare(workdirs: Sequence[Path]) -> Comparison:
    """Compare all started runs, one row per config; damaged runs are excluded with a warning."""
    runs = []
    for workdir in filter(has_run, workdirs):
        try:
            runs.append(read_run(workdir))
        except (UserError, OSError) as error:
            log.warning("%s is excluded: %s", workdir, error)
    if not runs:
        return Comparison({}, [], "")
    facts = [comparable(run) for run in runs]
    keys = dict.fromkeys(key for each in facts for key in each)
    # The most frequent value of each key; the first if several tie.
    common = {key: statistics.mode(each[key] for each in facts if key in each) for key in keys}
    changes = [{k: v for k, v in each.items() if v != common[k]} for each in facts]
    names = short_names(dict.fromkeys(key for each in changes for key in each))
    rows: dict[str, list[RunSummary]] = {}
    for run, each in zip(runs, changes, strict=True):
        label = ", ".join(f"{names[key]}={value}" for key, value in each.items()) or "base"
        rows.setdefault(label, []).append(run)
    rows = dict(sorted(rows.items(), key=lambda row: row[0] != "base"))
    base = ", ".join(f"{names[key]}={common[key]}" for key in names)
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
    from jformer.run import parameter_shapes

    try:
        words = Vocabularies.load(run.workdir, run.config.data.joint_vocabulary)
        model = Transformer(run.config.model, words.target.size, words.source.size)
        return f"{sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(model))):,}"
    except UserError:
        return "-"


def make_table(rows: dict[str, list[RunSummary]]) -> list[list[str]]:
    """Return the heading, then the cells of every row; the best scores are between `**`."""
    groups = [*rows.values()]
    all_runs = [run for runs in groups for run in runs]
    columns = {
        "run": [", ".join(names_of(runs, all_runs)) for runs in groups],
        "changed": [*rows],
        "seeds": [str(len({run.config.seed for run in runs})) for runs in groups],
        "steps": [steps_of(runs) for runs in groups],
        "parameters": [count_parameters(runs[0]) for runs in groups],
    }
    for heading, name in dict.fromkeys(key for run in all_runs for key in run.numbers):
        values = [numbers_of(runs, (heading, name)) for runs in groups]
        columns[heading] = format_numbers(values, *METRICS[name][1:])
    return [[*columns], *map(list, zip(*columns.values(), strict=True))]


def steps_of(runs: list[RunSummary]) -> str:
    """Return the step of the run that is least advanced."""
    return f"{min(run.last_step for run in runs):,} of {runs[0].config.train.steps:,}"


def numbers_of(runs: list[RunSummary], key: tuple[str, str]) -> list[float]:
    return [run.numbers[key] for run in runs if key in run.numbers]


def names_of(runs: list[RunSummary], all_runs: list[RunSummary]) -> list[str]:
    """Return the folders of runs, relative to the folder that contains all runs."""
    folder = os.path.commonpath([run.workdir.absolute().parent for run in all_runs])
    return [os.path.relpath(run.workdir, folder) for run in runs]


def format_numbers(rows: list[list[float]], form: Callable, best: Callable | None) -> list[str]:
    """Format each row's mean; of scores also the standard deviation, and mark the best mean."""
    means = [statistics.mean(values) for values in rows if values]
    cells = []
    for values in rows:
        cell = form(statistics.mean(values)) if values else "-"
        is_best = best and len(means) > 1 and cell == form(best(means))
        if best and len(values) > 1:
            cell += f" ± {form(statistics.stdev(values))}"
        cells.append(f"**{cell}**" if is_best else cell)
    return cells


def markdown(comparison: Comparison) -> str:
    """Format the table in Markdown, followed by a line about the base of its rows."""
    heading, *rows = comparison.table
    ruler = [":--", *["--:"] * (len(heading) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (heading, ruler, *rows)]
    return "\n".join([*lines, "", comparison.base]).rstrip()


def page(comparison: Comparison) -> str:
    """Return the table and the learning curves as one self-contained HTML page."""
    template = (importlib.resources.files("jformer.extras") / "report.html").read_text("utf-8")
    text = template.replace("{table}", html_table(comparison.table))
    text = text.replace("{base}", html.escape(comparison.base))
    return text.replace("{curves}", curves(comparison.rows))


def html_table(lines: list[list[str]]) -> str:
    text = ""
    for cells in lines:
        text += f"<tr><td>{'</td><td>'.join(map(html.escape, cells))}</td></tr>\n"
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)


def curves(rows: dict[str, list[RunSummary]]) -> str:
    """Return the HTML of one plot for each kind of curve that any run has."""
    plotly = import_extra("plotly.graph_objects", "--output", "plotly")
    runs = [run for alike in rows.values() for run in alike]
    parts: list[str] = []
    for split, name, title in CURVES:
        figure = plotly.Figure(layout={"title": title, "template": "plotly_white"})
        # The legend is below the plot, because names are long.
        legend = {"orientation": "h", "y": -0.25}
        figure.update_layout(xaxis_title="step (parameter updates)", legend=legend, showlegend=True)
        for run, label in zip(runs, names_of(runs, runs), strict=True):
            if points := run.curve(split, name):
                steps, values = zip(*points, strict=True)
                figure.add_scatter(x=steps, y=values, name=label)
        if figure.data:
            # The first plot includes plotly itself, for all of them.
            parts.append(figure.to_html(full_html=False, include_plotlyjs=not parts))
    return "\n".join(parts)
