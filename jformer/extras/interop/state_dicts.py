"""State dicts of other programs, whose tensors are taken by their names and with their shapes.

Files are safetensors, or PyTorch's, of which only tensors are read: nothing in a file is run.

Whoever uses `torch.nn.Transformer` adds embeddings and an output layer under names of their own.
`read` finds them by parts of their names, unless the user names them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jformer.console import say
from jformer.errors import UserError, import_extra
from jformer.extras.interop.layouts import JOINED, array_of, matrix_of, tensor_name
from jformer.extras.interop.vocabularies import ForeignVocabularies, SpecialIds, read_vocabulary
from jformer.model.positions import sinusoids

WRAPPERS = ("model_state_dict", "state_dict")  # keys of checkpoints that hold the state dict
ROWS_COMPARED = 64  # of a table of positions
# Our embeddings and output, and parts of the names that others give them.
MATRICES = {
    "source_embedding": ("src", "source", "encoder"),
    "embedding": ("tgt", "trg", "target", "decoder"),
    "output": ("generator", "output", "out", "proj", "head", "linear", "classifier"),
}
# Keys that a state dict does not show.
DEFAULTS = {
    "pytorch": {"model.norm": "layer_norm(epsilon=1e-5)"},
    "annotated": {"model.norm_position": "pre", "model.norm": "sample_layer_norm"},
}


class Weights:
    """The tensors of a file by name; `check` raises one error for all that does not fit."""

    def __init__(self, tensors: dict[str, np.ndarray], where: Path):
        self.tensors, self.where = tensors, where
        self._taken: set[str] = set()
        self._wrong: list[str] = []

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

    def take_matrices(
        self, names: Mapping[str, str], D: int, vocabularies: ForeignVocabularies
    ) -> dict[str, np.ndarray]:
        """Take the embeddings and the output, whose names are given by our names."""
        source, target = vocabularies
        sizes = {"source_embedding": source.size}
        return {ours: self.take(x, sizes.get(ours, target.size), D) for ours, x in names.items()}

    def take_layers(
        self, layout: str, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray]:
        """Take the tensors for our parameters of these names and shapes."""
        arrays = {}
        for name, shape in shapes.items():
            module = name.split("/")[-2]
            modules = JOINED if layout == "pytorch" and module in JOINED else (module,)
            rows, *columns = matrix_of(name, np.empty(shape)).shape
            joined = self.take(tensor_name(name, layout), len(modules) * rows, *columns)
            matrix = np.split(joined, len(modules))[modules.index(module)]
            arrays[name] = array_of(name, matrix, shape)
        return arrays

    def ignore(self, name: str) -> None:
        """Leave out a table of sinusoids."""
        self._taken.add(name)
        say(f"ignored     {name} {list(self.tensors[name].shape)}: sinusoids, which are computed")

    def check(self) -> None:
        """Raise `UserError` that names every tensor that is missing, left over or misshapen."""
        left = [
            f"{name} {list(tensor.shape)} is unexpected"
            for name, tensor in self.tensors.items()
            if name not in self._taken
        ]
        if found := self._wrong + left:
            raise UserError(
                f"{self.where}: {'; '.join(dict.fromkeys(found))}. Shapes follow from the config "
                f"keys and the number of entries of the vocabulary"
            )


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


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read a file of tensors; `UserError` if it is another file, or needs code to be run."""
    if not path.is_file():
        raise UserError(f"--from={path}: no such file")
    return read_safetensors(path) if path.suffix == ".safetensors" else read_pytorch(path)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    # The library's arrays of numpy lack bfloat16.
    library: Any = import_extra("safetensors.flax", f"{path}: reading it", "safetensors")
    return {name: np.asarray(x, np.float32) for name, x in library.load_file(path).items()}


def read_pytorch(path: Path) -> dict[str, np.ndarray]:
    torch: Any = import_extra("torch", f"{path}: a file of PyTorch", "torch")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name in WRAPPERS:
            state = state.get(name, state)
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except Exception as error:
        raise UserError(
            f"{path}: must be a state dict of tensors, because reading anything else could run "
            f"code of its author. Write one: torch.save(model.state_dict(), FILE)"
        ) from error


