"""The command line: flags, streams and exit statuses of the real program."""

import importlib.metadata
import importlib.util
import io
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import jformer
from jformer.cli import parser_of
from jformer.config import Config
from jformer.main import COMMANDS, main
from jformer.schema import flatten, walk
from tests.conftest import file_flags, number_words, small_flags, write_split


def run_main(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "jformer.main", *map(str, arguments)], capture_output=True, **options
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--config"),
        (["--config=configs/none.py"], "configs/none.py: no such file"),
        (["--config=tinny"], "did you mean tiny?"),
        (["--config=configs"], "configs: is a folder"),
        (["--cofnig=tiny"], "did you mean config?"),
        (["--config=configs/tiny.py:phrase"], "did you mean phrases?"),
        (["--config=configs/tiny.py", "--config.train.stepz=3"], "did you mean train.steps?"),
        (["--config=configs/tiny.py", "--config.train.stepz", "3"], "did you mean train.steps?"),
        (["--config=configs/tiny.py", "--config.train.steps=few"], "config.train.steps=few"),
        (["--config=configs/tiny.py", "--config.train.steps"], "config.train.steps"),
        (["--config=configs/tiny.py", "--config.train.steps=-1"], "must be >= 1"),
        (["--config=configs/tiny.py", "--config.train.steps", "-1"], "must be >= 1"),
        (["--config=configs/tiny.py", "--config.model=3"], "model.num_layers"),
        (["--config=configs/tiny.py", "--config.model.scan_layers=maybe"], "scan_layers=maybe"),
        (["--config=configs/tiny.py", "--wrokdir=x"], "did you mean workdir?"),
        (["--config=configs/tiny.py", "--beam_size=4"], "did you mean config.decode.beam_size?"),
        (["--config=configs/tiny.py", "--what=4"], "--what=4"),
        (["--config=configs/tiny.py", "extra"], "extra"),
        (["--config=configs/tiny.py:files"], "config.data.train is empty"),
        (["data", "--config=configs/tiny.py", "--format=xml"], "--format: invalid choice: 'xml'"),
        (["trian", "--config=configs/tiny.py"], "did you mean train?"),
        (["translate"], "--workdir"),
        (["translate", "--config=tiny"], "--config=tiny"),
        (["report", "--config.seed=3", "runs"], "--config.seed=3"),
        (["doctor", "--all"], "--all"),
        (["import", "--layout=keras"], "--layout: invalid choice: 'keras'"),
        (["summary", "--config=configs/tiny.py", "--source_length=0"], "--source_length"),
        (["summary", "--config=configs/tiny.py", "--memory=much"], "--memory"),
        (["summary", "--config=configs/tiny.py", "--hours=3"], "--hours requires --devices"),
        (["summary", "--config=configs/tiny.py", "--devices=8,0"], "--devices"),
        (["summary", "--config=configs/tiny.py", "--devices=8", "--mfu=40"], "--mfu"),
        (
            ["summary", "--config=configs/tiny.py", "--devices=8", "--device_kind=H100"],
            "--device_kind=TFLOPS",
        ),
        (
            ["summary", "--config=configs/tiny.py", "--devices=8", "--device_kind=-1"],
            "--device_kind",
        ),
        (
            ["summary", "--config=configs/tiny.py", "--devices=8", "--config.model.dtype=float32"],
            "--device_kind=TFLOPS",
        ),
        (
            ["summary", "--config=configs/tiny.py", "--devices=8", "--config.parallel.model=3"],
            "8 devices",
        ),
        (
            [
                *("summary", "--config=configs/tiny.py", "--devices=3"),
                "--config.parallel.fsdp=3",
            ],
            "config.parallel.fsdp=3: does not divide config.model.d_model=128",
        ),
        (["translate", "--workdir=/nowhere"], "/nowhere/config.json: no such file"),
        (["score", "--workdir=/nowhere"], "--data"),
        (["trainslate", "--workdir=/nowhere"], "did you mean translate?"),
        (
            ["--config=configs/tiny.py", "--config.data.target_language=xx"],
            "CLDR has no locale 'xx'",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(arguments, message, tmp_path, capsys):
    if arguments and arguments[0] == "--config=configs/tiny.py":
        arguments = [*arguments, f"--workdir={tmp_path / 'new'}"]
    assert main(["jformer", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1]
    assert captured.err.splitlines()[-1].startswith("jformer: ")
    assert captured.out == ""
    assert not (tmp_path / "new").exists()  # and nothing was begun


FAILURES = {
    "    return 1 / 0": "2: ZeroDivisionError: division by zero",
    "    return {}['x']": "2: KeyError: 'x'",
    "    class Own(Exception): pass\n    raise Own('one\\ntwo')": "3: Own: one two",
    "    raise SystemExit(0)": "2: SystemExit: 0",
    "    import nothing": "2: ModuleNotFoundError: No module named 'nothing'",
    "    raise ValueError('x')": "2: ValueError: x",
    "    b'\\xff'.decode()": "2: UnicodeDecodeError: ",
    "    import json\n\n    json.loads('{')": "4: JSONDecodeError: Expecting property name",
    "    return get_config()": "2: RecursionError: maximum recursion depth exceeded",
    "    open('/no/file')": "2: FileNotFoundError: [Errno 2] No such file",
    "    return (": "2: SyntaxError: '(' was never closed",
    "    return 3": " get_config() returned 3; it must return a config",
}


@pytest.mark.parametrize(("body", "message"), FAILURES.items())
def test_a_config_file_that_fails_is_named_with_its_line(tmp_path, capfd, body, message):
    path = tmp_path / "own.py"
    path.write_text(f"def get_config():\n{body}\n")
    assert main(["jformer", f"--config={path}", f"--workdir={tmp_path / 'new'}"]) == 2
    told = capfd.readouterr()
    assert told.err.startswith(f"jformer: {path}:{message}")
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_a_config_that_is_no_config_file_is_named(tmp_path, capfd):
    (tmp_path / "own.py").write_text("")
    for path, message in (
        (tmp_path / "own.py", f"{tmp_path}/own.py: must define get_config()"),
        (tmp_path, f"config={tmp_path}: is a folder"),
        ("", "--config=: is empty"),
    ):
        assert main(["jformer", f"--config={path}", f"--workdir={tmp_path / 'new'}"]) == 2
        told = capfd.readouterr()
        assert told.out == ""
        assert told.err.startswith(f"jformer: {message}")
        assert told.err.count("\n") == 1


@pytest.mark.parametrize("flag", ["--workdir=", "--output=", "--checkpoint="])
def test_an_empty_flag_is_no_default(tmp_path, capfd, flag):
    assert main(["jformer", "translate", f"--workdir={tmp_path}", flag]) == 2
    assert capfd.readouterr().err.startswith(f"jformer: {flag}: is empty")


STORED = {
    "[]": "is damaged: it holds no JSON object; restore the file",
    '"text"': "is damaged: it holds no JSON object; restore the file",
    "[" * 10_000: "is not JSON (maximum recursion depth exceeded",
    '{"model": ' * 10_000: "is not JSON (maximum recursion depth exceeded",
    '{"model": {"key_width": 8}}': "config.model.key_width is unknown",
    '{"model": {"decoder_layers": 8}}': "config.model.decoder_layers is unknown; did you mean",
    '{"data": {"corpus_weights": 8}}': "config.data.corpus_weights is unknown",
    '{"train": {"steps": 9223372036854775808}}': "config.train.steps=9223372036854775808: must be",
    '{"optimizer": {"learning_rate": Infinity}}': "config.optimizer.learning_rate=inf",
    '{"model": 9}': "must hold keys and their values",
    '{"model": {"d_model": 1000000000000}}': "config.model.d_model=1000000000000: ",
}


@pytest.mark.parametrize(("content", "message"), STORED.items(), ids=range(len(STORED)))
def test_a_stored_config_that_cannot_be_is_named(tmp_path, capfd, content, message):
    (tmp_path / "config.json").write_text(content)
    assert main(["jformer", "translate", f"--workdir={tmp_path}"]) == 2
    told = capfd.readouterr()
    assert told.err.startswith(f"jformer: {tmp_path / 'config.json'}: ")
    assert message in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


NUMBERS = {
    "config.train.steps=9223372036854775808": "2147483647",
    # Of two that are equal modulo 2^32, JAX makes the same.
    "config.seed=4294967296": "4294967295",
    "config.train.steps=0": ">= 1",
    "config.data.weights=1000000": "999999",
    "profile=first:1": "STEP:COUNT",
    "config.model.d_model=1000000000000": "2147483647",
}


@pytest.mark.parametrize(("flag", "message"), NUMBERS.items(), ids=range(len(NUMBERS)))
def test_a_number_that_no_run_can_have_is_refused_at_once(tmp_path, capfd, flag, message):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arguments = ["--config=configs/tiny.py", f"--workdir={tmp_path / 'new'}", f"--{flag}"]
    assert main(["jformer", *arguments]) == 2
    told = capfd.readouterr().err.splitlines()[-1]
    assert told.startswith("jformer: ")
    assert flag in told
    assert message in told
    assert not (tmp_path / "new").exists()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 500_000  # kB, the imports of a first command among them


@pytest.mark.parametrize("name", ["ascii", "latin-1", "utf-16"])
def test_results_are_utf8_whatever_the_locale_says(tmp_path, monkeypatch, corpus_directory, name):
    split = number_words(100, 400)
    shifted = type(split)(split.sources, [f"höchst {line} ✓" for line in split.targets])
    write_split(tmp_path / "train", shifted)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=name) for _ in range(2))
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    flags = [*file_flags(corpus_directory), f"--config.data.train={tmp_path / 'train'}"]
    small = ["--config.data.vocabulary_size=300", "--config.train.batch_tokens=256"]
    assert main(["jformer", "data", "--config=configs/tiny.py:files", *flags, *small]) == 0
    assert "höchst| three| fou|r| zer|o| ✓|" in out.buffer.getvalue().decode("utf-8")
    # A name of a file that is no UTF-8.
    assert main(["jformer", "report", "/no/h\udcf6ch"]) == 2
    err.flush()
    assert "jformer: /no/h\\udcf6ch: no such folder" in err.buffer.getvalue().decode("utf-8")


