"""The notebooks of this folder, run from top to bottom and written with their outputs.

    python -m experiments.colab.build

Each NAME.py, in jupytext's percent format, becomes NAME.ipynb. They run in a folder of their own;
`train` leaves there the run that the others open.
"""

import tempfile
from pathlib import Path

import jupytext
import nbclient
import nbformat

HERE = Path(__file__).parent
NAMES = ("train", "restore", "read_the_paper")  # in this order


def read(name: str) -> nbformat.NotebookNode:
    """The notebook, without outputs."""
    notebook = jupytext.read(HERE / f"{name}.py")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "accelerator": "GPU"})
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{name}-{number}"  # the same in every build
    return notebook


def run(notebook: nbformat.NotebookNode, folder: Path, timeout: int = 3600) -> None:
    """Run all its cells in a folder; a cell that fails is an error."""
    place = {"metadata": {"path": str(folder)}}
    # Coalesced: a training prints hundreds of lines, and each would be an output.
    client = nbclient.NotebookClient(
        notebook, timeout=timeout, resources=place, coalesce_streams=True
    )
    client.execute()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            notebook = read(name)
            run(notebook, Path(folder))
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)  # when it ran
            nbformat.write(notebook, HERE / f"{name}.ipynb")


if __name__ == "__main__":
    main()