def read(
    path: Path,
    layout: str,
    vocabulary_files: tuple[str, str],
    specials: SpecialIds | None,
    names: dict[str, str],
) -> Source:
    """Read a state dict of the layout pytorch or annotated.

    `vocabulary_files` are those of the source, or "" for the same, and of the target. `names` has
    their name of our `embedding`, `source_embedding` and `output`; if empty, these are found.
    """
    tensors = without_prefix(read_tensors(path), layout)
    theirs, values = Weights(tensors, path), values_of(tensors, layout, path)
    source_file, target_file = vocabulary_files
    target = read_vocabulary(Path(target_file), specials)
    source = read_vocabulary(Path(source_file), specials) if source_file else target
    D = values["model.d_model"]
    candidates = []
    for name, tensor in tensors.items():
        if is_table_of_sinusoids(tensor, D):
            theirs.ignore(name)
        elif tensor.ndim == 2 and tensor.shape[1] == D and ".layers." not in name:
            candidates.append(name)
    names = names or names_by_parts(candidates)
    if "embedding" not in names:
        found = ", ".join(f"{name} {list(tensors[name].shape)}" for name in candidates)
        raise UserError(
            f"{path}: cannot find the embeddings and the output among its matrices ({found}); set "
            f"--names=source_embedding=NAME,embedding=NAME,output=NAME"
        )
    say(f"matrices    --names={','.join(f'{ours}={name}' for ours, name in names.items())}")
    matrices = theirs.take_matrices(names, D, (source, target))
    bias = names.get("output", "").removesuffix("weight") + "bias"
    if bias in tensors:
        matrices["output_bias"] = theirs.take(bias, target.size)
    return Source(path.stem, layout, theirs, values, (source, target), matrices)


def without_prefix(tensors: dict[str, np.ndarray], layout: str) -> dict[str, np.ndarray]:
    """Remove what precedes `encoder` in the names of layers, such as `transformer.`."""
    first = tensor_name("encoder_0/self_attention/query/kernel", layout)
    prefix = next((name.removesuffix(first) for name in tensors if name.endswith(first)), "")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def values_of(tensors: dict[str, np.ndarray], layout: str, path: Path) -> dict[str, Any]:
    """Return the config keys that follow from the shapes, with those that the layout implies."""
    name = tensor_name("encoder_0/feed_forward/ffn_out/kernel", layout)
    if name not in tensors:
        names = [f"{name} {list(tensor.shape)}" for name, tensor in tensors.items()]
        raise UserError(f"{path}: has no {name}; it has {', '.join(names[:10])}, ...")
    d_model, d_ff = tensors[name].shape
    depths = {
        stack: len({name.split(".")[2] for name in tensors if name.startswith(f"{stack}.layers.")})
        for stack in ("encoder", "decoder")
    }
    has_norm = tensor_name("encoder_norm/scale", layout) in tensors
    return {
        "model.d_model": d_model,
        "model.d_ff": d_ff,
        "model.num_layers": depths["encoder"],
        "model.num_decoder_layers": depths["decoder"],
        "model.final_norm": "on" if has_norm else "off",
        "model.attention_bias": tensor_name("encoder_0/self_attention/out/bias", layout) in tensors,
        **DEFAULTS[layout],
    }


def is_table_of_sinusoids(tensor: np.ndarray, D: int) -> bool:
    """Return whether a tensor has the paper's sinusoids, a position per row."""
    if tensor.shape[-1:] != (D,):
        return False
    table_LD = tensor.reshape(-1, D)[:ROWS_COMPARED]
    # Theirs may be computed from logarithms, in float32 or less.
    return np.allclose(table_LD, sinusoids(np.arange(len(table_LD)), D), atol=1e-2)


def names_by_parts(found: list[str]) -> dict[str, str]:
    """Return the names of embeddings and output by ours, or {} if several would fit.

    A single matrix is the embedding.
    """
    if len(found) == 1:
        return {"embedding": found[0]}
    fits = [
        (ours, name)
        for name in found
        for ours, parts in MATRICES.items()
        if any(part in name.lower() for part in parts)
    ]
    names = dict(fits)
    return names if len(names) == len(fits) == len(found) else {}