def test_without_a_home_directory_the_key_of_the_cache_is_named(
    corpus_directory, tmp_path, monkeypatch, capfd
):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])  # as where it has no entry
    arguments = small_flags(corpus_directory, tmp_path / "run")
    assert main(["jformer", *arguments]) == 2
    told = capfd.readouterr().err.splitlines()[-1]
    assert told.startswith("jformer: config.data.cache is empty, and this user has no home")
    assert told.endswith("; set config.data.cache=FOLDER")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config=configs/tiny.py", "--workdir", "{}", "--config.train.steps=0"],
        ["--workdir", "{}", "--config", "configs/tiny.py", "--config.train.steps", "0"],
        ["translate", "--workdir", "{}", "--config.decode.beam_size", "2"],
        ["evaluate", "--config.decode.beam_size", "2", "--workdir", "{}"],
    ],
)
def test_a_value_may_stand_behind_a_space(arguments, tmp_path, capfd):
    workdir = str(tmp_path / "a folder")
    arguments = [workdir if argument == "{}" else argument for argument in arguments]
    assert main(["jformer", *arguments]) == 2
    no_run = f"jformer: {workdir}/config.json: no such file; is {workdir} the directory of a run?\n"
    no_steps = "jformer: config.train.steps=0: must be >= 1\n"
    assert capfd.readouterr().err == (
        no_steps if "0" in arguments or "steps=0" in arguments[-1] else no_run
    )


