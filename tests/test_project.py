"""The source: every key has a use, functions are short, only one module reads flags."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jformer.config import Config
from jformer.schema import flatten

PACKAGE = sorted(Path("jformer").rglob("*.py"))
EXPERIMENTS = sorted(Path("experiments").rglob("*.py"))
OTHERS = [path for folder in ("configs", "tests") for path in Path(folder).rglob("*.py")]


@pytest.fixture
def key_reads(tmp_path):
    """The lines that the plugin `key_reads` writes while mypy reads the package."""
    folder = tmp_path
    settings = Path("pyproject.toml").read_text()
    plugin = Path("tests/key_reads.py").absolute()
    (folder / "pyproject.toml").write_text(
        settings.replace("[tool.mypy]\n", f'[tool.mypy]\nplugins = ["{plugin}"]\n')
    )
    (folder / "reads").touch()
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", folder / "pyproject.toml"),
            *("--cache-dir", folder / "cache"),  # mypy shows the plugin nothing that is cached
        ],
        capture_output=True, text=True, env={**os.environ, "KEY_READS": str(folder / "reads")},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    return (folder / "reads").read_text().splitlines()


# Code that only checks a key, shows it or estimates with it does not make it change anything.
NO_USE = ["schema.py", "training/cost.py", "training/flops.py", "training/plan.py", "views/"]
CHECKS = ("check", "_parameters_of_layers")


def methods_of_config():
    """`(section, method, its lines)` of the sections' own methods and properties."""
    for path in Path("jformer/config").glob("*.py"):
        for section in ast.parse(path.read_text()).body:
            for node in section.body if isinstance(section, ast.ClassDef) else ():
                if isinstance(node, ast.FunctionDef) and node.name not in CHECKS:
                    lines = range(node.lineno, node.end_lineno + 1)
                    yield section.name, node.name, {(f"config/{path.name}", n) for n in lines}


@pytest.mark.process  # mypy, ten seconds without its cache
def test_every_key_is_read_by_the_package(key_reads):
    """Checking or showing a key is not enough. A section's method counts if something calls it."""
    used, own = set(), []
    for line in key_reads:
        path, number, section, name = line.split("\t")
        path = Path(path).absolute().relative_to(Path("jformer").absolute()).as_posix()
        if path.startswith("config/"):
            own.append(((path, int(number)), (section, name)))
        elif not path.startswith(tuple(NO_USE)):
            used.add((section, name))
    for section, method, places in methods_of_config():
        if (section, method) in used:
            used |= {read for place, read in own if place in places}
    sections = {"": Config(), **vars(Config())}
    for name in flatten(Config()):
        section, _, key = name.rpartition(".")
        read = (type(sections[section]).__name__, key)
        assert read in used, f"{name} changes nothing: no typed code reads it"


def test_only_the_command_line_reads_flags():
    for path in PACKAGE:
        if path.name != "command_line.py":
            assert not re.search(r"^\s*(from|import) absl", path.read_text(), re.MULTILINE), path


def test_functions_stay_short():
    for path in (*PACKAGE, *EXPERIMENTS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 80, f"{path}: {node.name}"


def test_every_module_says_what_it_is():
    for path in PACKAGE:
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_nothing_is_left_for_later():
    marks = ["TO" + "DO", "FIX" + "ME", "XX" + "X"]  # in parts, because this file is searched too
    for path in (*PACKAGE, *EXPERIMENTS, *OTHERS):
        assert not re.search(rf"\b({'|'.join(marks)})\b", path.read_text()), path
