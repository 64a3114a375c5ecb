"""Runs as safetensors: the parameters by our names, the config and the vocabulary; no pickle.

`read` opens such a folder again. It needs no checkpoints, and orbax reads none.
"""

from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jformer.config import write_config
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError, import_extra
from jformer.model.transformer import Transformer
from jformer.run import Run, parameter_shapes
from jformer.rundir import config_to_open
from jformer.schema import local_paths

WEIGHTS, STEP = "model.safetensors", "step"


def export(run: Run, folder: Path, format: str) -> None:
    """Write model.safetensors, config.json, and vocabulary.json, with a source_ one beside it."""
    library = import_extra("safetensors.numpy", f"--format={format}", "safetensors")
    flat = flatten_dict(run.params, sep="/")
    # The library writes memory as it lies, so that a transposed view would be wrong.
    arrays = {name: np.asarray(array).copy(order="C") for name, array in flat.items()}
    library.save_file(arrays, folder / WEIGHTS, {STEP: str(run.step)})
    write_config(run.config, folder / "config.json")
    run.vocabularies.save(folder)


def read(folder: str | Path, plugins: Sequence[str | Path] = ()) -> Run:
    """Open a folder of `export`; the parameters are those of the run bit for bit.

    `plugins` are files that define parts of the author's own. They are run; a file that only the
    folder names is not. Raises `UserError` if a file is missing or damaged, or if config.json is of
    another model.
    """
    folder = Path(local_paths("folder", str(folder)))
    library = import_extra("safetensors", "safetensors", "safetensors")
    config = config_to_open(folder, [local_paths("plugins", str(file)) for file in plugins])
    vocabularies = Vocabularies.load(folder, config.data.joint_vocabulary)
    model = Transformer(config.model, vocabularies.target.size, vocabularies.source.size)
    path = folder / WEIGHTS
    try:
        with library.safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            step = int((file.metadata() or {})[STEP])
    except Exception as error:  # of the library, for a damaged file, or without our metadata
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{path}: cannot be read ({reason}); export it again") from error
    needed = {name: x.shape for name, x in flatten_dict(parameter_shapes(model), sep="/").items()}
    if {name: x.shape for name, x in arrays.items()} != needed:
        raise UserError(f"{path}: has other parameters than config.json; export it again")
    params = unflatten_dict({name: jnp.asarray(x) for name, x in arrays.items()}, sep="/")
    return Run(folder, "safetensors", config, vocabularies, model, params, (step,))