def test_a_flag_is_no_value_of_the_one_before(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["jformer", "--workdir", "--config=configs/tiny.py"]) == 2
    told = capfd.readouterr().err
    assert told.startswith("jformer: --workdir: ")
    assert told.count("\n") == 1


def test_a_file_fault_is_found_before_a_run_directory_is_made(tmp_path, capsys):
    write_split(tmp_path / "train", number_words(1, 5))
    (tmp_path / "train.de").write_text("one line\n")
    flags = [f"--config.data.{s}={tmp_path / 'train'}" for s in ("train", "validation")]
    workdir = tmp_path / "run"
    assert main(["jformer", "--config=configs/tiny.py:files", f"--workdir={workdir}", *flags]) == 2
    assert "has 4 lines and" in capsys.readouterr().err
    assert not workdir.exists()


@pytest.mark.process
def test_debug_shows_where_a_mistake_was_found():
    result = run_main("--config=configs/tiny.py:phrase", "--debug")
    assert b"Traceback" in result.stderr
    assert result.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "--input={}/none"], "none: "),
        (["translate", "--input={}"], ": "),
        (["translate", "--prefix={}/none"], "none: "),
        (["translate", "--terms={}/none"], "none: "),
        (["translate", "--format=json"], "--format: invalid choice: 'json'"),
        (
            ["translate", "--config.decode.n_best=2"],
            "--format=text: has one output per line; set jsonl or tsv for n_best",
        ),
        (
            ["translate", "--format=tsv", "--config.decode.n_best=30"],
            "config.decode.n_best=30",
        ),
        (["translate", "--prefixes=x"], "did you mean prefix?"),
        (["translate", "--ensembel=x"], "did you mean ensemble?"),
        (["translate", "--checkpoint=newest"], "checkpoint 'newest' is unknown; there are served"),
        (
            ["translate", "--config.model.d_model=8"],
            "--config.model.d_model=8: cannot be changed after training",
        ),
        (["translate", "--config.decode.beam_sise=2"], "did you mean decode.beam_size?"),
        (["score", "--data={}/none"], "none.en: no such file"),
        (["score", "--data={}/none.tsv"], "none.tsv: no such file"),
        (["score", "--data=x", "--format=csv"], "--format: invalid choice: 'csv'"),
        (["score", "--data=x", "--input=y"], "--input=y: unknown flag"),
        (["evaluate", "--reference=x"], "did you mean references?"),
        (["evaluate", "--format=tsv"], "--format: invalid choice: 'tsv'"),
    ],
)
def test_a_mistake_about_a_run_is_one_line_too(tmp_path, capfd, arguments, message):
    command, *flags = (argument.replace("{}", str(tmp_path)) for argument in arguments)
    run = Path(__file__).with_name("stored_run") / "run"
    assert main(["jformer", command, f"--workdir={run}", *flags]) == 2
    told = capfd.readouterr()
    assert message in told.err
    assert told.err.startswith("jformer: ")
    assert told.err.count("\n") == 1
    assert told.out == ""


