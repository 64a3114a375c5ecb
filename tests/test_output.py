"""Where lines go, and how a command resumes after a full disk, a signal or a kill."""

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

from jformer.errors import RunError, UserError
from jformer.main import main
from jformer.output import open_output
from tests.conftest import number_words, write_split
from tests.test_stream import KNOWN, ONE_BY_ONE, as_file, in_lines, learnt, run

pytestmark = pytest.mark.process

__all__ = ["learnt", "run"]  # fixtures

LINES = KNOWN.sources
FEW = LINES[:8]


@pytest.fixture
def job(learnt, tmp_path):
    """`main translate` from `in` to `out`, all in `tmp_path`; it returns the exit status."""

    def job(*flags, workdir=learnt, lines=FEW):
        (tmp_path / "in").write_bytes(as_file(lines))
        return main(["jformer", *command(workdir, tmp_path), *flags])

    return job


def command(workdir, folder):
    files = [f"--input={folder / 'in'}", f"--output={folder / 'out'}"]
    return ["translate", f"--workdir={workdir}", *files]


def shell(workdir, text, **options):
    """A line of bash, in which `TRANSLATE` stands for the command."""
    translate = f"{sys.executable} -m jformer.main translate --workdir={workdir}"
    line = text.replace("TRANSLATE", translate)
    return subprocess.run(["bash", "-c", line], capture_output=True, **options)


