"""The wheel: what pip installs has the configs and the corpus, wherever it is started."""

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
    assert (installed / "jformer" / "data" / "phrases.tsv.gz").exists()
    ours = {path.name: path.read_bytes() for path in Path("configs").glob("*.py")}
    theirs = (installed / "jformer" / "configs").iterdir()
    assert ours == {path.name: path.read_bytes() for path in theirs}


def test_it_reads_a_config_by_its_name_and_the_corpus_in_an_empty_folder(installed, tmp_path):
    program = "import jformer.main as main; print(main.__file__); main.run_main()"
    keys = ["data.name=phrases(pairs=1000)", "data.vocabulary_size=300", "train.batch_tokens=256"]
    flags = ["--config=tiny", "--format=json", *(f"--config.{key}" for key in keys)]
    ran = subprocess.run(
        [sys.executable, "-c", program, "data", *flags],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    file, facts = ran.stdout.splitlines()
    assert Path(file) == installed / "jformer" / "main.py"
    assert json.loads(facts)["pairs_per_epoch"] > 800