@pytest.mark.process
def test_summary_prints_the_costs_by_module_and_the_memory_of_a_step(capsys):
    arguments = ["summary", "--config=configs/tiny.py", "--target_length=16", "--memory=0.001"]
    small = ["--config.model.num_layers=1", "--config.data.max_length=8"]
    assert main(["jformer", *arguments, *small]) == 0
    told = capsys.readouterr()
    # Each compilation takes seconds or minutes, and is announced.
    compiled = [line for line in told.err.splitlines() if line.startswith("compiling")]
    assert len(compiled) == len(set(compiled)) > 3
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
    assert re.fullmatch(rf"train step: 0\.\d\d GB, 1,024 tokens, {where}", lines[-2])
    assert re.fullmatch(rf"--memory=0\.001 GB holds not one row, {where}", lines[-1])


@pytest.fixture
def planned(capsys):
    """Return a function from flags to the rows of a plan of `summary`, numbers by their names."""

    def planned(*flags):
        small = ["--config.model.num_layers=1", "--config.data.max_length=8"]
        command = ["summary", "--config=configs/tiny.py", "--devices=1,16", "--pairs=1000000"]
        assert main(["jformer", *command, *small, *flags]) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = [re.split("  +", line) for line in lines if "  " in line]
        numbers = {row[0]: [float(cell.replace(",", "")) for cell in row[1:]] for row in rows}
        return numbers | {"told": [line for line in lines if "  " not in line]}

    return planned


