"""Compare runs side by side, also while they are running.

The table has one row per run: its config differences, scores, parameters, FLOPs and time.
"""

from pathlib import Path
from typing import Any

from jformer import cli
from jformer.errors import UserError
from jformer.files import check_output


def add_flags(parser: cli.Parser) -> None:
    text = "a run directory, or a folder of runs"
    parser.add_argument("folders", nargs="+", metavar="DIR", help=text)
    parser.add_path("--output", "FILE", "page to write with the table and the learning curves")


def main(args: Any) -> int:
    check_output(args.output)

    from jformer.extras.report import find_runs, markdown, page, read_rows

    rows = read_rows(find_runs(args.folders))
    if not rows:
        raise UserError("no run can be read")
    if args.output:
        Path(args.output).write_text(page(rows), encoding="utf-8")
    print(markdown(rows))
    return 0
