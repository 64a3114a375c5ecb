"""The doors: flags, streams and exit statuses of the real program."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from jformer.main import main
from tests.conftest import file_flags, number_words, write_split


def run_main(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "jformer.main", *map(str, arguments)], capture_output=True, **options
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--config is missing, as in --config=configs/tiny.py"),
        (["--config=configs/none.py"], "configs/none.py"),
        (["--config=configs/tiny.py:phrase"], "did you mean phrases?"),
        (["--config=configs/tiny.py", "--config.train.stepz=3"], "did you mean train.steps?"),
        (["--config=configs/tiny.py", "--config.train.steps=few"], "--config.train.steps=few"),
        (["--config=configs/tiny.py", "--config.train.steps=-1"], "must be >= 1"),
        (["--config=configs/tiny.py", "--wrokdir=x"], "did you mean workdir?"),
        (["--config=configs/tiny.py", "--beam_size=4"], "did you mean config.decode.beam_size?"),
        (["--config=configs/tiny.py", "--what=4"], "; there are config, workdir, profile"),
        (["--config=configs/tiny.py", "extra"], "'extra' is neither a flag nor a command"),
        (["--config=configs/tiny.py:files"], "config.data.train is empty"),
        (["data", "--config=configs/tiny.py", "--format=xml"], "must be text or json"),
        (["trian", "--config=configs/tiny.py"], "did you mean train?"),
        (["translate"], "--workdir is missing"),
        (["summary", "--config=configs/tiny.py", "--source_length=0"], "must be int above 0"),
        (
            ["summary", "--config=configs/tiny.py", "--memory=much"],
            "--memory=much: must be float above 0",
        ),
        (["translate", "--workdir=/nowhere"], "/nowhere/config.json: no such file"),
        (["score", "--workdir=/nowhere"], "--data is missing, as in --data=PREFIX"),
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


def test_a_file_fault_is_found_before_a_run_directory_is_made(tmp_path, capsys):
    write_split(tmp_path / "train", number_words(1, 5))
    (tmp_path / "train.de").write_text("one line\n")
    flags = [f"--config.data.{s}={tmp_path / 'train'}" for s in ("train", "validation")]
    workdir = tmp_path / "run"
    assert main(["jformer", "--config=configs/tiny.py:files", f"--workdir={workdir}", *flags]) == 2
    assert "has 4 lines and" in capsys.readouterr().err
    assert not workdir.exists()


def test_debug_shows_where_a_mistake_was_found():
    result = run_main("--config=configs/tiny.py:phrase", "--debug")
    assert b"Traceback" in result.stderr
    assert result.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "--input={}/none"], "none: no such file"),
        (["translate", "--input={}"], ": is a directory; a text file is needed there"),
        (["translate", "--prefix={}/none"], "none: no such file"),
        (["translate", "--format=json"], "--format=json: must be text, jsonl or tsv"),
        (
            ["translate", "--config.decode.n_best=2"],
            "--format=text: has one output a line; take jsonl or tsv for n_best",
        ),
        (
            ["translate", "--format=tsv", "--config.decode.n_best=3"],
            "config.decode.n_best=3",
        ),
        (["translate", "--prefixes=x"], "did you mean prefix?"),
        (["translate", "--ensembel=x"], "did you mean ensemble?"),
        (["translate", "--checkpoint=newest"], "checkpoint 'newest' is unknown; there are average"),
        (
            ["translate", "--config.model.d_model=8"],
            "only config.decode.* and config.data.bad_lines can change",
        ),
        (["translate", "--config.decode.beam_sise=2"], "did you mean decode.beam_size?"),
        (["score", "--data={}/none"], "none.en: no such file"),
        (["score", "--data={}/none.tsv"], "none.tsv: no such file"),
        (["score", "--data=x", "--format=csv"], "--format=csv: must be text, jsonl or tsv"),
        (["score", "--data=x", "--input=y"], "--input is no flag of this command"),
        (["evaluate", "--reference=x"], "did you mean references?"),
        (["evaluate", "--format=tsv"], "--format is no flag of this command"),
    ],
)
def test_a_mistake_about_a_run_is_one_line_too(
    trained_workdir, tmp_path, capfd, arguments, message
):
    command, *flags = (argument.replace("{}", str(tmp_path)) for argument in arguments)
    capfd.readouterr()
    assert main(["jformer", command, f"--workdir={trained_workdir}", *flags]) == 2
    told = capfd.readouterr()
    assert message in told.err
    assert told.err.startswith("jformer: ")
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_summary_prints_the_costs_by_module_and_the_memory_of_a_step(capsys):
    arguments = ["summary", "--config=configs/tiny.py", "--target_length=16", "--memory=0.001"]
    small = ["--config.model.num_layers=1", "--config.data.max_length=8"]
    assert main(["jformer", *arguments, *small]) == 0
    lines = capsys.readouterr().out.splitlines()
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


def test_help_names_the_commands_and_every_key(capsys):
    assert main(["jformer", "--help"]) == 0
    text = capsys.readouterr().out
    words = """
        translate score evaluate summary --prefix=FILE --format=text|jsonl|tsv --data=PAIRS
        --references=FILE,FILE --against=RUN[@C] --checkpoint=C --ensemble=RUN[@C],RUN[@C]
        sacrebleu:NAME --config.optimizer.warmup_steps=4000 --config.decode.n_best=1
        --config.decode.search=beam --config.decode.long_texts=cut --config.decode.read_ahead=10000
        --config.decode.alignment_layer=None
    """
    for word in words.split():
        assert word in text


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


def test_the_console_script_is_the_same_program():
    script = os.path.join(os.path.dirname(sys.executable), "jformer")
    output = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    assert output == run_main("--help", text=True).stdout