@pytest.mark.process
def test_summary_plans_a_run_on_devices_that_are_not_here(planned):
    plan = planned()
    assert plan["devices"] == [1, 16]
    assert plan["steps"] == [1800, 1800]
    tokens = 1024 * 0.84  # of train.batch_tokens
    assert plan["target tokens of a step"] == pytest.approx([tokens, tokens], rel=0.01)
    seen = 1800 * tokens / 32
    assert plan["epochs"] == pytest.approx([seen / 10**6] * 2, rel=0.01)
    assert plan["hours of tokenizing"] == pytest.approx([2 * 10**6 / 59_300 / 3600] * 2, rel=0.01)
    # Parameters, gradients' moments and the step of 585,728 parameters, as `summary` counts them.
    assert plan["GB of a device: state"] == pytest.approx([12 * 585_728 / 1e9] * 2, rel=0.01)
    assert plan["MB out of a device in a step"] == [
        0,
        pytest.approx(4 * 0.5857 * 2 * 15 / 16, 0.01),
    ]
    told = [line for line in plan["told"] if line]
    assert all(line.startswith("assumed: ") for line in told[:-2])
    assert "assumed: a device does 989 TFLOP/s, of which 40% are used (MFU)" in told
    assert re.fullmatch(r"1 device: .* breaks first \(\d+\.\d\d times its limit\)", told[-2])
    assert told[-1].startswith("16 devices: ")


@pytest.mark.process
def test_every_flag_of_a_plan_changes_it(planned):
    before = planned()

    def ratio(name, *flags):
        return planned(*flags)[name][1] / before[name][1]

    compute, exchange = "ms of a step: computation", "ms of a step: exchange"
    assert ratio(compute, "--mfu=0.1") == pytest.approx(4, rel=0.01)
    assert ratio(compute, "--device_kind=98.9") == pytest.approx(10, rel=0.01)
    assert ratio(compute, "--device_kind=NVIDIA A100-SXM4-80GB") == pytest.approx(
        989 / 312, rel=0.01
    )
    assert ratio(exchange, "--link=25") == pytest.approx(2, rel=0.01)
    assert ratio("epochs", "--pairs=500000") == pytest.approx(2, rel=0.01)
    assert ratio("epochs", "--source_length=64") == pytest.approx(1 / 2, rel=0.01)
    assert ratio("target tokens of a step", "--source_length=64") == pytest.approx(1 / 2, rel=0.01)
    small = planned("--memory=0.01")["times its limit: memory"][1]
    assert small == pytest.approx(before["GB of a device: train step"][1] / 0.01, rel=0.03)
    half = 0.5 * before["hours of steps"][1]
    assert planned(f"--hours={half}")["steps"][1] == pytest.approx(900, rel=0.01)


