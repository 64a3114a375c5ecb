"""Run directories made from the weights of other programs, which open as any other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from jformer.config import BOS, PAD, Config
from jformer.console import say
from jformer.data.vocabulary import FIRST, Vocabularies
from jformer.errors import UserError
from jformer.extras.interop import layouts, m2m100_models, marian_models, pytorch
from jformer.extras.interop.run_directory import write_run
from jformer.extras.interop.weights import Weights, read_weights
from jformer.extras.interop.words import Words, read_words
from jformer.files import sha256_of
from jformer.model.transformer import Transformer
from jformer.rundir import has_run
from jformer.training.checkpoints import Checkpoints
from jformer.training.restore import parameter_shapes

LAYOUTS = {**pytorch.LAYOUTS, "marian": layouts.MARIAN, "m2m100": layouts.M2M100}
STEP = 1  # of the only checkpoint
# A bias that no logit makes up for. Label smoothing averages all logits, so it is not larger.
FORBIDDEN = -1e3

Overriding = Callable[[dict[str, Any]], Config]


def import_run(
    source: Path,
    layout: str,
    workdir: Path,
    vocabulary_files: tuple[str, str],
    specials: str,
    names: str,
    languages: tuple[str, str],
    overriding: Overriding,
) -> None:
    """Write a run directory with the weights and vocabularies of another program.

    `vocabulary_files` are those of the source, or "" for the same, and of the target.
    `languages` are the source and target language of a model with several.
    `overriding` puts the user's own values over the keys that are read from the weights. Raises
    `UserError` that names every tensor of theirs, or parameter of ours, that has no counterpart.
    """
    if has_run(workdir) or Checkpoints(workdir).steps():
        raise UserError(f"workdir={workdir}: holds a run already; choose another")
    if layout not in pytorch.LAYOUTS:  # folders of Hugging Face
        theirs, values = marian_models.marian_weights(source), marian_models.marian_values(source)
        if layout == "m2m100":
            values |= m2m100_models.m2m100_values(source, languages)
            words = m2m100_models.m2m100_words(source, languages)
        else:
            words = marian_models.marian_words(source)
    else:
        theirs = read_weights(source)
        values = pytorch.values_of(theirs, layout)
        words = read_both(*vocabulary_files, specials)
    values |= {"data.joint_vocabulary": words[0] is words[1], "model.tying": "none"}
    config = overriding({**RUN_VALUES, **values})
    matrices = take_matrices(theirs, layout, source, config, words, names)
    matrices, tying = in_our_rows(matrices, words)
    model_values = {"model.tying": tying, "model.output_bias": "output_bias" in matrices}
    config = overriding({**RUN_VALUES, **values, **model_values})
    prefix = pytorch.prefix_of(theirs) if layout == "pytorch" else ""
    layers = layouts.take_layers(theirs, LAYOUTS[layout], config.model, prefix)
    theirs.ignore_sinusoids(config.model.d_model)
    theirs.check()
    params = layers | matrices
    if layout == "marian":
        params = marian_models.paper_columns(params, config.model.d_model)
    vocabularies = Vocabularies(words[0].vocabulary, words[1].vocabulary)
    model = Transformer(config.model, vocabularies.target.size, vocabularies.source.size)
    check_complete(params, model, source)
    params = jax.tree.map(np.asarray, params)
    write_run(workdir, config, vocabularies, params, STEP)
    tell(source, theirs, params, words, workdir)


# A run that is done after one step, of pairs that nobody has given.
RUN_VALUES = {"data.name": "given", "train.steps": STEP}


def read_both(source_file: str, target_file: str, specials: str) -> tuple[Words, Words]:
    target = read_words(Path(target_file), specials)
    return (read_words(Path(source_file), specials) if source_file else target), target


def take_matrices(
    theirs: Weights,
    layout: str,
    source: Path,
    config: Config,
    words: tuple[Words, Words],
    names: str,
) -> dict[str, np.ndarray]:
    """Take the matrices of words, in their rows, and the bias of the logits if there is one."""
    D, sizes = config.model.d_model, (words[0].size, words[1].size)
    if layout not in pytorch.LAYOUTS:
        return marian_models.marian_matrices(theirs, source, D, sizes)
    known = pytorch.ANNOTATED_MATRICES
    if layout == "pytorch":
        known = pytorch.matrix_names(theirs, D, names)
    for ours, name in known.items():
        size = sizes[ours != "source_embedding"]
        if len(shape := theirs.shape(name)) == 2 and shape[0] != size:
            raise UserError(
                f"{theirs.where}: {name} has {shape[0]} rows, and the vocabulary {size} entries; "
                f"they must be those of one training"
            )
    return pytorch.take_matrices(theirs, known, config.model, sizes)


def in_our_rows(
    theirs: dict[str, np.ndarray], words: tuple[Words, Words]
) -> tuple[dict[str, np.ndarray], str]:
    """Return the matrices with our rows, equal ones once, and which of them are tied."""
    source, target = words
    embedding_VD = theirs["embedding"][target.rows]
    source_VD = theirs.get("source_embedding", theirs["embedding"])[source.rows]
    output_VD = theirs.get("output", theirs["embedding"])[target.rows]
    tying = "none"
    if np.array_equal(output_VD, embedding_VD):
        one = source is target and np.array_equal(source_VD, embedding_VD)
        tying = "all" if one else "output"
    ours = {"embedding": embedding_VD}
    if tying != "all":
        ours["source_embedding"] = source_VD
    if tying == "none":
        ours["output"] = output_VD
    bias_V = theirs.get("output_bias")
    pad, bos, eos = target.rows[:FIRST]
    if bos in (pad, eos):
        # Two of our rows copy one of theirs, which must count once in the softmax.
        bias_V = np.zeros(len(theirs["embedding"]), np.float32) if bias_V is None else bias_V
        ours["output_bias"] = bias_V[target.rows]
        ours["output_bias"][PAD if bos == pad else BOS] = FORBIDDEN
    elif bias_V is not None:
        ours["output_bias"] = bias_V[target.rows]
    return ours, tying


def check_complete(params: dict[str, Any], model: Transformer, source: Path) -> None:
    """Raise `UserError` that names each parameter that only one of weights and model has."""
    given, needed = (flatten_dict(tree, sep="/") for tree in (params, parameter_shapes(model)))
    if apart := given.keys() ^ needed.keys():
        names = ", ".join(sorted(apart))
        raise UserError(f"--from={source}: weights and config disagree about {names}")


def tell(
    source: Path, theirs: Weights, params: Any, words: tuple[Words, Words], workdir: Path
) -> None:
    leaves = jax.tree.leaves(params)
    parameters = sum(leaf.size for leaf in leaves)
    say(f"weights     {theirs.where}, sha256 {sha256_of(theirs.where)[:16]}...")
    say(f"parameters  {parameters:,} in {len(leaves)} arrays, from {len(theirs.names)} tensors")
    for side, each in zip(("source", "target"), dict.fromkeys(words), strict=False):
        pad, bos, eos = each.rows[:3]
        which = "vocabulary " if words[0] is words[1] else side.ljust(11)
        say(f"{which} {len(each.rows):,} entries; PAD, BOS, EOS are theirs {pad}, {bos}, {eos}")
    say(f"workdir     {workdir}; translate, score and evaluate open it as any other run")
