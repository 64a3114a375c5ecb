"""Run a row of LOG.md again and compare the scores.

    python -m experiments.log ID [--workdir=runs/log-ID] [--config.data.directory=DIR ...]

Trains with the row's command and the current code, shows the old and the new scores side by side,
and prints the new run as a row. A key on the command line overrides that of the row, which is how
DIR is replaced. The same command again resumes a run that was stopped.
"""

import dataclasses
import datetime
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from jformer.command_line import own_flags, program_status
from jformer.console import aligned
from jformer.errors import UserError
from jformer.evaluation.scores import METRICS
from jformer.views.report import RunSummary, duration, read_run

LOG = Path(__file__).with_name("LOG.md")
LOGGED = ("bleu", "bleu_lowercase", "chrf", "perplexity")  # scores in a cell of LOG.md


@dataclasses.dataclass(frozen=True)
class LogRow:
    id: str
    command: list[str]  # flags of jformer.main
    scores: dict[str, float]  # by split and name, as `test BLEU`


def read_log(text: str) -> dict[str, LogRow]:
    """Return the rows whose command is complete; incomplete ones have words after it."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if not re.fullmatch(r"\| \d+", cells[0]) or len(cells) != 9:
            continue
        command = re.fullmatch(r"`(--config=[^`]*)`", cells[2])
        if command:
            number = cells[0].removeprefix("| ")
            rows[number] = LogRow(number, shlex.split(command[1]), read_scores(cells[7]))
    return rows


def read_scores(cell: str) -> dict[str, float]:
    """Parse `test BLEU 96.98, chrF 98.58; validation NLL 0.111`; other text is ignored."""
    found = {}
    for part in cell.split(";"):
        split, _, numbers = part.strip().partition(" ")
        for name, number in re.findall(r"(\w+) \**(\d+\.\d+)", numbers):
            found[f"{split} {name}"] = float(number)
    return found


def scores_of(run: RunSummary) -> str:
    """Format the scores of a run as in LOG.md."""
    parts = []
    for split, scores in run.scores.items():
        numbers = [
            f"{METRICS[name].short} {scores[name]:.{METRICS[name].digits}f}"
            for name in LOGGED
            if name in scores
        ]
        parts.append(f"{split} {', '.join(numbers)}")
    curve = run.curve("validation", "nll")
    return "; ".join([*parts, *(f"validation NLL {nll:.3f}" for _, nll in curve[-1:])])


def as_row(run: RunSummary, command: list[str]) -> str:
    """Format a run as a line of LOG.md, without its id and remark."""
    seconds = (run.spent("seconds") or 0.0) + sum(s["seconds"] for s in run.scores.values())
    cells = [
        "", f"{datetime.date.today()}", f"`{shlex.join(command)}`", commit(), f"{run.config.seed}",
        hardware(), f"{duration(seconds)}, scoring included", scores_of(run), "",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


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


def run_again(arguments: list[str]) -> int:
    number, *rest = arguments
    rows = read_log(LOG.read_text(encoding="utf-8"))
    if number not in rows:
        raise UserError(
            f"{number}: is no row of {LOG.name} with a whole command; {', '.join(rows)}"
        )
    flag, flags = own_flags(rest, {"workdir": f"runs/log-{number}"})
    row = rows[number]
    command = with_flags(row.command, flags)
    ended = subprocess.run(
        [sys.executable, "-m", "jformer.main", *command, f"--workdir={flag.workdir}"],
        stdout=subprocess.DEVNULL,
    )
    if ended.returncode:
        return ended.returncode  # the process has printed why
    run = read_run(Path(flag.workdir))
    now = read_scores(scores_of(run))
    lines = [["", "then", "now", "difference"]]
    for name in dict.fromkeys((*row.scores, *now)):
        both = row.scores.get(name), now.get(name)
        apart = "-" if None in both else f"{both[1] - both[0]:+.3f}"  # type: ignore[operator]
        lines.append([name, *("-" if n is None else f"{n}" for n in both), apart])
    print(aligned(lines))
    print(as_row(run, command))
    return 0


if __name__ == "__main__":
    sys.exit(program_status("experiments.log", __doc__, run_again))