RUN = {"workdir", "checkpoint", "plugins"}
FLAGS = {
    "train": {"config", "workdir", "profile", "format"},
    "translate": {*RUN, "ensemble", "input", "output", "prefix", "terms", "format"},
    "score": {*RUN, "ensemble", "data", "output", "format"},
    "evaluate": {*RUN, "ensemble", "data", "references", "against", "format"},
    "attention": {*RUN, "ensemble", "source", "target", "output"},
    "export": {*RUN, "format", "output"},
    "data": {"config", "format"},
    "summary": {
        *("config", "source_length", "target_length", "memory", "plot", "devices", "hours"),
        *("pairs", "device_kind", "mfu", "link"),
    },
    "report": {"DIR", "output"},
    "sweep": {"FILE", "workdir", "jobs", "seeds", "only", "rounds", "dry_run", "submit"},
    "import": {
        *("from", "layout", "workdir", "vocabulary", "source_vocabulary", "specials", "names"),
    },
    "doctor": set(),
    "completion": {"SHELL"},
}
KEYS_OF_A_RUN = {key for key in flatten(Config()) if key.startswith("decode.")} | {"data.bad_lines"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_flags_of_each_command_are_these(command):
    """Programs and notes of users depend on them: a change belongs into the changelog."""
    options = parser_of(command, COMMANDS)._actions
    names = {action.option_strings[-1][2:] if action.option_strings else action.metavar
             for action in options}  # fmt: skip
    keys = {name.removeprefix("config.") for name in names if name.startswith("config.")}
    flags = {name for name in names if not name.startswith("config.")}
    assert flags == {"help", "debug", *FLAGS[command]}
    if "checkpoint" in flags:
        assert keys == KEYS_OF_A_RUN
    else:
        takes_all = "config" in flags or command in ("sweep", "import")
        assert keys == (flatten(Config()).keys() if takes_all else set())


def test_help_names_the_commands_and_the_exit_statuses(capsys):
    assert main(["jformer", "--help"]) == 0
    text = capsys.readouterr().out
    for word in (*COMMANDS, "129", "130", "141", "143"):
        assert re.search(rf"\b{word}\b", text)


def test_the_help_of_a_command_has_its_flags_and_keys_with_their_defaults(capsys):
    shown = {}
    for name in COMMANDS:
        assert main(["jformer", name, "--help"]) == 0
        shown[name] = capsys.readouterr().out
    assert "--prefix FILE" in shown["translate"]
    assert "{text,jsonl,tsv}" in shown["translate"]
    assert "--config.decode.beam_size 4" in shown["translate"]
    assert "--config.data.bad_lines error" in shown["translate"]
    for elsewhere in ("--config.train.steps", "--profile", "--config CONFIG"):
        assert elsewhere in shown["train"]
        assert elsewhere not in shown["translate"]
    assert "--config." not in shown["report"]
    # A resumed run may change the second, and not the first.
    assert re.search(r"--config\.decode\.search beam\s+\* ", shown["train"])
    assert not re.search(r"--config\.seed 0\s+\* ", shown["train"])
    assert main(["jformer", "--config=tiny", "--help"]) == 0
    assert capsys.readouterr().out == shown["train"]
    assert main(["jformer", "trian", "--help"]) == 2
    assert "did you mean train?" in capsys.readouterr().err


@pytest.mark.parametrize(("key", "field"), [(key, field) for key, field, _ in walk(Config())])
def test_help_explains_every_key(key, field):
    (action,) = (a for a in parser_of("train", COMMANDS)._actions if a.dest == key)
    assert action.help.replace("%%", "%").endswith(field.metadata["doc"])
    if field.metadata["only_if"]:
        assert "only if" in action.help


def test_the_version_is_printed(capsys):
    assert main(["jformer", "--version"]) == 0
    assert capsys.readouterr().out == f"jformer {jformer.__version__}\n"


def test_doctor_names_versions_devices_and_what_is_missing(monkeypatch, capsys):
    version = importlib.metadata.version

    def without_plotly(name):
        if name == "plotly":
            raise importlib.metadata.PackageNotFoundError(name)
        return "9.9" if name == "matplotlib" else version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_plotly)
    assert main(["jformer", "doctor"]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    for name in ("jax", "babel", "tokenizers", "sacrebleu"):
        assert told[name] == version(name)
    assert told["device"].endswith(f"{jax.local_devices()[0].device_kind} (cpu)")
    assert re.search("/jformer/xla, (not )?kept", told["compiled"])
    assert told["plotly"] == "missing: pip install plotly  (the page of report --output)"
    assert told["matplotlib"].startswith("9.9 ")
    assert main(["jformer", "doctor", "--all"]) == 2
    assert "--all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("format", "package"),
    [
        ("ctranslate2", "ctranslate2"),
        ("transformers", "safetensors"),
        ("safetensors", "safetensors"),
        ("stablehlo", "flatbuffers"),
    ],
)
def test_a_missing_package_is_named_itself_which_every_kind_of_installation_can_install(
    format, package, tmp_path, monkeypatch, capsys
):
    for name in (package, f"{package}.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    run = Path(__file__).with_name("stored_run") / "run"
    flags = [f"--workdir={run}", f"--format={format}", f"--output={tmp_path / 'out'}"]
    assert main(["jformer", "export", *flags]) == 2
    told = capsys.readouterr().err
    assert told.splitlines()[-1].endswith(f"pip install {package}")


@pytest.mark.process
def test_doctor_lists_what_works_beside_devices_that_do_not():
    environment = {**os.environ, "JAX_PLATFORMS": "foo"}
    ran = run_main("doctor", env=environment, text=True)
    assert ran.returncode == 0
    told = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines())
    assert "Unable to initialize backend 'foo'" in told["device"]
    assert told["jax"] == importlib.metadata.version("jax")
    assert "plotly" in told
    assert "Traceback" not in ran.stdout + ran.stderr