def disk_full_at(size, act):
    """What `act` returns while no file can be larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        return act()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# ---- pipes and descriptors


def test_who_reads_may_leave_at_any_time(learnt, run, tmp_path):
    (tmp_path / "in").write_bytes(as_file(LINES))
    line = f"TRANSLATE {ONE_BY_ONE} < {tmp_path / 'in'} | head -1"
    result = shell(learnt, f"{line}; exit ${{PIPESTATUS[0]}}")
    assert result.stdout.decode() == run.translate(LINES[:1])[0] + "\n"
    assert result.stderr == b""
    assert result.returncode == 141


def test_a_device_or_a_pipe_is_written_to_as_it_is(job, run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["timeout", "100", "cat", pipe], stdout=subprocess.PIPE) as reader:
        assert job(f"--output={pipe}") == 0
        assert in_lines(reader.stdout.read()) == run.translate(FEW)
    assert job("--output=/dev/null") == 0
    assert sorted(os.listdir(tmp_path)) == ["in", "pipe"]


def test_a_pipe_is_read_as_standard_input_is(job, run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writing = ["timeout", "100", "bash", "-c", f"cat > {pipe}"]
    with subprocess.Popen(writing, stdin=subprocess.PIPE) as writer:
        writer.stdin.write(as_file(FEW))
        writer.stdin.close()
        assert job(f"--input={pipe}") == 0
    assert in_lines((tmp_path / "out").read_bytes()) == run.translate(FEW)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("in/out", "Not a directory"),
        ("folder", "Is a directory"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(
    learnt, job, tmp_path, capfd, output, reason
):
    (tmp_path / "folder").mkdir()
    shutil.copy(learnt / "config.json", tmp_path)  # and there is no model
    capfd.readouterr()
    assert job(f"--output={tmp_path / output}", workdir=tmp_path) == 2
    [error] = capfd.readouterr().err.splitlines()
    assert f"--output={tmp_path / output}: " in error
    assert reason in error


@pytest.mark.parametrize("name", ["in", "prefix", "pairs.en", "pairs.de"])
def test_a_file_that_is_read_is_not_written_to(learnt, tmp_path, monkeypatch, capfd, name):
    """Nor under another name."""
    monkeypatch.chdir(tmp_path)
    for file in ("in", "prefix", "pairs.en", "pairs.de"):
        (tmp_path / file).write_bytes(as_file(FEW))
    (tmp_path / "link").symlink_to(tmp_path / name)
    shutil.copy(learnt / "config.json", tmp_path)  # and there is no model
    command = ["score", "--data=pairs"] if "pairs" in name else ["translate"]
    files = [] if "pairs" in name else ["--input=in", "--prefix=prefix"]
    capfd.readouterr()
    for output in (name, "link", f"../{tmp_path.name}/{name}"):
        assert main(["jformer", *command, *files, "--workdir=.", f"--output={output}"]) == 2
        [error] = capfd.readouterr().err.splitlines()
        assert f"--output={output}: " in error
        assert "input" in error
    assert (tmp_path / name).read_bytes() == as_file(FEW)


# ---- a full disk


def test_a_full_device_is_one_line_with_the_output(job, capfd):
    capfd.readouterr()
    assert job("--output=/dev/full") == 1
    [error] = capfd.readouterr().err.splitlines()
    assert "--output=/dev/full: " in error
    assert "No space left on device" in error


@pytest.mark.parametrize(
    ("flags", "cut", "count"),
    [
        (["--format=text"], b"one one four zero", 150),
        (["--format=jsonl"], b'{"line": 20, ', 25),
        # The second output of a line: a reader would miss it, so the line is done again.
        (["--format=tsv", "--config.decode.n_best=2"], b"\n20\t2\t", 25),
    ],
)
def test_on_a_full_disk_whole_lines_stay_and_the_same_command_resumes(
    job, tmp_path, capfd, flags, cut, count
):
    # One line at a time, so that all of them are the same to the last digit, however often the
    # command starts.
    flags = [*flags, ONE_BY_ONE]
    lines = LINES[:count]
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    assert job(*flags, lines=lines) == 0
    expected = out.read_bytes()
    out.unlink()
    capfd.readouterr()
    assert disk_full_at(len(expected) * 3 // 4, lambda: job(*flags, lines=lines)) == 1
    [error] = capfd.readouterr().err.splitlines()
    assert f"--output={out}: " in error
    assert not out.exists()
    head, _, written = partial.read_bytes().partition(b"\n")
    assert written
    assert expected.startswith(written)
    # Wherever it is cut, what was done is not done again.
    written = expected[: expected.index(cut) + 5].replace(b"zero zero zero", b"DONE", 1)
    partial.write_bytes(head + b"\n" + written)
    assert job(*flags, lines=lines) == 0
    assert out.read_bytes() == expected.replace(b"zero zero zero", b"DONE", 1)
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def begin(job, partial, content=b"", **options):
    """Start a job that fails before its first line, and append some lines to FILE.partial."""

    def fail(*arguments):
        raise RunError("before the first line")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jformer.stream.translate_stream", fail)
        assert job(ONE_BY_ONE, *options.pop("flags", []), **options) == 1
    with partial.open("ab") as file:
        file.write(content)


def test_a_command_that_was_killed_while_it_completed_the_file_completes_it(job, tmp_path):
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    lines = b"DONE\n" * len(FEW)
    begin(job, partial, lines)
    out.write_bytes(lines[:12])
    assert job(ONE_BY_ONE) == 0
    assert out.read_bytes() == lines
    assert not partial.exists()


# ---- a job that is stopped


def test_a_job_that_is_stopped_resumes_after_its_last_line(learnt, run, tmp_path):
    (tmp_path / "in").write_bytes(as_file(LINES * 3))
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    arguments = [sys.executable, "-m", "jformer.main", *command(learnt, tmp_path), ONE_BY_ONE]
    done = 0
    for number, status in ((signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)):
        options = {"stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(arguments, **options) as process:
            while not (partial.exists() and partial.read_bytes().count(b"\n") > done + 20):
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.001)
            process.send_signal(number)
            assert process.wait() == status
            error = process.stderr.read().splitlines()
        if number == signal.SIGKILL:
            with partial.open("ab") as file:
                file.write(b"half a li")
        else:
            assert partial.read_bytes().endswith(b"\n")
            assert len(error) == 1
            assert signal.Signals(number).name in error[0]
            assert "resume" in error[0]
        assert not out.exists()
        done = partial.read_bytes().count(b"\n")
        assert done < len(LINES)
    head, _, rest = partial.read_bytes().split(b"\n", 2)
    partial.write_bytes(head + b"\nDONE\n" + rest)
    assert main(["jformer", *command(learnt, tmp_path), ONE_BY_ONE]) == 0
    lines = in_lines(out.read_bytes())
    assert len(lines) == 3 * len(LINES)
    assert lines[300:] == (run.translate(LINES[:1]) + lines[1:300]) * 2  # nothing stopped these
    assert lines[0] == "DONE"  # and not again
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_only_the_same_command_resumes_a_file(job, run, learnt, tmp_path, capfd):
    partial = tmp_path / "out.partial"
    begin(job, partial, b"DONE\n")
    before = partial.read_bytes()
    other = shutil.copytree(learnt, tmp_path / "other")
    (tmp_path / "prefix").write_text("\n" * len(FEW))
    for flags, options in (
        (["--config.decode.beam_size=1"], {}),
        (["--checkpoint=150"], {}),
        ([f"--ensemble={other}"], {}),
        ([f"--prefix={tmp_path / 'prefix'}"], {}),
        (["--config.decode.constraint=terms(keep='7')"], {}),
        (["--format=jsonl"], {}),
        ([], {"workdir": other}),
        ([], {"lines": [*FEW[:-1], "9 9"]}),
    ):
        capfd.readouterr()
        assert job(*flags, **options) == 2
        [error] = capfd.readouterr().err.splitlines()
        assert str(partial) in error
        assert "remove" in error
        assert "--output" in error
        assert partial.read_bytes() == before
    # These change no line.
    more = ["--config.decode.batch_size=1", "--config.decode.read_ahead=4"]
    assert job(*more, "--config.data.bad_lines=replace") == 0
    lines = in_lines((tmp_path / "out").read_bytes())
    assert lines[0] == "DONE"
    assert lines[1:] == run.translate(FEW)[1:]


@pytest.mark.parametrize("content", [b"theirs\n", b"{}\n"])
def test_a_file_that_no_job_began_is_not_written_to(job, tmp_path, capfd, content):
    partial = tmp_path / "out.partial"
    partial.write_bytes(content)
    capfd.readouterr()
    assert job() == 2
    [error] = capfd.readouterr().err.splitlines()
    assert str(partial) in error
    assert partial.read_bytes() == content


@pytest.mark.parametrize("size", [0, 20])
def test_a_job_that_was_killed_within_its_own_line_starts_again(job, run, tmp_path, size):
    partial = tmp_path / "out.partial"
    begin(job, partial)
    partial.write_bytes(partial.read_bytes()[:size])
    assert job() == 0
    assert in_lines((tmp_path / "out").read_bytes()) == run.translate(FEW)


def test_a_stream_cannot_be_resumed_and_is_written_directly(
    job, run, learnt, tmp_path, monkeypatch
):
    begin(job, tmp_path / "out.partial", b"DONE\n")
    before = (tmp_path / "out.partial").read_bytes()
    with open(tmp_path / "in") as file:
        monkeypatch.setattr("sys.stdin", file)
        arguments = ["translate", f"--workdir={learnt}", f"--output={tmp_path / 'out'}"]
        assert main(["jformer", *arguments]) == 0
    assert in_lines((tmp_path / "out").read_bytes()) == run.translate(FEW)
    assert (tmp_path / "out.partial").read_bytes() == before


def test_two_commands_do_not_write_one_file(tmp_path):
    out = str(tmp_path / "out")
    with open_output(out, {"a": 1}, "text") as first:
        with (
            pytest.raises(UserError, match=re.escape(f"{out}.partial")),
            open_output(out, {"a": 1}, "text"),
        ):
            pass
        first.write("one\n")
    assert (tmp_path / "out").read_bytes() == b"one\n"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("format", "content", "done", "kept"),
    [
        ("text", "half", 0, ""),
        ("text", "a\n\nb\nhalf", 3, "a\n\nb\n"),
        ("jsonl", '{"line": 1}\n{"li', 1, '{"line": 1}\n'),
        # The last input may lack some of its outputs.
        ("tsv", "1\t1\n1\t2", 0, ""),
        ("tsv", "1\t1\n1\t2\n2\t1\n", 1, "1\t1\n1\t2\n"),
        ("tsv", "1\t1\n1\t2\n2\t1\n3", 1, "1\t1\n1\t2\n"),
        ("tsv", "1\t1\n2\t1\n2\t2\n11\t1\n", 2, "1\t1\n2\t1\n2\t2\n"),
    ],
)
def test_inputs_with_all_of_their_outputs_are_done(tmp_path, format, content, done, kept):
    with (
        contextlib.suppress(RunError),
        open_output(str(tmp_path / "x"), {"a": 1}, format) as output,
    ):
        output.write(content)
        raise RunError
    with open_output(str(tmp_path / "x"), {"a": 1}, format) as output:
        assert output.done == done
    assert (tmp_path / "x").read_text() == kept


def test_scores_resume_too(learnt, tmp_path, capfd):
    write_split(tmp_path / "pairs", number_words(100, 107))
    arguments = ["score", f"--workdir={learnt}", f"--data={tmp_path / 'pairs'}"]
    arguments += [f"--output={tmp_path / 'out'}", "--format=jsonl"]

    def job(*flags):
        return main(["jformer", *arguments, *flags])

    def fail(*given):
        raise RunError("before the first line")

    assert job(ONE_BY_ONE) == 0
    expected = (tmp_path / "out").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jformer.stream.score_stream", fail)
        assert job(ONE_BY_ONE) == 1
    done = b"".join(expected.splitlines(keepends=True)[:3]).replace(b"one", b"DONE")
    with (tmp_path / "out.partial").open("ab") as file:
        file.write(done + b'{"line"')
    capfd.readouterr()
    assert job(ONE_BY_ONE) == 0
    assert (tmp_path / "out").read_bytes() == done + expected[len(done) - done.count(b"DONE") :]
    assert "line 3" in capfd.readouterr().err  # the total is of the others
