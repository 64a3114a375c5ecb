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
from tests.conftest import small_flags

pytestmark = pytest.mark.process


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


@pytest.fixture
def eight_devices(corpus_directory, tmp_path):
    """A run directory that eight devices wrote together, each with a part of the parameters."""
    workdir = tmp_path / "run"
    split = ["--config.parallel.data=1", "--config.parallel.fsdp=8"]
    subprocess.run(
        [sys.executable, "-m", "jformer.main", *small_flags(corpus_directory, workdir), *split],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "8"}, check=True, capture_output=True,
    )  # fmt: skip
    return workdir


def assert_it_restores(path, folder):
    notebook = with_line(build.read("restore"), "RUN = ", f'RUN = "{path}"')
    build.run(notebook, folder)
    text = text_of(notebook)
    assert re.search(r"^tiny: \d,\d{3} parameters, step 12, on cpu:0$", text, re.M)
    assert "Friday, May 3, 2041\n    " in text
    assert len(re.findall(r"^ +-\d+\.\d{3} +-\d+\.\d{3}  ", text, re.M)) == 4  # the n best
    assert pictures_of(notebook) == 2  # attention, learning curves


def test_restore_runs_with_a_zip_of_a_run(trained_workdir, tmp_path):
    parts = trained_workdir.parent, trained_workdir.name
    assert_it_restores(shutil.make_archive(tmp_path / "run", "zip", *parts), tmp_path)


@pytest.mark.slow
def test_restore_runs_on_one_device_with_what_eight_have_written(eight_devices, tmp_path):
    assert_it_restores(eight_devices, tmp_path)


@pytest.mark.slow
def test_train_saves_what_it_restores(tmp_path):
    shutil.copytree("configs", tmp_path / "configs")
    notebook = with_line(build.read("train"), "STEPS = ", "STEPS = 6")
    small = [
        "--config.model.d_model=16", "--config.data.phrases=1500", "--config.data.num_buckets=1",
        "--config.decode.beam_size=1", "--config.decode.max_extra_length=0",
    ]  # fmt: skip
    notebook = with_line(notebook, "status = ", f'status = main(["jformer", *flags, *{small}])')
    build.run(notebook, tmp_path)
    text = text_of(notebook)
    assert "step 6/6" in text
    assert re.search(r"tiny-phrases-en-de\.zip: \d+\.\d MB", text)
    assert (tmp_path / "restored" / "tiny-phrases-en-de" / "config.json").exists()
    assert pictures_of(notebook) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", build.NAMES)
def test_the_first_cell_installs_jformer_on_a_bare_runtime(name, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True)
    here = f"file://localhost{Path.cwd()}"
    install = with_line(build.read(name), "JFORMER = ", f"JFORMER = {here!r}").cells[1].source
    if name == "restore":
        install = install.replace(here, f"git+{here}")
    needed = "import jformer.main, matplotlib; print(matplotlib.__file__)"
    for _ in range(2):  # again, as after a restart of the kernel
        ended = subprocess.run(
            [tmp_path / "bare" / "bin" / "python", "-c", f"{install}\n{needed}"],
            cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert ended.stdout.startswith(str(tmp_path / "bare"))


@pytest.mark.parametrize("name", build.NAMES)
def test_a_built_notebook_is_of_its_source_and_has_outputs(name):
    built = nbformat.read(Path("experiments/colab") / f"{name}.ipynb", as_version=4)
    nbformat.validate(built)
    source = build.read(name)
    assert [cell.source for cell in built.cells] == [cell.source for cell in source.cells]
    assert pictures_of(built) == {"train": 1, "restore": 2}[name]
    assert not any(
        output.output_type == "error" for cell in built.cells for output in cell.get("outputs", [])
    )
    badge = f"https://colab.research.google.com/github/jformer/jformer/blob/main/experiments/colab/{name}.ipynb"
    assert badge in built.cells[0].source
