"""The house itself: its layers, its style, what must not be in it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FILES = [
    *Path("jformer").rglob("*.py"),
    *Path("configs").glob("*.py"),
    *Path("experiments").rglob("*.py"),
    *Path("tests").rglob("*.py"),
]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True)


def test_imports_point_only_the_way_of_the_layer_contract():
    result = run(Path(sys.executable).with_name("lint-imports"), "--no-cache")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_ruff_has_nothing_to_say(command):
    result = run(sys.executable, "-m", "ruff", *command, "--no-cache", ".")
    assert result.returncode == 0, result.stdout


def test_types_hold():
    result = run(sys.executable, "-m", "mypy")
    assert result.returncode == 0, result.stdout


def test_no_module_but_main_and_its_command_line_reads_a_flag():
    for path in Path("jformer").rglob("*.py"):
        if path.name not in ("main.py", "command_line.py"):
            assert not re.search(r"^\s*(from|import) absl", path.read_text(), re.MULTILINE), path


def test_files_and_functions_stay_short():
    import ast

    for path in (*Path("jformer").rglob("*.py"), *Path("experiments").rglob("*.py")):
        text = path.read_text()
        assert text.count("\n") <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


def test_every_room_says_what_lives_there():
    import ast

    for path in Path("jformer").rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_nothing_is_left_for_later():
    marks = ["TO" + "DO", "FIX" + "ME", "XX" + "X"]  # in two parts: this file is read as well
    for path in FILES:
        assert not re.search(rf"\b({'|'.join(marks)})\b", path.read_text()), path
