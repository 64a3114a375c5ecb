"""The notebooks, run from top to bottom in a kernel of their own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="needs the extra notebooks")
pytest.importorskip("matplotlib", reason="needs the extra plot")

import nbformat

from experiments.colab import build

pytestmark = pytest.mark.process

PICTURES = {"train": 1, "restore": 2, "read_the_paper": 9}


def text_of(notebook):
    """What its cells have printed."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return "".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs
    )


def pictures_of(notebook):
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def with_line(notebook, begins, line):
    """The notebook with another line in the place of the one that begins so."""
    (cell,) = (c for c in notebook.cells if re.search(f"^{begins}", c.source, re.M))
    cell.source = re.sub(f"^{begins}.*$", line, cell.source, flags=re.M)
    return notebook


def assert_it_restores(path, folder):
    notebook = with_line(build.read("restore"), "RUN = ", f'RUN = "{path}"')
    build.run(notebook, folder)
    text = text_of(notebook)
    assert re.search(r"^tiny: \d,\d{3} parameters, step 12, on cpu:0$", text, re.M)
    assert "Where is the station?\n    " in text
    assert len(re.findall(r"^ +-\d+\.\d{3} +-\d+\.\d{3}  ", text, re.M)) == 4  # the n best
    assert pictures_of(notebook) == 2  # attention, learning curves


def test_restore_runs_with_a_zip_of_a_run(trained_workdir, tmp_path):
    parts = trained_workdir.parent, trained_workdir.name
    assert_it_restores(shutil.make_archive(tmp_path / "run", "zip", *parts), tmp_path)


@pytest.mark.slow
def test_train_saves_what_it_restores(tmp_path):
    keys = {
        "train.steps": 6, "train.evaluate_every": 3, "model.d_model": 16,
        "data.name": "phrases(pairs=1500)", "data.num_buckets": 1,
        "decode.beam_size": 1, "decode.max_extra_length": 0,
    }  # fmt: skip
    notebook = build.read("train")
    for name in ("config", "own"):
        small = f'{name} = jformer.get_config("tiny", **{keys})'
        notebook = with_line(notebook, f"{name} = ", small)
    build.run(notebook, tmp_path)
    text = text_of(notebook)
    assert text.count("step 6/6") == 4  # a line of training and one of validation in each run
    assert text.count("\r") == 0
    assert re.search(r"tiny-phrases-en-de\.zip: \d+\.\d MB", text)
    assert (tmp_path / "restored" / "tiny-phrases-en-de" / "config.json").exists()
    assert len(re.findall(r"^    reference  ", text, re.M)) == 3
    assert pictures_of(notebook) == PICTURES["train"]


def assert_it_shows_the_paper(notebook):
    """What it computes is what its text says."""
    text = text_of(notebook)
    differences = [float(number) for number in re.findall(r"largest difference: (\S+)", text)]
    assert len(differences) == 4
    assert max(differences) < 1e-4
    assert re.search(r"\[0\. +0\. +0\. +0\. +0\. +[^0]", text)
    rows = re.findall(r"^\w+ +(\d+\.\d) +(\d+)$", text, re.M)
    assert len(rows) == 11
    assert all(1 < int(paper) - float(here) < 4.5 for here, paper in rows[:-1])  # all but big
    assert re.search(r"\b1: a x EOS .*0\.30", text)
    assert re.search(r"\b2: b x EOS .*0\.40", text)
    assert pictures_of(notebook) == PICTURES["read_the_paper"]


def test_read_the_paper_runs_with_the_run_of_train(trained_workdir, tmp_path):
    shutil.copytree(trained_workdir, tmp_path / "runs" / "tiny-phrases-en-de")
    notebook = build.read("read_the_paper")
    build.run(notebook, tmp_path)
    assert_it_shows_the_paper(notebook)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tiny-phrases-en-de"]


@pytest.mark.slow
@pytest.mark.parametrize("name", build.NAMES)
def test_the_first_cell_installs_jformer_on_a_bare_runtime(name, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True)
    here = f"file://localhost{Path.cwd()}"
    install = with_line(build.read(name), "REPOSITORY = ", f"REPOSITORY = {here!r}").cells[1].source
    needed = "import jformer.main, matplotlib; print(matplotlib.__file__)"
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for _ in range(2):  # again, as after a restart of the kernel
        ended = subprocess.run(
            [tmp_path / "bare" / "bin" / "python", "-c", f"{install}\n{needed}"],
            cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True, env=bare,
        )  # fmt: skip
        assert ended.stdout.startswith(str(tmp_path / "bare"))


@pytest.mark.parametrize("name", build.NAMES)
def test_a_built_notebook_is_of_its_source_and_has_outputs(name):
    built = nbformat.read(Path("experiments/colab") / f"{name}.ipynb", as_version=4)
    nbformat.validate(built)
    source = build.read(name)
    assert [cell.source for cell in built.cells] == [cell.source for cell in source.cells]
    assert pictures_of(built) == PICTURES[name]
    assert not any(
        output.output_type == "error" for cell in built.cells for output in cell.get("outputs", [])
    )
    assert (Path("experiments/colab") / f"{name}.ipynb").stat().st_size < 400_000
    badge = f"https://colab.research.google.com/github/jformer/jformer/blob/main/experiments/colab/{name}.ipynb"
    assert badge in built.cells[0].source
