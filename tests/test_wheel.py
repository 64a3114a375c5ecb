"""The wheel: what pip installs has all that a run needs, wherever it is started."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of the files that pip would install."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}"]
    build = [sys.executable, "-m", "pip", "wheel", *options, "."]
    ran = subprocess.run(build, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    (wheel,) = folder.glob("*.whl")
    shutil.unpack_archive(wheel, folder / "site", "zip")
    return folder / "site"


def test_it_has_the_configs_of_the_clone_and_its_types(installed):
    assert (installed / "jformer" / "py.typed").exists()
    assert (installed / "jformer" / "data" / "cldr.json").exists()
    ours = {path.name: path.read_bytes() for path in Path("configs").glob("*.py")}
    theirs = (installed / "jformer" / "configs").iterdir()
    assert ours == {path.name: path.read_bytes() for path in theirs}


def run_in(folder, installed, *arguments):
    """The lines that the installed program prints, started in this folder."""
    program = "import jformer.main as main; print(main.__file__); main.run_main()"
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert Path(lines[0]) == installed / "jformer" / "main.py"
    return lines


SMALL = [
    "--config.train.steps=2", "--config.data.name=phrases(pairs=1000)",
    "--config.data.vocabulary_size=300",
    "--config.data.num_buckets=1", "--config.model.num_layers=1", "--config.model.d_model=16",
    "--config.model.num_heads=2", "--config.decode.beam_size=1",
    "--config.decode.max_extra_length=1",
]  # fmt: skip


def test_it_trains_in_an_empty_folder_by_the_name_of_a_config(installed, tmp_path):
    scores = run_in(tmp_path, installed, "--config=tiny", *SMALL)[-1]
    assert json.loads(scores)["test"]["bleu"] >= 0
    run = tmp_path / "runs" / "tiny-phrases-en-de"
    assert {"config.json", "vocabulary.json", "metrics.jsonl", "results.json"} <= {
        path.name for path in run.iterdir()
    }
