"""Runs as safetensors: the parameters by our names, the config and the vocabulary; no pickle.

`read` opens such a folder again. It needs no checkpoints, and orbax reads none.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jformer.config import read_config, write_config
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError, import_extra
from jformer.evaluation.scores import tokenizer_for
from jformer.run import Run
from jformer.training.restore import make_model, parameter_shapes

WEIGHTS, STEP = "model.safetensors", "step"


def export(run: Run, folder: Path, format: str) -> None:
    """Write model.safetensors, config.json, and vocabulary.json, with a source_ one beside it."""
    library = import_library(f"--format={format}")
    flat = flatten_dict(run.params, sep="/")
    # The library writes memory as it lies, so that a transposed view would be wrong.
    arrays = {name: np.asarray(array).copy(order="C") for name, array in flat.items()}
    library.numpy.save_file(arrays, folder / WEIGHTS, {STEP: str(run.step)})
    write_config(run.config, folder / "config.json")
    run.vocabularies.save(folder)


def read(folder: str | Path) -> Run:
    """Open a folder of `export`; the parameters are those of the run bit for bit.

    Raises `UserError` where the parameters are not those that config.json asks for.
    """
    folder = Path(folder)
    library = import_library("safetensors")
    config = read_config(folder / "config.json")
    vocabularies = Vocabularies.load(folder, config.data.joint_vocabulary)
    model = make_model(config, vocabularies.target.size, vocabularies.source.size)
    path = folder / WEIGHTS
    if not path.is_file():
        raise UserError(f"{path}: no such file; export --format=safetensors writes it")
    with library.safe_open(path, framework="numpy") as file:
        arrays = {name: jnp.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        step = int(file.metadata()[STEP])
    shapes = {name: x.shape for name, x in flatten_dict(parameter_shapes(model), sep="/").items()}
    wrong = {name for name in {*shapes, *arrays} if not fits(arrays.get(name), shapes.get(name))}
    if wrong:
        raise UserError(f"{path}: {min(wrong)} is not as config.json asks for; export it again")
    params = unflatten_dict(arrays, sep="/")
    tokenizer = tokenizer_for(config.data.target_language)
    return Run(folder, "safetensors", config, vocabularies, model, params, (step,), tokenizer)


def fits(array: Any, shape: tuple[int, ...] | None) -> bool:
    return array is not None and array.shape == shape


def import_library(user: str) -> Any:
    import_extra("safetensors.numpy", user, "safetensors")
    return import_extra("safetensors", user, "safetensors")
