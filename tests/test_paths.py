"""Paths that a user gives: `~` is the home folder, and URLs are refused before any work."""

import shutil
from pathlib import Path

import pytest

import jformer
from jformer.main import main
from tests.conftest import small_flags

STORED = str(Path(__file__).with_name("stored_run").absolute() / "run")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home folder; the current folder is another empty one."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


@pytest.mark.parametrize(
    "command",
    [
        ["--config=tiny", "--workdir={}"],
        ["--config=tiny", "--config.data.train={}"],
        ["translate", f"--workdir={STORED}", "--input={}"],
    ],
    ids=" ".join,
)
def test_a_url_is_one_line_before_any_work(command, home, capsys):
    assert main(["jformer", *(part.format("gs://bucket/x") for part in command)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "gs://bucket/x" in line
    assert not [*Path.cwd().iterdir()]


@pytest.mark.process
def test_a_tilde_is_the_home_folder_in_flags_keys_and_functions(home, corpus_directory, capsys):
    shutil.copytree(corpus_directory, home / "corpus")
    _, *flags = small_flags(Path("~/corpus"), "~/runs/x")
    train = ["--config=tiny:files", *flags, "--config.data.cache=~/cache"]
    assert main(["jformer", *train]) == 0
    assert (home / "runs" / "x" / "results.json").is_file()
    assert [*(home / "cache").iterdir()]
    capsys.readouterr()
    assert main(["jformer", *(flag.replace("~", str(home)) for flag in train)]) == 0
    assert "complete" in capsys.readouterr().err  # the same run

    (home / "in.txt").write_text("4 2\n")
    translate = ["translate", "--workdir=~/runs/x", "--input=~/in.txt", "--output=~/out.txt"]
    assert main(["jformer", *translate]) == 0
    run = jformer.load("~/runs/x", ensemble=["~/runs/x@last"])
    assert jformer.load(Path("~/runs/x")).translate(["4 2"]) == [
        (home / "out.txt").read_text().strip()
    ]
    assert run.workdir == home / "runs" / "x"
    assert not [*Path.cwd().iterdir()]
