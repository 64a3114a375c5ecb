"""The command line: flags, streams and exit statuses of the real program."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import jformer
from jformer.cli import config_of_flags
from jformer.main import COMMANDS, main
from tests.conftest import small_flags

STORED_RUN = Path(__file__).with_name("stored_run") / "run"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], ["--config"]),
        (["--config=configs/none.py"], ["configs/none.py"]),
        (["--config=tinny"], ["tinny", "tiny?"]),
        (["--config=tiny", "--config.train.stepz=3"], ["train.stepz", "train.steps?"]),
        (["--config=tiny", "--config.train.steps=-1"], ["train.steps=-1", "1"]),
        (["--config=tiny", "--beam_size=4"], ["config.decode.beam_size?"]),
        (["--config=tiny:none"], ["none"]),
        (["--config=tiny", "--config.data.target_language=xx"], ["xx"]),
        (["trian", "--config=tiny"], ["trian", "train?"]),
        (["translate", "--workdir=/nowhere"], ["/nowhere/config.json"]),
        (["translate", "--workdir={run}", "--input=/no/file"], ["/no/file"]),
        (["translate", "--workdir={run}", "--checkpoint=newest"], ["newest", "served"]),
        (["translate", "--workdir={run}", "--config.model.d_model=8"], ["config.model.d_model=8"]),
        (["score", "--workdir={run}", "--data=/no/pairs"], ["/no/pairs.en"]),
        (["evaluate", "--workdir={run}", "--reference=x"], ["references?"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(arguments, named, tmp_path, capfd):
    arguments = [argument.replace("{run}", str(STORED_RUN)) for argument in arguments]
    if arguments and arguments[0].startswith("--config="):
        arguments.append(f"--workdir={tmp_path / 'new'}")
    assert main(["jformer", *arguments]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    *_, line = captured.err.splitlines()
    assert line.startswith("jformer: ")
    for name in named:
        assert name in line
    assert not (tmp_path / "new").exists()


def test_a_config_file_that_fails_is_named_with_its_line(tmp_path, capfd):
    path = tmp_path / "own.py"
    path.write_text("def get_config():\n    return 1 / 0\n")
    assert main(["jformer", f"--config={path}", f"--workdir={tmp_path / 'new'}"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert f"{path}:2: ZeroDivisionError" in line


def test_a_value_may_stand_behind_a_space_and_the_last_one_counts():
    flags = ["--config", "tiny", "--config.decode.beam_size", "2", "--config.model.scan_layers"]
    config = config_of_flags([*flags, "--config.decode.beam_size=3"])
    assert (config.name, config.decode.beam_size, config.model.scan_layers) == ("tiny", 3, True)


def test_debug_shows_where_a_mistake_was_found(capsys):
    assert main(["jformer", "--config=tiny:phrase", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.process
def test_summary_prints_the_costs_by_module_and_the_memory_of_a_step(capsys):
    arguments = ["summary", "--config=configs/tiny.py", "--target_length=16"]
    small = ["--config.model.num_layers=1", "--config.data.max_length=8"]
    assert main(["jformer", *arguments, *small]) == 0
    told = capsys.readouterr()
    # A compilation takes seconds or minutes, and is announced.
    assert told.err.count("compiling") == 1
    lines = told.out.splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert rows["embedding"].split() == ["256,000", "0", "0"]
    # 4 x 128 x 128 over 32 positions, and 2 x 32 x 32 x 128 of queries, keys and values
    products = 4 * 128 * 128 * 32 + 2 * 32 * 32 * 128
    attention = rows["encoder/self_attention"].split()
    assert attention == ["65,536", f"{products:,}", f"{2 * products:,}"]
    assert rows["output"].split() == ["0", f"{16 * 128 * 2000:,}", f"{2 * 16 * 128 * 2000:,}"]
    assert rows["total"].split()[0] == "585,728"
    where = r"rows of 8 \(config\.data\.max_length\) on cpu"
    assert re.fullmatch(rf"train step: 0\.\d\d GB, 1,024 tokens, {where}", lines[-1])


def test_the_help_of_a_command_has_its_flags_and_keys_with_their_defaults(capsys):
    shown = {}
    for name in COMMANDS:
        with pytest.raises(SystemExit, match="0"):
            main(["jformer", name, "--help"])
        shown[name] = capsys.readouterr().out
    assert "--prefix FILE" in shown["translate"]
    assert "--config.decode.beam_size 4" in shown["translate"]
    for elsewhere in ("--config.train.steps", "--profile", "--config CONFIG"):
        assert elsewhere in shown["train"]
        assert elsewhere not in shown["translate"]
    assert "--config." not in shown["report"]
    # A resumed run may change the second, and not the first.
    assert re.search(r"--config\.decode\.search beam\s+\* ", shown["train"])
    assert not re.search(r"--config\.seed 0\s+\* ", shown["train"])


def test_doctor_names_versions_devices_and_what_is_missing(monkeypatch, capsys):
    version = importlib.metadata.version

    def without_plotly(name):
        if name == "plotly":
            raise importlib.metadata.PackageNotFoundError(name)
        return "9.9" if name == "matplotlib" else version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_plotly)
    assert main(["jformer", "doctor"]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    for name in ("jax", "tokenizers", "sacrebleu"):
        assert told[name] == version(name)
    assert told["device"].endswith(f"{jax.local_devices()[0].device_kind} (cpu)")
    assert "/jformer/xla" in told["compiled"]
    assert told["plotly"] == "missing: pip install plotly  (the page of report --output)"
    assert told["matplotlib"].startswith("9.9 ")


def test_a_missing_package_is_named(tmp_path, monkeypatch, capsys):
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    flags = [f"--workdir={STORED_RUN}", "--format=safetensors", f"--output={tmp_path / 'out'}"]
    assert main(["jformer", "export", *flags]) == 2
    assert "pip install safetensors" in capsys.readouterr().err


@pytest.mark.process
def test_what_is_answered_at_once_does_not_import_jax():
    """JAX takes a second."""
    program = (
        "import sys; from jformer.main import main\n"
        "main(['', '--help']); main(['', '--config=tiny', '--config.train.stepz=3'])\n"
        "print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "jformer.cli" in ran.stdout.split()
    assert "jax" not in ran.stdout.split()


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_a_training_restarts_for_huge_pages_before_it_imports_packages():
    program = (
        "import os, sys\n"
        "from jformer import main\n"
        "os.execv = lambda path, words: print('RESTART', *sys.modules) or sys.exit(0)\n"
        "sys.argv = ['jformer']\n"
        "main.run_main()\n"
    )
    environment = {name: v for name, v in os.environ.items() if name != "GLIBC_TUNABLES"}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    imported = ran.stdout.split()
    assert imported[0] == "RESTART"
    assert not {"jax", "flax", "numpy", "ml_collections", "argparse"} & {*imported}


@pytest.mark.parametrize(
    ("flag", "value"), [("", True), ("=True", True), ("=true", True), ("=false", False)]
)
def test_a_key_that_is_true_or_false_is_written_in_either_case(flag, value):
    config = config_of_flags(["--config=tiny", f"--config.model.scan_layers{flag}"])
    assert config.model.scan_layers is value


def test_none_unsets_an_optional_key_of_a_config_file_and_no_other(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from jformer.config import default_config\n\n\n"
        "def get_config():\n    config = default_config()\n    config.model.d_k = 16\n"
        "    return config\n"
    )
    assert jformer.get_config(own).model.d_k == 16
    assert jformer.get_config(own, **{"model.d_k": None}).model.d_k is None
    assert config_of_flags([f"--config={own}", "--config.model.d_k=None"]).model.d_k is None
    with pytest.raises(jformer.UserError, match=r"config\.model\.d_model"):
        config_of_flags([f"--config={own}", "--config.model.d_model=None"])


@pytest.mark.process
def test_a_closed_pipe_ends_a_command_quietly():
    program = f"{sys.executable} -m jformer.main --help"
    # With a buffer, so that Python would meet it only when it ends.
    options = {"capture_output": True, "env": {**os.environ, "PYTHONUNBUFFERED": ""}}
    line = f"{program} | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", line], **options)
    assert result.returncode == 141
    assert b"Error" not in result.stderr


@pytest.mark.process
def test_a_terminal_gets_a_small_table_and_the_path_of_the_scores_and_a_pipe_gets_json(
    trained_workdir, corpus_directory, monkeypatch, capsys
):
    run = trained_workdir

    def printed(*more):
        assert main(["jformer", *small_flags(corpus_directory, run), *more]) == 0
        return capsys.readouterr().out

    assert json.loads(printed().splitlines()[-1])["test"]["bleu"] >= 0
    text = printed("--format=text")
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout.isatty", lambda: True)
        on_terminal = printed()
        assert json.loads(printed("--format=json"))["test"]["bleu"] >= 0
    for shown in (text, on_terminal):
        assert "{" not in shown
        bleu = json.loads((run / "results.json").read_text())["test"]["bleu"]
        (row,) = (line for line in shown.splitlines() if line.startswith("BLEU  "))
        assert row.split()[-1] == f"{bleu:.2f}"
        assert str(run / "results.json") in shown.splitlines()[-1]
    assert len(on_terminal.splitlines()) < 24  # a screen
