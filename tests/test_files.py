"""Files: whole inside run directories; what a user names is opened as it is."""

import os
import signal
import subprocess
import sys
import time

import pytest

from jformer.config import Config, write_config
from jformer.files import replace_file
from jformer.main import main
from tests.test_output import disk_full_at


def test_on_a_full_disk_the_old_content_stays(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old")
    with pytest.raises(OSError, match="File too large"):
        disk_full_at(1000, lambda: replace_file(path, b"new" * 1000))
    assert path.read_bytes() == b"old"


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
def write(tmp_path):
    """`main report --output=` into a file; it returns the exit status."""
    pytest.importorskip("plotly", reason="needs the extra report")
    (tmp_path / "base").mkdir()
    write_config(Config(), tmp_path / "base" / "config.json")

    def write(path):
        return main(["jformer", "report", str(tmp_path / "base"), f"--output={path}"])

    return write


def test_a_file_that_does_not_fit_on_the_disk_is_one_line_with_exit_status_1(
    write, tmp_path, capfd
):
    assert disk_full_at(600, lambda: write(tmp_path / "page.html")) == 1
    [error] = capfd.readouterr().err.splitlines()
    assert "File too large" in error
