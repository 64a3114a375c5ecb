"""Files: written whole or not at all, and what a user names as what it is."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from jformer import files
from jformer.config import Config, write_config
from jformer.errors import UserError
from jformer.main import main
from tests.test_output import disk_full_at


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
def test_a_device_that_a_user_names_stays_one(write, tmp_path):
    device = tmp_path / "null.svg"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.stat("/dev/null").st_rdev)
        device.write_bytes(b"x")
    except PermissionError:
        pytest.skip("this user makes no devices, or here they do not work")
    before = device.stat()
    assert write(device) == 0
    after = device.stat()
    assert (after.st_mode, after.st_rdev) == (before.st_mode, before.st_rdev)


@both
def test_a_link_that_a_user_names_stays_one_and_its_target_is_replaced(write, tmp_path):
    target, link = tmp_path / "folder" / "target.svg", tmp_path / "link.svg"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to("folder/target.svg")
    assert write(link) == 0
    assert link.is_symlink()
    assert target.read_bytes().endswith(write.end)
    assert os.listdir(target.parent) == ["target.svg"]


@both
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder.svg", "is a directory; a file is needed there"),
        ("file/x.svg", "cannot be written (Not a directory)"),
        ("loop.svg", "cannot be written (Too many levels of symbolic links)"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_line_before_any_work(
    write, tmp_path, capfd, monkeypatch, name, message
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
    told = capfd.readouterr()
    assert told.err == f"jformer: --{write.flag}={tmp_path / name}: {message}\n"
    assert told.out == ""
    assert sorted(tmp_path.iterdir()) == before


@both
def test_the_folders_of_a_file_that_a_user_names_are_made(write, tmp_path):
    path = tmp_path / "new" / "folder" / "x.svg"
    assert write(path) == 0
    assert path.read_bytes().endswith(write.end)
    assert os.listdir(path.parent) == ["x.svg"]


@both
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_somebody_else_has_put_in_the_place_of_a_part_is_not_written_to(write, tmp_path, kind):
    partial, theirs = tmp_path / "x.svg.partial", tmp_path / "theirs"
    theirs.write_text("theirs")
    if kind == "link":
        partial.symlink_to(theirs)
    else:
        os.mkfifo(partial)
    assert write(tmp_path / "x.svg") == 0
    assert theirs.read_text() == "theirs"
    assert not (tmp_path / "x.svg").is_symlink()
    assert (tmp_path / "x.svg").read_bytes().endswith(write.end)
    assert not os.path.lexists(partial)


def test_on_a_full_disk_the_old_page_stays_and_nothing_else(tmp_path, capfd):
    pytest.importorskip("plotly", reason="needs the extra report")
    (tmp_path / "base").mkdir()
    write_config(Config(), tmp_path / "base" / "config.json")
    (tmp_path / "page.html").write_text("old")
    arguments = ["report", str(tmp_path / "base"), f"--output={tmp_path / 'page.html'}"]
    assert disk_full_at(1000, lambda: main(["jformer", *arguments])) == 1
    told = f"jformer: --output={tmp_path / 'page.html'}: cannot be written (File too large)\n"
    assert capfd.readouterr().err == told
    assert (tmp_path / "page.html").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["base", "page.html"]


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path):
    name = str(tmp_path / "made")

    def fill(then):
        with files.new_folder("output", name) as folder:
            (folder / "file").write_text("x")
            then()

    with pytest.raises(ZeroDivisionError):
        fill(lambda: 1 / 0)
    assert not list(tmp_path.iterdir())
    (tmp_path / "made").mkdir()  # an empty one is filled
    fill(lambda: None)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "made"]
    with pytest.raises(UserError, match=r"--output=.*made: exists; a new or an empty folder"):
        fill(lambda: None)


def test_export_makes_the_folders_above_the_one_that_it_is_given(tmp_path):
    pytest.importorskip("safetensors", reason="needs the extra export")
    run = Path(__file__).with_name("stored_run") / "run"
    output = tmp_path / "new" / "folder"
    flags = [f"--workdir={run}", "--format=safetensors", f"--output={output}"]
    assert main(["jformer", "export", *flags]) == 0
    assert (output / "model.safetensors").exists()
    assert os.listdir(output.parent) == ["folder"]
