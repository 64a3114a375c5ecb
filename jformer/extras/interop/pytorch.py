"""State dicts of `torch.nn.Transformer` and The Annotated Transformer.

Whoever uses `torch.nn.Transformer` adds embeddings and an output layer under names of their own:
they are found by parts of their names, or named by the user.
"""

from pathlib import Path
from typing import Any

from jformer.errors import UserError
from jformer.extras.interop.layouts import tensor_name
from jformer.extras.interop.vocabularies import SpecialIds, read_vocabulary
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
    theirs = without_prefix(read_weights(path), layout)
    values = values_of(theirs, layout)
    source_file, target_file = vocabulary_files
    target = read_vocabulary(Path(target_file), specials)
    source = read_vocabulary(Path(source_file), specials) if source_file else target
    D = values["model.d_model"]
    candidates = matrices_in(theirs, D)
    names = names or names_by_parts(candidates)
    if "embedding" not in names:
        found = ", ".join(f"{name} {list(theirs.shape(name))}" for name in candidates)
        raise UserError(
            f"{path}: cannot find the embeddings and the output among its matrices ({found}); set "
            f"--names=source_embedding=NAME,embedding=NAME,output=NAME"
        )
    matrices = take_matrices(theirs, names, D, (source, target))
    bias = names.get("output", "").removesuffix("weight") + "bias"
    if bias in theirs.tensors:
        matrices["output_bias"] = theirs.take(bias, target.size)
    theirs.ignore_sinusoids(D)
    return Source(path.stem, layout, theirs, values, (source, target), matrices)


def without_prefix(theirs: Weights, layout: str) -> Weights:
    """Return the tensors without what precedes `encoder` in their names, such as `transformer.`."""
    first = tensor_name("encoder_0/self_attention/query/kernel", layout)
    prefix = next((x.removesuffix(first) for x in theirs.tensors if x.endswith(first)), "")
    return Weights(
        {name.removeprefix(prefix): x for name, x in theirs.tensors.items()}, theirs.where
    )


def values_of(theirs: Weights, layout: str) -> dict[str, Any]:
    """Return the config keys that follow from the shapes, with those that the layout implies."""
    d_model, d_ff = theirs.shape(tensor_name("encoder_0/feed_forward/ffn_out/kernel", layout))
    bias = tensor_name("encoder_0/self_attention/query/bias", layout)
    return {
        "model.d_model": d_model,
        "model.d_ff": d_ff,
        "model.num_layers": theirs.layers("encoder.layers."),
        "model.num_decoder_layers": theirs.layers("decoder.layers."),
        "model.final_norm": "on" if theirs.layers("encoder.norm.") else "off",
        "model.attention_bias": bias in theirs.tensors,
        **DEFAULTS[layout],
    }


def matrices_in(theirs: Weights, D: int) -> list[str]:
    """Return the names of matrices with D columns outside the layers."""
    return [
        name
        for name, tensor in theirs.tensors.items()
        if tensor.ndim == 2
        and tensor.shape[1] == D
        and not name.startswith(("encoder.layers.", "decoder.layers."))
        and not theirs.is_table_of_sinusoids(name, D)
    ]


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
