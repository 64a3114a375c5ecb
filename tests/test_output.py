"""Where lines go: whole ones only, whatever happens to the disk, to the reader, to the process."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

from jformer.errors import Stopped, UserError
from jformer.main import main
from jformer.output import open_output, whole_lines
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


def test_a_closed_input_has_no_lines_and_a_closed_output_is_a_mistake(learnt):
    result = shell(learnt, "TRANSLATE <&-")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    result = shell(learnt, "TRANSLATE >&-", input=b"1 3 7\n")
    assert result.returncode == 2
    assert result.stderr == b"jformer: standard output is closed; set --output=FILE\n"


def test_with_standard_error_closed_what_is_said_is_said_to_nobody(
    job, run, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr("sys.stderr", None)
    capfd.readouterr()
    assert job(lines=["1 3 7 " * 30]) == 0  # a warning otherwise
    sys.stderr.close()
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "out").read_bytes().count(b"\n") == 1


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


def test_a_link_stays_one(job, run, tmp_path):
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    assert job() == 0
    assert (tmp_path / "out").is_symlink()
    assert in_lines((tmp_path / "elsewhere").read_bytes()) == run.translate(FEW)


def test_the_folders_of_the_output_are_made(job, run, tmp_path):
    output = tmp_path / "new" / "folder" / "out"
    assert job(f"--output={output}") == 0
    assert in_lines(output.read_bytes()) == run.translate(FEW)
    assert os.listdir(output.parent) == ["out"]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("in/out", "in/out: cannot be written (Not a directory)"),
        ("folder", "folder: is a directory; a file is needed there"),
        ("closed/out", "closed/out: cannot be written (Permission denied)"),
    ],
)
def test_a_place_that_cannot_be_written_is_told_before_the_model_is_loaded(
    learnt, job, tmp_path, capfd, output, message
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "closed").mkdir(mode=0o500)
    if output.startswith("closed") and os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("to this user no folder is closed")
    shutil.copy(learnt / "config.json", tmp_path)  # and there is no model
    capfd.readouterr()
    assert job(f"--output={tmp_path / output}", workdir=tmp_path) == 2
    assert capfd.readouterr().err == f"jformer: --output={tmp_path}/{message}\n"


# ---- a full disk


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
        told = f"jformer: --output={output}: is read by this command, too; choose another file\n"
        assert capfd.readouterr().err == told
    assert (tmp_path / name).read_bytes() == as_file(FEW)


def test_a_full_device_is_one_line(job, capfd):
    capfd.readouterr()
    assert job("--output=/dev/full") == 1
    assert capfd.readouterr().err == "jformer: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    ("flags", "cut", "count"),
    [
        (["--format=text"], b"one one four zero", 150),
        (["--format=jsonl"], b'{"line": 20, ', 25),
        # The second output of a line: a reader would miss it, so the line is done again.
        (["--format=tsv", "--config.decode.n_best=2"], b"\n20\t2\t", 25),
    ],
)
def test_on_a_full_disk_whole_lines_stay_and_the_same_command_goes_on(
    job, tmp_path, capfd, flags, cut, count
):
    # One line at a time, so that all of them are the same to the last digit, however often it is
    # begun.
    flags = [*flags, ONE_BY_ONE]
    lines = LINES[:count]
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    assert job(*flags, lines=lines) == 0
    expected = out.read_bytes()
    out.unlink()
    size = expected.index(cut) + 5
    capfd.readouterr()
    assert disk_full_at(size, lambda: job(*flags, lines=lines)) == 1
    assert capfd.readouterr().err == "jformer: [Errno 27] File too large\n"
    written = partial.read_bytes()
    assert written == expected[: expected.rindex(b"\n", 0, size) + 1]
    assert not out.exists()
    # What was done is not done again.
    partial.write_bytes(written.replace(b"zero zero zero", b"DONE", 1) + b"and half a li")
    assert job(*flags, lines=lines) == 0
    assert out.read_bytes() == expected.replace(b"zero zero zero", b"DONE", 1)
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


# ---- a job that is stopped


def test_a_job_that_is_stopped_goes_on_behind_its_last_line(learnt, run, tmp_path):
    (tmp_path / "in").write_bytes(as_file(LINES * 3))
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    arguments = [sys.executable, "-m", "jformer.main", *command(learnt, tmp_path), ONE_BY_ONE]
    done = 0
    for number, status, told in (
        (signal.SIGKILL, -9, ""),
        (signal.SIGTERM, 143, "jformer: stopped by SIGTERM; "),
        (signal.SIGINT, 130, "jformer: stopped by SIGINT; "),
    ):
        options = {"stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(arguments, **options) as process:
            while not (partial.exists() and partial.read_bytes().count(b"\n") > done + 20):
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.001)
            process.send_signal(number)
            assert process.wait() == status
            end = "what is written is whole; the same command goes on\n" if told else ""
            assert process.stderr.read() == told + end
        done = partial.read_bytes().count(b"\n")
        assert done < len(LINES)
        if not told:
            with partial.open("ab") as file:
                file.write(b"half a li")
    partial.write_bytes(b"DONE\n" + partial.read_bytes().split(b"\n", 1)[1])
    assert main(["jformer", *command(learnt, tmp_path), ONE_BY_ONE]) == 0
    lines = in_lines(out.read_bytes())
    assert len(lines) == 3 * len(LINES)
    assert lines[300:] == (run.translate(LINES[:1]) + lines[1:300]) * 2  # nothing stopped these
    assert lines[0] == "DONE"  # and not again
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_only_the_same_command_goes_on_with_a_file(job, learnt, tmp_path, capfd):
    lines = LINES[:150]
    assert job(ONE_BY_ONE, lines=lines) == 0
    expected = (tmp_path / "out").read_bytes()
    (tmp_path / "out").unlink()
    assert disk_full_at(2000, lambda: job(ONE_BY_ONE, lines=lines)) == 1
    before = {name: (tmp_path / name).read_bytes() for name in ("out.partial", "out.job")}
    other = shutil.copytree(learnt, tmp_path / "other")
    (tmp_path / "prefix").write_text("\n" * len(lines))
    (tmp_path / "terms").write_text("a\tb\n")
    for flags, options, name in (
        (["--config.decode.beam_size=1"], {}, "config.decode.beam_size"),
        (["--checkpoint=150"], {}, "step, steps, checkpoint, params_sha256"),
        ([f"--ensemble={other}"], {}, "ensemble, params_sha256"),
        ([f"--prefix={tmp_path / 'prefix'}"], {}, "prefix"),
        ([f"--terms={tmp_path / 'terms'}"], {}, "terms"),
        (["--format=jsonl"], {}, "format"),
        ([], {"workdir": other}, "workdir"),
        ([], {"lines": [*lines[:-1], "9 9"]}, "input"),
    ):
        capfd.readouterr()
        assert job(*flags, **{"lines": lines, **options}) == 2
        told = f"out.partial: was begun by another command, with another {name}; remove it"
        assert told in capfd.readouterr().err
        assert {name: (tmp_path / name).read_bytes() for name in before} == before
    # These change no line.
    more = ["--config.decode.batch_size=1", "--config.decode.read_ahead=4"]
    assert job(*more, "--config.data.bad_lines=replace", lines=lines) == 0
    assert (tmp_path / "out").read_bytes() == expected


@pytest.mark.parametrize("content", [b"", b'{"input": ', b"\xff", b"[]", b"[" * 10_000])
def test_a_damaged_note_of_a_job_is_named(learnt, job, tmp_path, capfd, content):
    (tmp_path / "out.partial").write_bytes(b"done\n")
    (tmp_path / "out.job").write_bytes(content)
    capfd.readouterr()
    assert job() == 2
    told = capfd.readouterr().err
    assert told.startswith(f"jformer: {tmp_path / 'out.job'}: is ")
    assert told.endswith(f"; remove it and {tmp_path / 'out.partial'} to begin anew\n")
    assert told.count("\n") == 1
    assert (tmp_path / "out.partial").read_bytes() == b"done\n"
    assert (tmp_path / "out.job").read_bytes() == content


@pytest.mark.parametrize("name", ["out.partial", "out.job"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_somebody_else_has_put_in_the_place_of_a_part_is_not_written_to(
    learnt, job, tmp_path, capfd, kind, name
):
    partial, theirs = tmp_path / name, tmp_path / "theirs"
    theirs.write_bytes(b"theirs\n")
    {"link": lambda: partial.symlink_to(theirs), "pipe": lambda: os.mkfifo(partial)}.get(
        kind, partial.mkdir
    )()
    shutil.copy(learnt / "config.json", tmp_path)  # and there is no model
    capfd.readouterr()
    assert job(workdir=tmp_path) == 2
    told = f"jformer: {partial}: is no regular file; remove it, or choose another --output\n"
    assert capfd.readouterr().err == told
    assert theirs.read_bytes() == b"theirs\n"


def test_a_stream_cannot_be_gone_on_with(job, learnt, tmp_path, monkeypatch, capfd):
    """Its lines are gone, so the command begins anew; but not over what a file's job has done."""

    def from_stream(file):
        monkeypatch.setattr("sys.stdin", file)
        arguments = ["translate", f"--workdir={learnt}", f"--output={tmp_path / 'out'}"]
        return main(["jformer", *arguments, ONE_BY_ONE])

    partial = tmp_path / "out.partial"
    assert job(ONE_BY_ONE) == 0  # now all is compiled, and needs no room on a full disk
    for size, first in ((100, 0), (200, 1)):
        (tmp_path / "stream").write_bytes(as_file(LINES[first : first + 40]))
        with open(tmp_path / "stream") as file:
            assert disk_full_at(size, lambda file=file: from_stream(file)) == 1
        assert in_lines(partial.read_bytes())[:2] == KNOWN.targets[first : first + 2]
        assert size - 25 < partial.stat().st_size < size
    assert disk_full_at(2000, lambda: job(ONE_BY_ONE, lines=LINES[:150])) == 1
    written = partial.read_bytes()
    capfd.readouterr()
    with open(tmp_path / "stream") as file:
        assert from_stream(file) == 2
    assert "was begun by another command, with another input" in capfd.readouterr().err
    assert partial.read_bytes() == written


