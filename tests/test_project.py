"""The source: every key has a use, functions are short, only one module reads flags."""

import re
from pathlib import Path

PACKAGE = sorted(Path("jformer").rglob("*.py"))
EXPERIMENTS = sorted(Path("experiments").rglob("*.py"))
OTHERS = [path for folder in ("configs", "tests") for path in Path(folder).rglob("*.py")]


def test_only_the_command_line_reads_flags():
    for path in PACKAGE:
        if path.name != "cli.py":
            imports = r"^\s*(from|import) (absl|argparse)"
            assert not re.search(imports, path.read_text(), re.MULTILINE), path


def test_nothing_is_left_for_later():
    marks = ["TO" + "DO", "FIX" + "ME", "XX" + "X"]  # in parts, because this file is searched too
    for path in (*PACKAGE, *EXPERIMENTS, *OTHERS):
        assert not re.search(rf"\b({'|'.join(marks)})\b", path.read_text()), path
