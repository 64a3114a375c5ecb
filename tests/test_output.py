"""Where lines go, and how a command resumes after a full disk, a signal or a kill."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from jformer.errors import RunError
from jformer.main import main
from jformer.stream import open_output
from tests.test_stream import KNOWN, ONE_BY_ONE, WORKDIR, as_file, in_lines, run

pytestmark = pytest.mark.process

__all__ = ["run"]  # a fixture

LINES = KNOWN.sources
FEW = LINES[:8]


@pytest.fixture
def job(tmp_path):
    """`main translate` from `in` to `out`, all in `tmp_path`; it returns the exit status."""

    def job(*flags, workdir=WORKDIR, lines=FEW):
        (tmp_path / "in").write_bytes(as_file(lines))
        return main(["jformer", *command(workdir, tmp_path), *flags])

    return job


def command(workdir, folder):
    files = [f"--input={folder / 'in'}", f"--output={folder / 'out'}"]
    return ["translate", f"--workdir={workdir}", *files]


def disk_full_at(size, act):
    """What `act` returns while no file can be larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        return act()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def error_line(capfd):
    [error] = capfd.readouterr().err.splitlines()
    return error


# ---- pipes


def test_who_reads_may_leave_at_any_time(run, tmp_path):
    (tmp_path / "in").write_bytes(as_file(LINES))
    translate = f"{sys.executable} -m jformer.main translate --workdir={WORKDIR} {ONE_BY_ONE}"
    line = f"{translate} < {tmp_path / 'in'} | head -1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", line], capture_output=True)
    assert result.stdout.decode() == run.translate(LINES[:1])[0] + "\n"
    assert (result.stderr, result.returncode) == (b"", 141)


# ---- an output that cannot be written


def test_an_input_is_not_written_to_under_any_name(job, tmp_path, capfd):
    link = tmp_path / "link"
    link.symlink_to("in")
    assert job(f"--output={link}") == 2
    assert f"--output={link}: " in error_line(capfd)
    assert (tmp_path / "in").read_bytes() == as_file(FEW)


def test_on_a_full_disk_whole_lines_stay_and_the_same_command_resumes(job, tmp_path, capfd):
    # One line at a time, so that scores have the same digits however often the command starts.
    flags, lines = ["--format=jsonl", ONE_BY_ONE], LINES[:25]
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    assert job(*flags, lines=lines) == 0
    expected = out.read_bytes()
    out.unlink()
    capfd.readouterr()
    assert disk_full_at(len(expected) * 3 // 4, lambda: job(*flags, lines=lines)) == 1
    assert f"--output={out}: " in error_line(capfd)
    assert not out.exists()
    head, _, written = partial.read_bytes().partition(b"\n")
    assert written
    assert expected.startswith(written)
    # Wherever it is cut, finished lines are not translated again.
    cut = expected.index(b'{"line": 20, ') + 5
    written = expected[:cut].replace(b"one zero zero", b"DONE", 1)
    partial.write_bytes(head + b"\n" + written)
    assert job(*flags, lines=lines) == 0
    assert "after line 19" in capfd.readouterr().err
    assert out.read_bytes() == expected.replace(b"one zero zero", b"DONE", 1)
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


# ---- a job that is stopped


def begin(job, partial, content=b""):
    """Start a job that fails before its first line, and append some lines to FILE.partial."""

    def fail(*arguments):
        raise RunError("before the first line")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jformer.stream.translate_stream", fail)
        assert job() == 1
    with partial.open("ab") as file:
        file.write(content)


def test_a_job_that_is_stopped_resumes_after_its_last_line(run, tmp_path):
    lines = LINES * 3
    (tmp_path / "in").write_bytes(as_file(lines))
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    arguments = [sys.executable, "-m", "jformer.main", *command(WORKDIR, tmp_path), ONE_BY_ONE]
    done = 0
    # If pytest runs in the background of a shell, it ignores SIGINT, and so would the command.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, status in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
        with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
            while not (partial.exists() and partial.read_bytes().count(b"\n") > done + 20):
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.001)
            process.send_signal(number)
            assert process.wait() == status
            error = process.stderr.read()
        assert not out.exists()
        done = partial.read_bytes().count(b"\n")
        assert done < len(lines)
        with partial.open("ab") as file:
            file.write(b"half a li")
    assert "rerun" in error
    head, _, rest = partial.read_bytes().split(b"\n", 2)
    partial.write_bytes(head + b"\nDONE\n" + rest)
    assert main(["jformer", *command(WORKDIR, tmp_path), ONE_BY_ONE]) == 0
    assert in_lines(out.read_bytes()) == ["DONE", *run.translate(lines)[1:]]
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_only_the_same_command_resumes_a_file(job, run, tmp_path, capfd):
    partial = tmp_path / "out.partial"
    begin(job, partial, b"DONE\n")
    before = partial.read_bytes()
    (tmp_path / "prefix").write_text("\n" * len(FEW))
    capfd.readouterr()
    for flags, options in (
        (["--config.decode.beam_size=1"], {}),
        ([f"--prefix={tmp_path / 'prefix'}"], {}),
        (["--format=jsonl"], {}),
        ([], {"lines": [*FEW[:-1], "9 9"]}),
    ):
        assert job(*flags, **options) == 2
        assert str(partial) in error_line(capfd)
        assert partial.read_bytes() == before
    # These change no line.
    more = ["--config.decode.batch_size=1", "--config.decode.read_ahead=4"]
    assert job(*more) == 0
    lines = in_lines((tmp_path / "out").read_bytes())
    assert lines == ["DONE", *run.translate(FEW)[1:]]


@pytest.mark.parametrize(
    ("content", "done", "kept"),
    [('{"a', 0, ""), ('{"a": 1}\nhalf', 0, ""), ('{"a": 1}\na\n\nb\nhalf', 3, "a\n\nb\n")],
)
def test_whole_lines_are_done(tmp_path, content, done, kept):
    (tmp_path / "x.partial").write_text(content)
    for _ in range(2):  # a job that fails again loses nothing
        with (
            contextlib.suppress(RunError),
            open_output(str(tmp_path / "x"), {"a": 1}) as (_, lines),
        ):
            assert lines == done
            raise RunError
    with open_output(str(tmp_path / "x"), {"a": 1}):
        pass
    assert (tmp_path / "x").read_text() == kept