def test_a_flag_that_is_left_out_the_second_time_is_named(tmp_path):
    def stopped():
        with open_output(str(tmp_path / "out"), {"input": 1, "prefix": 2}, "text") as output:
            output.write("one\n")
            raise Stopped(signal.SIGTERM)

    with pytest.raises(Stopped):
        stopped()
    with (
        pytest.raises(UserError, match="by another command, with another prefix; remove it"),
        open_output(str(tmp_path / "out"), {"input": 1}, "text"),
    ):
        pass


def test_two_commands_do_not_write_one_file(tmp_path):
    with open_output(str(tmp_path / "out"), {"a": 1}, "text") as first:
        with (
            pytest.raises(UserError, match=r"out\.partial: another command is writing it"),
            open_output(str(tmp_path / "out"), {"a": 1}, "text"),
        ):
            pass
        first.write("one\n")
    assert (tmp_path / "out").read_bytes() == b"one\n"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("format", "content", "found"),
    [
        ("text", "", (0, 0)),
        ("text", "half", (0, 0)),
        ("text", "a\n\nb\nhalf", (3, 5)),
        ("jsonl", '{"line": 1}\n{"li', (1, 12)),
        ("tsv", "", (0, 0)),
        ("tsv", "1\t1\n1\t2", (0, 0)),
        ("tsv", "1\t1\n1\t2\n2\t1\n", (1, 8)),
        ("tsv", "1\t1\n1\t2\n2\t1\n3", (1, 8)),
        ("tsv", "1\t1\n2\t1\n2\t2\n11\t1\n", (2, 12)),
    ],
)
def test_lines_are_whole_with_all_of_their_outputs(tmp_path, format, content, found):
    (tmp_path / "x").write_text(content)
    assert whole_lines(tmp_path / "x", format) == found