def test_doctor_survives_a_broken_jax_and_a_missing_home_folder(monkeypatch, capsys):
    def failing(*arguments):
        raise RuntimeError("CUDA driver version is insufficient\nand more lines of it")

    monkeypatch.setattr(jax, "local_devices", failing)
    monkeypatch.setattr(jax, "default_backend", failing)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    assert main(["jformer", "doctor"]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert told["device"].endswith("CUDA driver version is insufficient")
    assert "config.data.cache" in told["cache"]
    assert told["jax"] == importlib.metadata.version("jax")
    assert "plotly" in told


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["train", "--help"], ["trian"], ["--config=tiny", "--config.train.stepz=3"]],
)
def test_what_is_answered_at_once_does_not_import_jax(arguments):
    """JAX takes a second."""
    program = (
        f"import sys; from jformer.main import main; main(['', *{arguments}]); print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "jformer.cli" in ran.stdout.split()
    assert "jax" not in ran.stdout.split()


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
@pytest.mark.parametrize(
    ("arguments", "restarts"),
    [
        ([], True),
        (["--config=tinny"], True),
        (["train", "--config=tinny"], True),
        (["train", "--help"], False),
        (["--version"], False),
        (["trian"], False),
        (["report", "train"], False),
    ],
)
def test_a_training_alone_restarts_for_huge_pages_and_before_it_imports_packages(
    arguments, restarts
):
    program = (
        "import os, sys\n"
        "from jformer import main\n"
        "os.execv = lambda path, words: print('RESTART', *sys.modules) or sys.exit(0)\n"
        f"sys.argv = ['jformer', *{arguments}]\n"
        "main.run_main()\n"
    )
    environment = {name: v for name, v in os.environ.items() if name != "GLIBC_TUNABLES"}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    imported = ran.stdout.split()
    assert ("RESTART" in imported) == restarts
    if restarts:
        packages = {"jax", "flax", "numpy", "absl", "ml_collections", "argparse"}
        assert not packages & {*imported}


@pytest.mark.parametrize("name", ["tiny", "tiny:phrases", "configs/tiny.py", "./configs/tiny.py"])
def test_a_config_is_named_by_its_path_or_as_one_of_the_packages_own(name, capsys):
    flags = [
        f"--config={name}",
        "--config.data.name=phrases(pairs=1000)",
        "--config.data.vocabulary_size=300",
    ]
    assert main(["jformer", "data", *flags, "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] > 600


def test_none_unsets_an_optional_key_of_a_config_file_and_no_other(tmp_path, capsys):
    own = tmp_path / "own.py"
    lines = ["config.model.d_k = 16", "config.train.keep_checkpoints = None"]
    body = "".join(f"    {line}\n" for line in lines)
    own.write_text(
        "from jformer.config import default_config\n\n\n"
        f"def get_config():\n    config = default_config()\n{body}    return config\n"
    )
    assert jformer.get_config(own).model.d_k == 16
    assert jformer.get_config(own).train.keep_checkpoints is None
    assert jformer.get_config(own, **{"model.d_k": None}).model.d_k is None
    small = ["--config.data.name=phrases(pairs=1000)", "--config.data.vocabulary_size=300"]
    for key in ("model.d_k", "decode.max_length", "train.keep_checkpoints"):
        assert main(["jformer", "data", f"--config={own}", f"--config.{key}=None", *small]) == 0
    capsys.readouterr()
    assert main(["jformer", "data", f"--config={own}", "--config.model.d_model=None"]) == 2
    assert "config.model.d_model" in capsys.readouterr().err


@pytest.mark.process
def test_what_cannot_be_printed_is_quiet_for_a_closed_pipe_and_one_line_for_a_full_disk(
    corpus_directory,
):
    flags = ["--config=configs/tiny.py:files", "--config.data.vocabulary_size=300"]
    words = [sys.executable, "-m", "jformer.main", "data", *flags, *file_flags(corpus_directory)]
    program = shlex.join(words)
    # With a buffer, so that Python would meet it only when it ends.
    options = {"capture_output": True, "env": {**os.environ, "PYTHONUNBUFFERED": ""}}
    line = f"{program} | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", line], **options)
    assert result.returncode == 141
    assert b"Error" not in result.stderr
    result = subprocess.run(["bash", "-c", f"{program} > /dev/full"], **options)
    told = b"jformer: [Errno 28] No space left on device\n"
    assert (result.returncode, result.stderr) == (1, told)


@pytest.mark.process
def test_training_whose_reader_has_gone_goes_on_from_its_last_checkpoint(
    trained_workdir, corpus_directory, tmp_path, monkeypatch, capsys
):
    class Reader(io.StringIO):
        """Leaves at step 8; there are checkpoints of 3 and 6."""

        def write(self, text):
            if text.startswith("step 8/"):
                raise BrokenPipeError
            return super().write(text)

    flags = small_flags(corpus_directory, tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr("sys.stderr", Reader())
        assert main(["jformer", *flags]) == 141
    assert {*os.listdir(tmp_path / "run" / "checkpoints")} <= {"3", "6"}
    assert main(["jformer", *flags]) == 0
    assert "resuming from step 6" in capsys.readouterr().err
    ours, theirs = (
        json.loads((folder / "results.json").read_text())["test"]
        for folder in (tmp_path / "run", trained_workdir)
    )
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.process
@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_terminal_gets_a_small_table_and_the_path_of_the_scores_and_a_pipe_gets_json(
    command, trained_workdir, corpus_directory, tmp_path, monkeypatch, capsys
):
    run = shutil.copytree(trained_workdir, tmp_path / "run")
    flags = small_flags(corpus_directory, run) if command == "train" else [f"--workdir={run}"]

    def printed(*more):
        assert main(["jformer", command, *flags, *more]) == 0
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
    assert len(on_terminal.splitlines()) < 24 or command == "evaluate"  # a screen
    assert main(["jformer", command, *flags, "--format=xml"]) == 2
    assert "--format: invalid choice: 'xml'" in capsys.readouterr().err


@pytest.mark.process
def test_a_real_terminal_is_noticed(trained_workdir, corpus_directory):
    ours, theirs = os.openpty()
    command = [
        sys.executable,
        "-m",
        "jformer.main",
        *small_flags(corpus_directory, trained_workdir),
    ]
    subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, check=True)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "{" not in shown
    assert str(trained_workdir / "results.json") in shown


@pytest.mark.process
def test_training_and_translating_say_that_they_compile_before_they_do(
    corpus_directory, tmp_path, capsys, monkeypatch
):
    run = tmp_path / "run"
    flags = [*small_flags(corpus_directory, run), "--config.train.steps=3"]
    assert main(["jformer", *flags]) == 0
    told = capsys.readouterr().err
    assert told.index("compiling") < told.index("step 1/3")
    (tmp_path / "in").write_text("1 2 3\n")
    files = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}"]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["jformer", "translate", f"--workdir={run}", *files]) == 0
    assert f"{tmp_path / 'in'}" in capsys.readouterr().err


