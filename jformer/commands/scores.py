"""The end of a command that has scored a run: a table for a reader, JSON for a program."""

import json
import sys
from pathlib import Path
from typing import Any

from jformer.command_line import one_of
from jformer.rundir import RESULTS


def check_format(format: str) -> None:
    if format:
        one_of("format", format, "text", "json")


def print_scores(
    format: str, scores: dict[str, Any], workdir: Path, table: str, always_table: bool = False
) -> None:
    """Print the table and the path of results.json, or the scores as one line of JSON.

    Without a format, a terminal gets the table and everything else gets JSON, with
    `always_table` after the table.
    """
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    if format == "text" or (not format and on_terminal):
        path = workdir / RESULTS
        print(table, *(["", f"scores in {path}"] if path.exists() else []), sep="\n")
        return
    if always_table and not format:
        print(table)
    print(json.dumps(scores))
