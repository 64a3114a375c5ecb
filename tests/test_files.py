"""Files: whole inside run directories; what a user names is opened as it is."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jformer.config import Config, write_config
from jformer.errors import UserError
from jformer.files import new_folder, replace_file
from jformer.main import main
from tests.test_output import disk_full_at


def test_on_a_full_disk_the_old_content_stays_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old")
    with pytest.raises(OSError, match="File too large"):
        disk_full_at(1000, lambda: replace_file(path, b"new" * 1000))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_kill_leaves_a_whole_file(tmp_path):
    """Killed at moments that move through the writes; what a kill leaves is written over."""
    program = (
        "import sys, pathlib\n"
        "from jformer.files import replace_file\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "for number in range(1_000_000):\n"
        "    replace_file(path, b'%07d' % number * 100_000)\n"
    )
    path = tmp_path / "file"
    for number in range(5):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", program, str(path)]) as process:
            while not path.exists():
                assert process.poll() is None
            time.sleep(0.003 * number)
            process.send_signal(signal.SIGKILL)
        content = path.read_bytes()
        assert len(content) == 700_000
        assert content == content[:7] * 100_000
    replace_file(path, b"whole")
    assert os.listdir(tmp_path) == ["file"]


@pytest.fixture
def write(tmp_path, request, monkeypatch):
    """`main report --output=` or `summary --plot=` into a file; it returns the exit status."""
    if request.param == "report":
        pytest.importorskip("plotly", reason="needs the extra report")
        (tmp_path / "base").mkdir()
        write_config(Config(), tmp_path / "base" / "config.json")
        command, flag = ["report", str(tmp_path / "base")], "output"
    else:
        pytest.importorskip("matplotlib", reason="needs the extra plot")
        # What the picture is beside, and takes seconds to compile.
        monkeypatch.setattr("jformer.extras.cost.summary", lambda *_: [])
        command, flag = ["summary", "--config=configs/tiny.py"], "plot"

    def write(path):
        return main(["jformer", *command, f"--{flag}={path}"])

    write.flag, write.end = flag, {"output": b"</html>\n", "plot": b"</svg>\n"}[flag]
    return write


both = pytest.mark.parametrize("write", ["report", "summary"], indirect=True)


@both
def test_a_pipe_that_a_user_names_is_written_through(write, tmp_path):
    pipe = tmp_path / "pipe.svg"
    os.mkfifo(pipe)
    with (tmp_path / "read").open("wb") as read:
        reader = subprocess.Popen(["timeout", "60", "cat", pipe], stdout=read)
    assert write(pipe) == 0
    assert reader.wait() == 0
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert (tmp_path / "read").read_bytes().endswith(write.end)


@both
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_that_a_user_names_stays_one_and_its_target_is_written(write, tmp_path, exists):
    target, link = tmp_path / "folder" / "target.svg", tmp_path / "link.svg"
    target.parent.mkdir()
    if exists:
        target.write_text("old")
    link.symlink_to("folder/target.svg")
    assert write(link) == 0
    assert link.is_symlink()
    assert target.read_bytes().endswith(write.end)
    assert os.listdir(target.parent) == ["target.svg"]


@both
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("folder.svg", "Is a directory"),
        ("file/x.svg", "Not a directory"),
        ("loop.svg", "Too many levels of symbolic links"),
    ],
)
def test_a_path_that_cannot_be_written_is_one_line_before_any_work(
    write, tmp_path, capfd, monkeypatch, name, reason
):
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop.svg").symlink_to("loop.svg")
    # The work, which must not begin:
    monkeypatch.setattr("jformer.extras.views.report.read_run", None)
    monkeypatch.setattr("jformer.extras.cost.summary", None)
    before = sorted(tmp_path.iterdir())
    capfd.readouterr()
    assert write(tmp_path / name) == 2
    printed = capfd.readouterr()
    [error] = printed.err.splitlines()
    assert f"--{write.flag}={tmp_path / name}: " in error
    assert reason in error
    assert printed.out == ""
    assert sorted(tmp_path.iterdir()) == before


@both
def test_the_folders_of_a_file_that_a_user_names_are_made(write, tmp_path):
    path = tmp_path / "new" / "folder" / "x.svg"
    assert write(path) == 0
    assert path.read_bytes().endswith(write.end)
    assert os.listdir(path.parent) == ["x.svg"]


def test_a_page_that_does_not_fit_on_the_disk_is_one_line_with_exit_status_1(tmp_path, capfd):
    pytest.importorskip("plotly", reason="needs the extra report")
    (tmp_path / "base").mkdir()
    write_config(Config(), tmp_path / "base" / "config.json")
    page = tmp_path / "page.html"
    arguments = ["report", str(tmp_path / "base"), f"--output={page}"]
    assert disk_full_at(1000, lambda: main(["jformer", *arguments])) == 1
    [error] = capfd.readouterr().err.splitlines()
    assert f"--output={page}: " in error
    assert "File too large" in error


def test_a_new_folder_is_removed_if_the_work_fails(tmp_path):
    name = str(tmp_path / "made")

    def fill(then):
        with new_folder("output", name) as folder:
            (folder / "file").write_text("x")
            then()

    with pytest.raises(ZeroDivisionError):
        fill(lambda: 1 / 0)
    assert not list(tmp_path.iterdir())
    (tmp_path / "made").mkdir()  # an empty one is filled
    fill(lambda: None)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "made"]
    with pytest.raises(UserError, match=f"--output={name}"):
        fill(lambda: None)
    assert (tmp_path / "made" / "file").exists()


def test_export_makes_the_folders_above_the_one_that_it_is_given(tmp_path):
    pytest.importorskip("safetensors", reason="needs the extra export")
    run = Path(__file__).with_name("stored_run") / "run"
    output = tmp_path / "new" / "folder"
    flags = [f"--workdir={run}", "--format=safetensors", f"--output={output}"]
    assert main(["jformer", "export", *flags]) == 0
    assert (output / "model.safetensors").exists()
    assert os.listdir(output.parent) == ["folder"]
