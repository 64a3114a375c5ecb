"""State dicts of `torch.nn.Transformer` and The Annotated Transformer.

Whoever uses `torch.nn.Transformer` adds embeddings and an output layer under names of their own:
they are found by parts of their names, or named by the user.
"""

from pathlib import Path
from typing import Any

from jformer.errors import UserError
from jformer.extras.interop.layouts import tensor_name
from jformer.extras.interop.vocabularies import read_vocabulary
from jformer.extras.interop.weights import Source, Weights, read_weights, take_matrices

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


def read(
    path: Path, layout: str, vocabulary_files: tuple[str, str], specials: str, names: str
) -> Source:
    """Read a state dict of the layout pytorch or annotated.

    `vocabulary_files` are those of the source, or "" for the same, and of the target.
    """
    theirs = read_weights(path)
    first = tensor_name("encoder_0/self_attention/query/kernel", layout)
    prefix = next((x.removesuffix(first) for x in theirs.tensors if x.endswith(first)), "")
    values = values_of(theirs, layout, prefix)
    source_file, target_file = vocabulary_files
    target = read_vocabulary(Path(target_file), specials)
    source = read_vocabulary(Path(source_file), specials) if source_file else target
    D = values["model.d_model"]
    known = given_names(names) if names else matrix_names(theirs, D, prefix)
    matrices = take_matrices(theirs, known, D, (source, target))
    bias = known.get("output", "").removesuffix("weight") + "bias"
    if bias in theirs.tensors:
        matrices["output_bias"] = theirs.take(bias, target.size)
    theirs.ignore_sinusoids(D)
    return Source(path.stem, layout, theirs, values, (source, target), matrices, prefix=prefix)


def values_of(theirs: Weights, layout: str, prefix: str) -> dict[str, Any]:
    """Return the config keys that follow from the shapes, with those that the layout implies."""

    def name_of(ours: str) -> str:
        return tensor_name(ours, layout, prefix)

    shape = theirs.shape(name_of("encoder_0/feed_forward/ffn_out/kernel"))
    return {
        "model.d_model": shape[0],
        "model.d_ff": shape[-1],
        "model.num_layers": theirs.layers(f"{prefix}encoder.layers."),
        "model.num_decoder_layers": theirs.layers(f"{prefix}decoder.layers."),
        "model.final_norm": "on" if name_of("encoder_norm/scale") in theirs.tensors else "off",
        "model.attention_bias": name_of("encoder_0/self_attention/query/bias") in theirs.tensors,
        **DEFAULTS[layout],
    }


def matrix_names(theirs: Weights, D: int, prefix: str) -> dict[str, str]:
    """Return the names of embeddings and output by ours; a single matrix is `embedding`."""
    stacks = (f"{prefix}encoder.layers.", f"{prefix}decoder.layers.")
    found = [
        name
        for name in theirs.tensors
        if len(theirs.shape(name)) == 2
        and theirs.shape(name)[1] == D
        and not name.startswith(stacks)
        and not theirs.is_table_of_sinusoids(name, D)
    ]
    if len(found) == 1:
        return {"embedding": found[0]}
    fits = [
        (ours, name)
        for name in found
        for ours, parts in MATRICES.items()
        if any(part in name.removeprefix(prefix).lower() for part in parts)
    ]
    result = dict(fits)
    if not len(result) == len(fits) == len(found) or "embedding" not in result:
        names = ", ".join(f"{name} {list(theirs.shape(name))}" for name in found) or "none"
        raise UserError(
            f"{theirs.where}: cannot find the embeddings and the output among its matrices "
            f"({names}); set --names=source_embedding=NAME,embedding=NAME,output=NAME"
        )
    return result


def given_names(given: str) -> dict[str, str]:
    """Return the names in `source_embedding=NAME,embedding=NAME,output=NAME`."""
    names = dict(part.partition("=")[::2] for part in given.split(","))
    if "embedding" not in names or names.keys() - MATRICES.keys():
        form = ",".join(f"{ours}=NAME" for ours in MATRICES)
        raise UserError(f"--names={given}: must be as {form}; embedding is required")
    return names