@pytest.mark.process
def test_errors_in_the_log_of_xla_are_shown_with_debug_or_if_the_user_asks(tmp_path):
    """Its "Very slow compile" blocks are such errors; here it is a folder that cannot be made."""
    run = Path(__file__).with_name("stored_run") / "run"
    flags = [f"--workdir={run}", f"--output={tmp_path / 'out'}"]
    known = {**os.environ, "XLA_FLAGS": "--xla_dump_to=/proc/none/x"}
    known.pop("TF_CPP_MIN_LOG_LEVEL", None)

    def log_of_xla(*more, **environment):
        ran = run_main("translate", *flags, *more, env={**known, **environment}, input=b"1\n")
        assert ran.returncode == 0
        return b"/proc/none/x" in ran.stderr

    assert log_of_xla("--debug")
    assert log_of_xla(TF_CPP_MIN_LOG_LEVEL="1")
    assert not log_of_xla()


@pytest.mark.process
def test_the_console_script_is_the_same_program():
    script = os.path.join(os.path.dirname(sys.executable), "jformer")
    output = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    assert output == run_main("--help", text=True).stdout


@pytest.mark.process
@pytest.mark.parametrize("platform", ["foo", "cuda"])
def test_a_platform_that_jax_cannot_start_is_one_line(tmp_path, platform):
    if platform == "cuda" and importlib.util.find_spec("jax_cuda13_plugin"):
        pytest.skip("CUDA is installed")
    command = [sys.executable, "-m", "jformer.main", "--config=tiny", f"--workdir={tmp_path}/run"]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": platform}
    )
    assert result.returncode == 2
    assert f"JAX_PLATFORMS={platform}" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
