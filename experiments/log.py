"""The log of results: run a row of rows.jsonl again and compare, or render the rows in LOG.md.

    python -m experiments.log ID [--workdir=runs/log-ID] [--config.data.directory=DIR ...]
    python -m experiments.log render

The first trains with the row's command and the current code, shows the old and the new scores side
by side, and prints the new run as a row. A key on the command line overrides that of the row, which
is how DIR is replaced. The same command again resumes a run that was stopped.
"""

import datetime
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jformer.cli import Parser, exit_status
from jformer.console import aligned, markdown
from jformer.errors import UserError
from jformer.extras.views.report import REPORTED, RunSummary, duration, read_run

ROWS, LOG = (Path(__file__).with_name(name) for name in ("rows.jsonl", "LOG.md"))
COLUMNS = ("id", "date", "command", "commit", "seed", "hardware", "time", "scores", "remark")

# A row has the keys of COLUMNS that apply: `command` has the flags of jformer.main, and `changes`
# tells what they lack; `scores` are strings by split and name, and `outcome` stands for them.
Row = dict[str, Any]


def read_rows(path: Path) -> dict[str, Row]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {str(row["id"]): row for row in rows}


def render(rows: dict[str, Row]) -> str:
    """Return the table of all rows in Markdown."""
    lines: list[Sequence[str]] = [COLUMNS]
    for row in rows.values():
        command = [f"`{row['command']}`"] if row.get("command") else []
        cells = {
            **row,
            "command": ", ".join([*command, *filter(None, [row.get("changes")])]),
            "scores": row.get("outcome") or shown(row["scores"]),
        }
        lines.append([str(cells.get(name, "")) for name in COLUMNS])
    return markdown(lines, others=":--")


def shown(scores: dict[str, str]) -> str:
    """Format scores as `test BLEU 96.98, chrF 98.58; validation NLL 0.111`."""
    by_split: dict[str, list[str]] = {}
    for key, number in scores.items():
        split, name = key.split()
        by_split.setdefault(split, []).append(f"{name} {number}")
    return "; ".join(f"{split} {', '.join(numbers)}" for split, numbers in by_split.items())


def render_log() -> int:
    """Replace the first table of LOG.md with the rows."""
    text = LOG.read_text(encoding="utf-8")
    table = next(part for part in text.split("\n\n") if part.startswith("|"))
    LOG.write_text(text.replace(table, render(read_rows(ROWS)), 1), encoding="utf-8")
    return 0


def scores_of(run: RunSummary) -> dict[str, str]:
    """Return the scores of a run by split and name, as `test BLEU`."""
    scores = {
        f"{split} {metric}": f"{values[name]:.{digits}f}"
        for split, values in run.scores.items()
        for name, (metric, digits) in REPORTED.items()
        if name in values
    }
    if curve := run.curve("validation", "nll"):
        scores["validation NLL"] = f"{curve[-1][1]:.3f}"
    return scores


def as_row(run: RunSummary, command: list[str]) -> Row:
    """Return a run as a row, without its id and remark."""
    seconds = (run.spent("seconds") or 0.0) + sum(s["seconds"] for s in run.scores.values())
    return {
        "date": f"{datetime.date.today()}",
        "command": shlex.join(command),
        "commit": commit(),
        "seed": run.config.seed,
        "hardware": hardware(),
        "time": f"{duration(seconds)}, scoring included",
        "scores": scores_of(run),
    }


def commit() -> str:
    def git(*arguments: str) -> str:
        ran = subprocess.run(
            ["git", *arguments], cwd=LOG.parent, capture_output=True, text=True, check=True
        )
        return ran.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" with edits" if git("status", "-s") else "")


def hardware() -> str:
    import jax  # only now, when no other process needs the devices

    first = jax.local_devices()[0]
    if first.platform == "cpu":
        return f"{os.cpu_count()} cores"
    return f"{jax.local_device_count()} x {first.device_kind}"


def with_flags(command: list[str], flags: list[str]) -> list[str]:
    """Return the command with `flags` in place of its flags of the same names."""
    names = {flag.partition("=")[0] for flag in flags}
    kept = [flag for flag in command if flag.partition("=")[0] not in names]
    for flag in kept:
        if flag.endswith("=DIR"):
            raise UserError(f"the row needs a folder of yours: {flag.removesuffix('DIR')}FOLDER")
    return [*kept, *flags]


def run(arguments: list[str]) -> int:
    parser = Parser(prog="python -m experiments.log", description=__doc__)
    parser.add_argument("id", metavar="ID", help="number of a row, or render")
    parser.add_path("--workdir", "DIR", "default: runs/log-ID")
    args, flags = parser.parse_known_args(arguments)
    number = args.id
    if number == "render":
        return render_log()
    rows = {i: row for i, row in read_rows(ROWS).items() if is_whole(row)}
    if number not in rows:
        known = ", ".join(rows)
        raise UserError(f"{number}: is no row of {ROWS.name} with a whole command; {known}")
    workdir = args.workdir or f"runs/log-{number}"
    row = rows[number]
    command = with_flags(shlex.split(row["command"]), flags)
    ended = subprocess.run(
        [sys.executable, "-m", "jformer.main", *command, f"--workdir={workdir}"],
        stdout=subprocess.DEVNULL,
    )
    if ended.returncode:
        return ended.returncode  # the process has printed why
    again = as_row(read_run(Path(workdir)), command)
    then, now = row["scores"], again["scores"]
    lines = [["", "then", "now", "difference"]]
    for name in dict.fromkeys((*then, *now)):
        both = name in then and name in now
        apart = f"{float(now[name]) - float(then[name]):+.3f}" if both else "-"
        lines.append([name, then.get(name, "-"), now.get(name, "-"), apart])
    print(aligned(lines))
    print(json.dumps(again, ensure_ascii=False))
    return 0


def is_whole(row: Row) -> bool:
    """Return whether a row's command holds all that its run was given."""
    return "command" in row and "changes" not in row


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(exit_status("experiments.log", lambda: run(arguments), "--debug" in arguments))
