"""Run the notebooks of this folder from top to bottom, and write them with their outputs.

    python -m experiments.colab.build

Each NAME.py, in jupytext's percent format, becomes NAME.ipynb. The notebooks run in the same
temporary folder, because `read_the_paper` opens the run that `train` leaves there. `restore` opens
the model of this repository.
"""

import tempfile
from pathlib import Path

import jupytext
import nbclient
import nbformat

HERE = Path(__file__).parent
NAMES = ("train", "restore", "read_the_paper")  # in this order


def read(name: str) -> nbformat.NotebookNode:
    """Return the notebook without outputs."""
    notebook = jupytext.read(HERE / f"{name}.py")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "accelerator": "GPU"})
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{name}-{number}"  # stable across builds
    return notebook


def run(notebook: nbformat.NotebookNode, folder: Path, timeout: int = 3600) -> None:
    """Run all cells in a folder. Raise an error if a cell fails."""
    resources = {"metadata": {"path": str(folder)}}
    # Merge the hundreds of lines that training prints into one output.
    client = nbclient.NotebookClient(
        notebook, timeout=timeout, resources=resources, coalesce_streams=True
    )
    client.execute()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "repository").symlink_to(HERE.parents[1])
        for name in NAMES:
            notebook = read(name)
            run(notebook, Path(folder))
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)  # timestamps
            nbformat.write(notebook, HERE / f"{name}.ipynb")


if __name__ == "__main__":
    main()
