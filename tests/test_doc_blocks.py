"""Every block of code in README and docs/ is run, with small models in place of its own.

All of a page in its order, in a folder with the run of the quickstart. What cannot run here is
named below with its reason; its flags and keys are checked by test_docs.py.
"""

import os
import re
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import jformer.api
from jformer.cli import config_from
from jformer.main import main
from jformer.schema import replaced
from tests.documented import NAMED, PAGES, PROGRAMS, as_pasted, blocks, commands, lay_out, words

pytestmark = pytest.mark.docs

NOT_RUN = {
    "pip": "needs a network",
    "git": "needs a network",
    "cd": "follows git",
    "curl": "needs a network",
    "mkdir": "makes a folder for curl",
    "tar": "follows curl",
    "pytest": "would run these tests",
    "ruff": ".ci/run runs it",
    "mypy": ".ci/run runs it",
    "lint-imports": ".ci/run runs it",
}
COMMANDS_NOT_RUN = {"import": "needs weights of other programs; tests/extras/interop imports such"}
FLAGS_NOT_RUN = {"--original": "needs an imported run; test_import_m2m100.py has one"}
MODULES_NOT_RUN = {"experiments.serve": "runs until it is stopped; tests/experiments has its test"}
PYTHON_NOT_RUN = {
    "docs/accelerators.md": "needs compilers of 5 GB; tests/extras/test_targets.py has its calls",
    "docs/export.md": "is for other packages; tests/extras/interop calls them",
    "docs/import_m2m100.md": "needs an imported run; test_an_imported_model_is_fine_tuned has one",
}
SMALL = {
    "model": {"num_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 16, "num_heads": 2},
    "data": {"vocabulary_size": 300, "num_buckets": 1, "max_length": 48},
    "train": {"steps": 4, "evaluate_every": 4, "checkpoint_every": 2, "batch_tokens": 256},
    "optimizer": {"warmup_steps": 2},
    "decode": {"max_extra_length": 5, "batch_size": 8},
}  # fmt: skip
# Elsewhere, a run that has been trained is not scored: it would be the same search once more.
SCORED = ("README.md", "docs/quickstart.md")
FEW_PHRASES = "phrases(pairs=1000)"
SMALL_FLAGS = [
    f"--config.{section}.{key}={value}"
    for section, values in SMALL.items()
    for key, value in values.items()
]


def small_flags(arguments):
    """The flags that make the config of a command line small."""
    name = next(word for word in arguments if word.startswith("--config="))
    data = config_from(name.removeprefix("--config="))["data"].name
    named = any(word.startswith("--config.data.name=") for word in arguments)
    few = [f"--config.data.name={FEW_PHRASES}"] if data == "phrases" and not named else []
    return [*SMALL_FLAGS, *few]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What `lay_out` makes, and the run that the quickstart trains."""
    folder = tmp_path_factory.mktemp("documented")
    lay_out(folder)
    before = os.getcwd()
    os.chdir(folder)
    try:
        command = ["--config=configs/tiny.py"]
        assert main(["jformer", *command, *small_flags(command)]) == 0
    finally:
        os.chdir(before)
    for name in ("b", "c", "heads/one"):
        shutil.copytree(folder / NAMED["DIR"], folder / "runs" / name)
    return folder


def status(command: str, page: str) -> int:
    """Run a command line of shell and return its exit status; one of ours in this process."""
    program = command.split()[0]
    if program in NOT_RUN:
        return 0
    if re.search(r"[|<>]", command):
        return subprocess.run(["bash", "-o", "pipefail", "-c", as_pasted(command, page)]).returncode
    assert re.match(PROGRAMS, command), f"{program} is neither run nor named as not to be run"
    arguments = words(command, page)
    flags = {word.partition("=")[0] for word in arguments[1:]}
    if arguments[:1] and (arguments[0] in COMMANDS_NOT_RUN or flags & FLAGS_NOT_RUN.keys()):
        return 0
    module = re.search(r"-m ([\w.]+)", command)
    if module and module[1] in MODULES_NOT_RUN:
        return 0
    if module is None or module[1] == "jformer.main":
        if any(word.startswith("--config=") for word in arguments):
            arguments += small_flags(arguments)
            given = [word for word in arguments if word.startswith("--workdir=")]
            if given and os.path.exists(given[0].removeprefix("--workdir=")):
                arguments.append(f"{given[0]}-again")  # the run that is there is of other keys
        if arguments[:1] == ["sweep"]:
            arguments.append("--dry_run")  # checks the configs of all points, and trains none
        with pytest.MonkeyPatch.context() as patch:
            if arguments[:1] and arguments[0].startswith("--config") and page not in SCORED:
                patch.setattr("jformer.results.score_all", lambda run, tests: {})
            return main(["jformer", *arguments])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module[1], *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module[1], run_name="__main__")
    return ended.value.code


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_block_of_code_runs(page, folder, monkeypatch):
    own = jformer.api.get_config

    def small_config(*name, **keys):
        config = replaced(own(*name, **keys), SMALL)
        is_phrases = config.data.name == "phrases"
        return replaced(config, {"data": {"name": FEW_PHRASES}} if is_phrases else {})

    board = types.SimpleNamespace(log=lambda numbers, step: None)
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **_: board))
    shutil.rmtree(folder / "runs" / "mine", ignore_errors=True)  # of another page
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.chdir(folder)
    monkeypatch.setattr(jformer.api, "get_config", small_config)
    pairs = [("one two three", "eins zwei drei"), ("four five", "vier fünf")] * 20
    names = {"pairs": pairs, "validation": pairs[:4], "DIR": NAMED["DIR"]}
    for block in blocks(Path(__file__).parents[1] / page):
        if block.language == "sh":
            for command in commands(block.text):
                assert status(command, str(page)) == 0, f"{block.place}: {command}"
        elif block.language == "python" and str(page) not in PYTHON_NOT_RUN:
            code = block.text.replace('"DIR"', repr(NAMED["DIR"]))
            exec(compile(code, block.place, "exec"), names)
