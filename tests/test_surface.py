"""The commands, their flags and the config keys, compared with the committed list surface.txt.

A change of the surface is deliberate: `python -m tests.test_surface` writes the list again.
"""

from pathlib import Path

from jformer.cli import parser_of
from jformer.config import Config
from jformer.main import COMMANDS
from jformer.schema import flatten

FILE = Path(__file__).with_name("surface.txt")


def surface() -> str:
    lines = []
    for command in COMMANDS:
        flags = sorted(parser_of(command, COMMANDS)._option_string_actions)
        own = [flag for flag in flags if flag.startswith("--") and "--config." not in flag]
        keys = sum(flag.startswith("--config.") for flag in flags)
        lines.append(" ".join([command, *own, f"({keys} config keys)"]))
    return "\n".join([*lines, "", *flatten(Config())]) + "\n"


def test_the_surface_is_the_committed_one():
    assert surface().splitlines() == FILE.read_text().splitlines()


if __name__ == "__main__":
    FILE.write_text(surface())
