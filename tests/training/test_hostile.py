"""A checkpoint from elsewhere is refused in a line, before memory or time is spent on it."""

import json
import os
import re
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import tensorstore

from jformer.checksums import SUMS, write_sums
from jformer.main import main

pytestmark = pytest.mark.process


@pytest.fixture
def run(trained_workdir, tmp_path):
    return shutil.copytree(trained_workdir, tmp_path / "run")


@pytest.fixture(autouse=True)
def limits():
    """What waits for a pipe would never come back, and what reads /dev/zero take all memory."""

    def late(*_):
        raise TimeoutError("it is read for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    memory = resource.getrlimit(resource.RLIMIT_AS)
    if (pages := Path("/proc/self/statm")).exists():  # Linux only
        now = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + 8 * 2**30, memory[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, memory)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def refusal(run, capsys, *command) -> str:
    """The one line with which such a command ends."""
    (run / "in.txt").write_text("4 2 0\n")
    command = command or ("translate", f"--input={run / 'in.txt'}", f"--output={run / 'out.txt'}")
    began = time.process_time()
    assert main(["jformer", *command, f"--workdir={run}"]) == 2
    assert time.process_time() - began < 60
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = [line for line in output.err.splitlines() if "checkpoints/12" in line]
    return line


def add_line(line):
    def harm(step):
        with (step / SUMS).open("a") as file:
            file.write(line)

    return harm


def replace(name, make):
    def harm(step):
        (step / name).unlink()
        make(step / name)

    return harm


ZEROS = "0" * 64
HARMS = {
    "a path out of it": (add_line(f"{ZEROS}  ../../config.json\n"), "SHA256SUMS, line .*config"),
    "a device": (add_line(f"{ZEROS}  /dev/zero\n"), "SHA256SUMS, line .*/dev/zero"),
    "a device by a path out of an item": (
        add_line(f"{ZEROS}  params{'/..' * 40}/dev/zero\n"),
        r"SHA256SUMS, line \d+: '0+  params/\.\./\.\.",
    ),
    "no sum": (add_line("hello\n"), r"SHA256SUMS, line \d+.*hello"),
    "a file that is not there": (
        add_line(f"{ZEROS}  params/x\n"),
        "params/x.*SHA256SUMS",
    ),
    "a pipe in place of a file": (replace("params/_METADATA", os.mkfifo), "'params/_METADATA'"),
    "a pipe in place of the sums": (replace(SUMS, os.mkfifo), SUMS),
    "a link to a device": (
        replace("params/_METADATA", lambda path: path.symlink_to("/dev/zero")),
        "'params/_METADATA'",
    ),
    "a link to a device in place of the sums": (
        replace(SUMS, lambda path: path.symlink_to("/dev/zero")),
        SUMS,
    ),
}


@pytest.mark.parametrize("name", HARMS)
def test_a_file_that_is_none_of_the_checkpoints_is_not_read(run, capsys, name):
    harm, message = HARMS[name]
    harm(run / "checkpoints" / "12")
    assert re.search(rf"checkpoints/12: .*{message}", refusal(run, capsys))


def claim(step, **changes):
    """Edit what the file of arrays says of the embedding, with sums that fit."""
    arrays = tensorstore.KvStore.open(
        {"driver": "ocdbt", "base": f"file://{step}/params/"}
    ).result()
    said = json.loads(arrays.read("embedding/.zarray").result().value)
    arrays.write("embedding/.zarray", json.dumps({**said, **changes})).result()
    write_sums(step, "*/**/*")


@pytest.mark.parametrize("command", [(), ("evaluate",)], ids=["translate", "evaluate"])
def test_an_array_that_claims_to_be_huge_is_refused_by_its_shape(run, capsys, command):
    huge = [10**9, 10**6]
    claim(run / "checkpoints" / "12", shape=huge, chunks=huge)
    message = r"params\.embedding\b.*\(1000000000, 1000000\).*\(\d+, 16\)"
    assert re.search(message, refusal(run, capsys, *command))


def test_an_array_in_pieces_larger_than_itself_is_refused(run, capsys):
    """A piece is unpacked whole: 20 GB of zeros are small as a file."""
    claim(run / "checkpoints" / "12", chunks=[50_000, 100_000])
    message = r"12: .*params\.embedding\b.*\(\d+, 16\).*\(50000, 100000\)"
    assert re.search(message, refusal(run, capsys))


def test_a_link_to_a_file_is_followed(run, tmp_path, capsys):
    """As caches of downloads have them: the sums hold for what is read."""
    path = run / "checkpoints" / "12" / "params" / "_METADATA"
    path.rename(tmp_path / "blob")
    path.symlink_to(tmp_path / "blob")
    (run / "in.txt").write_text("4 2 0\n")
    paths = [f"--input={run / 'in.txt'}", f"--output={run / 'out.txt'}", f"--workdir={run}"]
    assert main(["jformer", "translate", *paths]) == 0
