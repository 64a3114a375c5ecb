"""Tensors of other programs' files, which are taken by their names and with their shapes.

Files are safetensors, or PyTorch's, of which only tensors are read: nothing in a file is run.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jformer.console import say
from jformer.errors import UserError, import_extra
from jformer.extras.interop.vocabularies import ForeignVocabularies
from jformer.model.positions import sinusoids

WRAPPERS = ("model_state_dict", "state_dict")  # keys of checkpoints that hold the state dict
ALL = slice(None)
ROWS_COMPARED = 64  # of a table of positions


class Weights:
    """The tensors of a file by name; `check` raises one error for all that does not fit."""

    def __init__(self, tensors: dict[str, np.ndarray], where: Path):
        self.tensors, self.where = tensors, where
        self._taken: set[str] = set()
        self._wrong: list[str] = []

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor that determines a size; `UserError` if it is missing."""
        if name not in self.tensors:
            names = [f"{name} {list(each.shape)}" for name, each in self.tensors.items()]
            raise UserError(f"{self.where}: has no {name}; it has {', '.join(names[:10])}, ...")
        return self.tensors[name].shape

    def take(self, name: str, *shape: int) -> np.ndarray:
        """Return a tensor of this shape; if it is missing, zeros, and `check` raises."""
        self._taken.add(name)
        found = self.tensors.get(name)
        if found is None:
            self._wrong.append(f"{name} {list(shape)} is missing")
        elif found.shape != shape:
            self._wrong.append(f"{name} is {list(found.shape)}, must be {list(shape)}")
        else:
            return found
        return np.zeros(shape, np.float32)

    def layers(self, prefix: str) -> int:
        """Return how many different numbers follow `prefix` in the names of tensors."""
        rest = [name.removeprefix(prefix) for name in self.tensors if name.startswith(prefix)]
        return len({name.partition(".")[0] for name in rest})

    def ignore(self, name: str, reason: str) -> None:
        """Leave a tensor out, and print why."""
        self._taken.add(name)
        say(f"ignored     {name} {list(self.tensors[name].shape)}: {reason}")

    def ignore_sinusoids(self, D: int, columns: Any = ALL) -> None:
        """Leave out tables whose `columns` are the paper's sinusoids. Others stay unmatched."""
        for name in self.tensors:
            if self.is_table_of_sinusoids(name, D, columns):
                self.ignore(name, "the sinusoids of Section 3.5, which are computed")

    def is_table_of_sinusoids(self, name: str, D: int, columns: Any = ALL) -> bool:
        """Return whether `columns` of a tensor are the paper's sinusoids, a position per row."""
        table_LD = np.atleast_1d(self.tensors[name].squeeze())[:ROWS_COMPARED]
        if table_LD.ndim != 2 or table_LD.shape[1] != D:
            return False
        expected_LD = sinusoids(np.arange(len(table_LD)), D)
        # Theirs may be computed from logarithms, in float32 or less.
        return np.allclose(table_LD[:, columns], expected_LD, atol=1e-2)

    def check(self) -> None:
        """Raise `UserError` that names every tensor that is missing, left over or misshapen."""
        left = [
            f"{name} {list(tensor.shape)} is unexpected"
            for name, tensor in self.tensors.items()
            if name not in self._taken
        ]
        if found := self._wrong + left:
            raise UserError(f"{self.where}: {'; '.join(dict.fromkeys(found))}")


class Source(NamedTuple):
    """A model of another program: its weights, config values and vocabularies."""

    name: str  # of the run
    layout: str
    weights: Weights
    values: dict[str, Any]  # config keys
    vocabularies: ForeignVocabularies
    # embedding, and if they differ source_embedding and output, and output_bias; in their rows
    matrices: dict[str, np.ndarray]
    scale: float | None = None  # a factor of the embeddings that is not in the matrices, if known


def take_matrices(
    theirs: Weights, names: dict[str, str], D: int, vocabularies: ForeignVocabularies
) -> dict[str, np.ndarray]:
    """Take the embeddings and the output, whose names are given by our names."""
    taken, (source, target) = {}, vocabularies
    for ours, name in names.items():
        size = source.size if ours == "source_embedding" else target.size
        if (rows := theirs.shape(name)[0]) != size:
            raise UserError(
                f"{theirs.where}: {name} has {rows} rows, and the vocabulary {size} entries; "
                f"they must come from the same training"
            )
        taken[ours] = theirs.take(name, size, D)
    return taken


def read_weights(path: Path) -> Weights:
    """Read a file of tensors; `UserError` if it is another file, or needs code to be run."""
    if not path.is_file():
        raise UserError(f"--from={path}: no such file")
    read = read_safetensors if path.suffix == ".safetensors" else read_pytorch
    return Weights(read(path), path)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    # The library's arrays of numpy lack bfloat16.
    library: Any = import_extra("safetensors.flax", f"{path}: reading it", "safetensors")
    try:
        tensors = library.load_file(path)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: not a safetensors file ({reason})") from error
    return {name: np.asarray(x, np.float32) for name, x in tensors.items()}


def read_pytorch(path: Path) -> dict[str, np.ndarray]:
    torch: Any = import_extra("torch", f"{path}: a file of PyTorch", "torch")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{path}: must contain only tensors, because reading anything else would run "
            f"code of its author. Save a state dict: torch.save(model.state_dict(), FILE)"
        ) from error
    for name in WRAPPERS:
        state = state.get(name, state)
    if strange := [name for name, each in state.items() if not isinstance(each, torch.Tensor)]:
        raise UserError(
            f"{path}: has {', '.join(strange[:5])}, which are not tensors; "
            f"save torch.save(model.state_dict(), FILE)"
        )
    return {name: tensor.float().numpy() for name, tensor in state.items()}
