"""State dicts of `torch.nn.Transformer` and The Annotated Transformer as configs and parameters.

Whoever uses `torch.nn.Transformer` adds embeddings and an output layer under names of their own:
they are found by parts of their names, or named. The letters of the axes are in
`jformer/__init__.py`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jformer.config import ModelConfig
from jformer.errors import UserError
from jformer.extras.interop import layouts
from jformer.extras.interop.weights import Weights

# Our matrices of words, and parts of the names that others give them.
MATRICES = {
    "source_embedding": ("src", "source", "encoder"),
    "embedding": ("tgt", "trg", "target", "decoder"),
    "output": ("generator", "output", "out", "proj", "head", "linear", "classifier"),
}
# Keys that a program's weights do not show.
DEFAULTS = {
    "pytorch": {"model.norm": "layer_norm(epsilon=1e-5)"},
    "annotated": {"model.norm_position": "pre", "model.norm": "sample_layer_norm"},
}
LAYOUTS = {"pytorch": layouts.PYTORCH, "annotated": layouts.ANNOTATED}


def values_of(theirs: Weights, name: str) -> dict[str, Any]:
    """Return the config keys that weights of the layout `name` have by their shapes."""
    layout, prefix = LAYOUTS[name], prefix_of(theirs)
    first = prefix + layout.layer.format(stack="encoder", number=0)
    D, F = matrix_shape(theirs, f"{first}{layout.feed_forward[1]}weight")
    attention = first + layout.attentions[0] + layout.projections[0]
    final_norm = prefix + layout.final_norm.format(stack="encoder") + layout.scale
    return {
        "model.d_model": D,
        "model.d_ff": F,
        "model.num_layers": theirs.layers(f"{prefix}encoder.layers."),
        "model.num_decoder_layers": theirs.layers(f"{prefix}decoder.layers."),
        "model.final_norm": "on" if final_norm in theirs else "off",
        "model.attention_bias": f"{attention}bias" in theirs,
        **DEFAULTS[name],
    }


def matrix_shape(theirs: Weights, name: str) -> tuple[int, int]:
    shape = theirs.shape(name)
    if len(shape) != 2:
        raise UserError(f"{theirs.where}: {name} is {list(shape)}, no matrix")
    return shape[0], shape[1]


def prefix_of(theirs: Weights) -> str:
    """Return what comes before `encoder.layers.0` in the names, such as `transformer.`."""
    first = "encoder.layers.0.self_attn.in_proj_weight"
    found = next((name for name in theirs.names if name.endswith(first)), first)
    return found.removesuffix(first)


ANNOTATED_MATRICES = {
    "source_embedding": "src_embed.0.lut.weight",
    "embedding": "tgt_embed.0.lut.weight",
    "output": "generator.proj.weight",
}


def matrix_names(theirs: Weights, D: int, given: str) -> dict[str, str]:
    """Return the names of the matrices of words by ours, which `given` says or their names show.

    `given` is as `embedding=NAME,output=NAME`. One matrix for all three uses is `embedding`.
    """
    if given:
        return given_names(theirs, given)
    prefix = prefix_of(theirs)
    stacks = (f"{prefix}encoder.layers.", f"{prefix}decoder.layers.")
    found = [
        name
        for name in theirs.names
        if len(theirs.shape(name)) == 2
        and theirs.shape(name)[1] == D
        and not name.startswith(stacks)
        and not theirs.is_table_of_sinusoids(name, D)
    ]
    if len(found) == 1:
        return {"embedding": found[0]}
    result: dict[str, str] = {}
    for name in found:
        own_name = name.removeprefix(prefix).lower()
        fits = [ours for ours, words in MATRICES.items() if any(w in own_name for w in words)]
        if len(fits) != 1 or fits[0] in result:
            result = {}
            break
        result[fits[0]] = name
    if "embedding" not in result:
        there = ", ".join(f"{name} {list(theirs.shape(name))}" for name in found) or "none"
        raise UserError(
            f"{theirs.where}: which of its matrices are embeddings and output cannot be told by "
            f"their names ({there}); say so: "
            f"--names=source_embedding=NAME,embedding=NAME,output=NAME"
        )
    return result


def given_names(theirs: Weights, given: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in given.split(",")]
    result = {ours: name for ours, _, name in pairs}
    for ours, name in result.items():
        if ours not in MATRICES:
            raise UserError(f"--names={given}: {ours!r} is none of {', '.join(MATRICES)}")
        theirs.shape(name)
    if "embedding" not in result:
        raise UserError(f"--names={given}: embedding=NAME is missing, that of the target")
    return result


def take_matrices(
    theirs: Weights, names: Mapping[str, str], config: ModelConfig, sizes: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Take the matrices of words, of `sizes` source and target words, and the bias of logits."""
    V_source, V_target = sizes
    rows = {"source_embedding": V_source, "embedding": V_target, "output": V_target}
    taken = {ours: theirs.take(name, rows[ours], config.d_model) for ours, name in names.items()}
    bias = names.get("output", "").removesuffix("weight") + "bias"
    if bias in theirs:
        taken["output_bias"] = theirs.take(bias, V_target)
    return taken
