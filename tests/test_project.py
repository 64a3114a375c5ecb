"""The house itself: its layers, its style, what must not be in it."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jformer.config import Config
from jformer.schema import flatten


def run(*command):
    return subprocess.run(command, capture_output=True, text=True)


def tracked():
    """The files of the project, without what else lies in the checkout, as a virtual environment.

    Without git, as in an archive of the project, all that lies in its folders.
    """
    try:
        result = run("git", "ls-files", "-z")
    except FileNotFoundError:
        listed = ""
    else:
        listed = result.stdout if result.returncode == 0 else ""
    if "pyproject.toml" in (names := listed.split("\0")):
        return [path for name in names if name and (path := Path(name)).is_file()]
    folders = [Path(name) for name in (".ci", "configs", "experiments", "jformer", "tests")]
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


TRACKED = tracked()
FILES = [path for path in TRACKED if path.suffix == ".py"]
NOTEBOOKS = [path for path in TRACKED if path.suffix == ".ipynb"]
PACKAGE = [path for path in FILES if path.parts[0] == "jformer"]
EXPERIMENTS = [path for path in FILES if path.parts[0] == "experiments"]


def test_the_files_of_every_folder_are_looked_at():
    assert {path.parts[0] for path in FILES} >= {"configs", "experiments", "jformer", "tests"}
    assert len(PACKAGE) > 50


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_a_virtual_environment_in_the_checkout_is_not_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pyproject.toml", "jformer/a.py", "v/lib/b.py"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    assert tracked() == [Path("jformer/a.py")]  # no checkout, as an archive is none
    assert run("git", "init").returncode == 0
    assert run("git", "add", "pyproject.toml", "jformer").returncode == 0
    assert tracked() == [Path("jformer/a.py"), Path("pyproject.toml")]


def test_imports_point_only_the_way_of_the_layer_contract():
    result = run(Path(sys.executable).with_name("lint-imports"), "--no-cache")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_ruff_has_nothing_to_say(command):
    result = run(sys.executable, "-m", "ruff", *command, "--no-cache", *FILES, *NOTEBOOKS)
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """What mypy says, and what its plugin `key_reads` notes meanwhile."""
    folder = tmp_path_factory.mktemp("mypy")
    settings = Path("pyproject.toml").read_text()
    plugin = Path("tests/key_reads.py").absolute()
    (folder / "pyproject.toml").write_text(
        settings.replace("[tool.mypy]\n", f'[tool.mypy]\nplugins = ["{plugin}"]\n')
    )
    (folder / "reads").touch()
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", folder / "pyproject.toml"),
            *("--cache-dir", folder / "cache"),  # what it remembers, it does not show the plugin
        ],
        capture_output=True, text=True, env={**os.environ, "KEY_READS": str(folder / "reads")},
    )  # fmt: skip
    return result, (folder / "reads").read_text().splitlines()


@pytest.mark.process  # mypy, ten seconds without its cache
def test_types_hold(typed):
    result, _ = typed
    assert result.returncode == 0, result.stdout


# What only checks a key, shows it or estimates by it does not make it change anything.
NO_USE = ["schema.py", "training/cost.py", "training/flops.py", "training/plan.py", "views/"]
CHECKS = ("check", "_parameters_of_layers")


def methods_of_config():
    """`(section, method, its places)` of the sections' own methods and properties."""
    for path in Path("jformer/config").glob("*.py"):
        for section in ast.parse(path.read_text()).body:
            for node in section.body if isinstance(section, ast.ClassDef) else ():
                if isinstance(node, ast.FunctionDef) and node.name not in CHECKS:
                    lines = range(node.lineno, node.end_lineno + 1)
                    yield section.name, node.name, {(f"config/{path.name}", n) for n in lines}


@pytest.mark.process
def test_every_key_is_read_by_the_package(typed):
    """And not only checked or shown. A method of a section counts where something calls it."""
    used, own = set(), []
    for line in typed[1]:
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
        assert read in used, f"{name} changes nothing: no code of a known type reads it"


def test_only_the_command_line_reads_flags():
    for path in PACKAGE:
        if path.name != "cli.py":
            imports = r"^\s*(from|import) (absl|argparse)"
            assert not re.search(imports, path.read_text(), re.MULTILINE), path


def test_functions_stay_short():
    for path in (*PACKAGE, *EXPERIMENTS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 80, f"{path}: {node.name}"


def test_every_module_says_what_it_is():
    for path in PACKAGE:
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_nothing_is_left_for_later():
    marks = ["TO" + "DO", "FIX" + "ME", "XX" + "X"]  # in two parts: this file is read as well
    for path in FILES:
        assert not re.search(rf"\b({'|'.join(marks)})\b", path.read_text()), path
