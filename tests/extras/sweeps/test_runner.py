"""Sweeps: one of real runs, the others of a small program in the place of each run."""

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jformer.errors import RunError, Stopped
from jformer.extras.sweeps import runner
from jformer.extras.sweeps.points import Point
from jformer.main import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

SWEEP = "tests/extras/sweeps/sweep_of_two.py"
PROGRAM = str(Path(__file__).with_name("small_program.py"))


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path):
    """No process of a test that failed goes on."""
    yield
    for pid in processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


def processes_of(folder):
    """The processes with the folder in their command; this one may have others, of other tests."""
    listed = subprocess.run(["ps", "-eww", "-o", "pid=,args="], capture_output=True, text=True)
    lines = (line.split(maxsplit=1) for line in listed.stdout.splitlines())
    return [int(pid) for pid, command in lines if str(folder) in command]


def begun(folder):
    """How many points have saved something; what is still being written has a longer name."""
    saved = (path for path in folder.glob("*/checkpoints/*") if path.name.isdigit())
    return len({path.parents[1] for path in saved})


def command(folder, flags, *more):
    program = [sys.executable, "-m", "jformer.main", "sweep", SWEEP]
    return [*program, f"--workdir={folder}", *flags, *more]


def table_of(text):
    """The printed table without its last column, the time."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-2]] for line in lines]


def children(pid):
    """The processes that a process has started and that are alive."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def is_alive(pid):
    """A process that has ended may still be listed, until it is waited for."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, "the sweep ended before it could be stopped"
        time.sleep(0.01)


def run_small(folder, steps, *flags, path=SWEEP):
    """Run a sweep in this process, with a small program in the place of each run."""

    def command(point):
        config = json.dumps(dataclasses.asdict(point.config))
        return [sys.executable, PROGRAM, str(point.workdir), str(point.config.train.steps), config]

    files = [f"--config.data.{split}=none" for split in ("train", "validation")]
    of_sweep = [f"--workdir={folder}", f"--config.train.steps={steps}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Point, "command", property(command))
        patch.setattr(Point, "scored_files", [])
        patch.setattr(runner, "PAUSE", 0.01)
        return run(["sweep", path, *of_sweep, *files, *flags])


@pytest.fixture
def sweep(tmp_path):
    small = functools.partial(run_small, tmp_path / "sweep")
    small.folder = tmp_path / "sweep"
    return small


def signal_when(condition, number, pid=None):
    """Send a signal to a process, by default this one, as soon as the condition holds."""

    def wait():
        while not condition():
            time.sleep(0.005)
        os.kill(pid() if pid else os.getpid(), number)

    threading.Thread(target=wait, daemon=True).start()


def log_of(folder, name):
    return (folder / name / "log.txt").read_text()


def test_the_points_of_a_sweep_are_run_and_a_row_each_is_printed(sweep, capsys):
    assert sweep(5, "--jobs=2") == 0
    out, err = capsys.readouterr()
    heading, _, *rows = table_of(out)
    assert [row[0] for row in rows] == ["base", "model.dropout=0.4"]
    assert {row[heading.index("state")] for row in rows} == {"complete"}
    assert {row[heading.index("validation BLEU")] for row in rows} == {"5.00"}
    for name in ("base", "model.dropout=0.4"):
        assert len([line for line in err.splitlines() if f"{name}: " in line]) == 2  # begins, ends


def test_the_same_command_goes_on_with_a_stopped_sweep(sweep, capsys):
    signal_when(lambda: begun(sweep.folder) == 1, signal.SIGTERM)
    with pytest.raises(Stopped):
        sweep(100, "--only=base")
    saved = len([*(sweep.folder / "base" / "checkpoints").iterdir()])
    assert sweep(100, "--only=base") == 0
    assert f"from step {saved}\n" in log_of(sweep.folder, "base")
    out, err = capsys.readouterr()
    assert "base: goes on" in err
    assert len(table_of(out)) == 3


def test_a_point_that_fails_is_reported_and_the_others_go_on(sweep, capsys):
    (sweep.folder / "base").mkdir(parents=True)
    (sweep.folder / "base" / "fails").touch()
    with pytest.raises(RunError, match="1 of 2 points failed: base"):
        sweep(3)
    out, err = capsys.readouterr()
    assert "base: failed: status 1: small_program: it was told to fail" in err
    heading, _, *rows = table_of(out)
    states = [row[heading.index("state")] for row in rows]
    assert states == ["step 0 of 3", "complete"]
    (sweep.folder / "base" / "fails").unlink()
    assert sweep(3) == 0  # tried again


SWEEP_OF_SMALL = """
import sys
from tests.extras.sweeps.test_runner import run_small
run_small(sys.argv[1], int(sys.argv[2]), "--jobs=2")
"""


@pytest.mark.process
def test_ctrl_c_on_a_terminal_lets_every_run_save(sweep):
    """A terminal sends SIGINT to every process of the command's process group."""
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP_OF_SMALL, str(sweep.folder), "10000"],
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: begun(sweep.folder) == 2, process)
    os.killpg(process.pid, signal.SIGINT)
    process.wait()
    for name in ("base", "model.dropout=0.4"):
        assert log_of(sweep.folder, name).splitlines()[-1].endswith("stopped, all is saved")


@pytest.mark.process
def test_a_sweep_killed_half_way_ends_with_a_whole_table(sweep, capsys):
    """kill -9 for the sweep and one of its two processes; the other one goes on by itself."""
    folders = [sweep.folder / name for name in ("base", "model.dropout=0.4")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "hold").touch()
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP_OF_SMALL, str(sweep.folder), "5"], stderr=subprocess.DEVNULL
    )
    wait_for(lambda: begun(sweep.folder) == 2, process)
    of_base, of_other = children(process.pid)
    process.kill()
    os.kill(of_base, signal.SIGKILL)
    process.wait()
    (folders[0] / "hold").unlink()

    def release():
        """Let the other one end only when the sweep has nothing to do but to wait for it."""
        while not (folders[0] / "scores.json").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        (folders[1] / "hold").unlink()

    threading.Thread(target=release, daemon=True).start()
    assert sweep(5, "--jobs=2") == 0
    assert not is_alive(of_other)
    out, err = capsys.readouterr()
    assert "model.dropout=0.4: another process" in err
    assert log_of(sweep.folder, "base") == "from step 0\nfrom step 1\n"
    heading, _, *rows = table_of(out)
    for name, expected in (("state", "complete"), ("validation BLEU", "5.00")):
        assert [row[heading.index(name)] for row in rows] == [expected] * 2
