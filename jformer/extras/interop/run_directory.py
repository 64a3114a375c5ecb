"""Run directories with parameters alone: of other programs' weights, and of runs to share.

Such a directory translates, scores and initialises other runs. It cannot resume training.
"""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jformer.config import BOS, PAD, Config, default_config, freeze, write_config
from jformer.console import say
from jformer.data.vocabulary import FIRST, Vocabularies
from jformer.errors import UserError
from jformer.extras.interop import layouts
from jformer.extras.interop.state_dicts import Source
from jformer.files import new_folder, write_sums
from jformer.model.transformer import Transformer
from jformer.run import Run, load, parameter_shapes
from jformer.rundir import CHECKPOINTS, CONFIG, METRICS, locked
from jformer.schema import replaced, walk
from jformer.training.checkpoints import CHECKED, Checkpoints
from jformer.training.loop import NEW
from jformer.training.provenance import metadata
from jformer.training.step import TrainState

STEP = 1  # an imported run is complete after its only step
# A bias that no logit makes up for. Label smoothing averages all logits, so it is not larger.
FORBIDDEN = -1e3


def import_run(
    source: Source, workdir: str, embedding_scale: float | None, overrides: dict[str, Any]
) -> Config:
    """Write a run directory with the weights and vocabularies of another program.

    The config keys in `overrides` replace the values that are read from the weights. Embeddings are
    multiplied by `embedding_scale` in the other program; None: by what its files say, or
    sqrt(d_model). Raises `UserError` that names every tensor of theirs, or parameter of ours, that
    has no counterpart.
    """
    matrices = in_our_rows(source, embedding_scale)
    config = imported_config(source, matrices, overrides)
    vocabularies = Vocabularies(*(side.vocabulary for side in source.vocabularies))
    model = Transformer(config.model, vocabularies.target.size, vocabularies.source.size)
    needed = flatten_dict(parameter_shapes(model), sep="/")
    shapes = {name: x.shape for name, x in needed.items() if "/" in name}
    theirs = source.weights
    arrays = matrices | theirs.take_layers(source.layout, shapes)
    theirs.check()
    if unmatched := arrays.keys() ^ needed.keys():
        names = ", ".join(sorted(unmatched))
        raise UserError(f"{theirs.where}: weights and config disagree about {names}")
    if source.layout == "marian":
        paper_order = np.argsort(layouts.halves_order(config.model.d_model))  # the inverse
        arrays = layouts.reordered(arrays, paper_order)
    folder = new_folder("workdir", workdir)
    write_run(folder, config, vocabularies, unflatten_dict(arrays, sep="/"), STEP)
    load(folder)
    report(source, arrays)
    return config


def in_our_rows(source: Source, embedding_scale: float | None) -> dict[str, np.ndarray]:
    """Return the matrices with our rows, and only one of equal matrices.

    Theirs are multiplied by a scale of the embeddings, and ours by sqrt(d_model).
    """
    theirs, (source_words, target_words) = source.matrices, source.vocabularies
    embedding_VD = theirs["embedding"]
    source_VD = theirs.get("source_embedding", embedding_VD)[source_words.rows]
    output_VD = theirs.get("output", embedding_VD)[target_words.rows]
    embedding_VD = embedding_VD[target_words.rows]
    scale = embedding_scale or source.scale
    if scale is not None:
        factor = np.float32(scale / embedding_VD.shape[1] ** 0.5)
        source_VD, embedding_VD = source_VD * factor, embedding_VD * factor
    ours = {"embedding": embedding_VD}
    is_tied = np.array_equal(output_VD, embedding_VD)
    is_joint = source_words is target_words and np.array_equal(source_VD, embedding_VD)
    if not (is_tied and is_joint):
        ours["source_embedding"] = source_VD
    if not is_tied:
        ours["output"] = output_VD
    bias_V = theirs.get("output_bias", np.zeros(target_words.size, np.float32))[target_words.rows]
    pad, bos, eos = target_words.rows[:FIRST]
    if bos in (pad, eos):
        # Two of our rows copy one of theirs, which must count once in the softmax.
        bias_V[PAD if bos == pad else BOS] = FORBIDDEN
    if np.any(bias_V):
        ours["output_bias"] = bias_V
    return ours


def imported_config(
    source: Source, matrices: dict[str, np.ndarray], overrides: dict[str, Any]
) -> Config:
    tying = "none" if "output" in matrices else "output"
    values = {
        "name": source.name,
        "train.steps": STEP,
        **source.values,
        "data.joint_vocabulary": source.vocabularies[0] is source.vocabularies[1],
        "model.tying": tying if "source_embedding" in matrices else "all",
        "model.output_bias": "output_bias" in matrices,
    }
    return freeze(default_config("given"), {**values, **overrides})


def report(source: Source, arrays: dict[str, np.ndarray]) -> None:
    """Print what has been read."""
    parameters = sum(array.size for array in arrays.values())
    say(f"parameters  {parameters:,} in {len(arrays)} arrays, from {source.weights.where}")
    for side, each in zip(("source", "target"), source.vocabularies, strict=True):
        pad, bos, eos = each.rows[:FIRST]
        say(f"{side:11} {len(each.rows):,} entries; PAD, BOS, EOS are theirs {pad}, {bos}, {eos}")


def export(run: Run, folder: Path, dtype: str) -> None:
    """Write the served parameters, rounded to `dtype`, and the log of a run as a run directory."""
    params = jax.tree.map(lambda x: np.asarray(x, jnp.dtype(dtype)), run.params)
    config = without_paths(run.config)
    write_run(folder, config, run.vocabularies, params, run.step)
    forget_folder(folder / CHECKPOINTS / str(run.step))
    if (run.workdir / METRICS).exists():
        shutil.copy(run.workdir / METRICS, folder)


def forget_folder(checkpoint: Path) -> None:
    """Remove the path of the checkpoint from its files; orbax writes it, and does not read it."""
    for path in checkpoint.rglob("commit_success.txt"):
        path.write_text("Checkpoint commit was successful", encoding="utf-8")
    write_sums(checkpoint, CHECKED)


def without_paths(config: Config) -> Config:
    """Return a config that names files and folders without the folders of this machine."""
    names = {
        key: ",".join(Path(path).name for path in value.split(","))
        for key, field, value in walk(config)
        if field.metadata.get("is_path")
    }
    return replaced(config, names)


def write_run(
    workdir: Path, config: Config, vocabularies: Vocabularies, params: Any, step: int
) -> None:
    """Write a run directory with one checkpoint; config.json, which makes it a run, last."""
    # It serves this checkpoint alone, which is therefore a regular one.
    regular = {"checkpoint_every": step, "average_checkpoints": 1, "ema_decay": 0.0}
    config = replaced(config, {f"train.{name}": value for name, value in regular.items()})
    with locked(workdir):
        with Checkpoints(workdir, config.train) as checkpoints:
            state = TrainState(np.int32(step), params, None)
            checkpoints.save(state, metadata(config, vocabularies.hash), NEW)
        vocabularies.save(workdir)
        write_config(config, workdir / CONFIG)
