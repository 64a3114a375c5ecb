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
from jformer.extras.interop.weights import Weights

# Our matrices of words, and parts of the names that others give them.
MATRICES = {
    "source_embedding": ("src", "source", "encoder"),
    "embedding": ("tgt", "trg", "target", "decoder"),
    "output": ("generator", "output", "out", "proj", "head", "linear", "classifier"),
}
ATTENTIONS = {
    "encoder": {"self_attention": "self_attn"},
    "decoder": {"self_attention": "self_attn", "cross_attention": "multihead_attn"},
}
PARTS = ("query", "key", "value", "out")


def torch_values(theirs: Weights) -> dict[str, Any]:
    """Return the config keys that a `torch.nn.Transformer` has by its weights, or by default."""
    prefix = torch_prefix(theirs)
    D, F = matrix_shape(theirs, f"{prefix}encoder.layers.0.linear2.weight")
    return {
        "model.d_model": D,
        "model.d_ff": F,
        "model.num_layers": theirs.layers(f"{prefix}encoder.layers."),
        "model.num_decoder_layers": theirs.layers(f"{prefix}decoder.layers."),
        "model.final_norm": "on" if f"{prefix}encoder.norm.weight" in theirs else "off",
        "model.attention_bias": f"{prefix}encoder.layers.0.self_attn.in_proj_bias" in theirs,
        "model.norm": "layer_norm(epsilon=1e-5)",
    }


def annotated_values(theirs: Weights) -> dict[str, Any]:
    """Return the config keys that The Annotated Transformer has by its weights, or always."""
    D, F = matrix_shape(theirs, "encoder.layers.0.feed_forward.w_2.weight")
    return {
        "model.d_model": D,
        "model.d_ff": F,
        "model.num_layers": theirs.layers("encoder.layers."),
        "model.num_decoder_layers": theirs.layers("decoder.layers."),
        "model.norm_position": "pre",
        "model.norm": "sample_layer_norm",
        "model.attention_bias": True,
    }


def matrix_shape(theirs: Weights, name: str) -> tuple[int, int]:
    shape = theirs.shape(name)
    if len(shape) != 2:
        raise UserError(f"{theirs.where}: {name} is {list(shape)}, no matrix")
    return shape[0], shape[1]


def torch_prefix(theirs: Weights) -> str:
    """Return what stands before `encoder.layers.0` in the names, such as `transformer.`."""
    first = "encoder.layers.0.self_attn.in_proj_weight"
    found = next((name for name in theirs.names if name.endswith(first)), first)
    return found.removesuffix(first)


def torch_layers(theirs: Weights, config: ModelConfig) -> dict[str, Any]:
    """Take the layers of a `torch.nn.Transformer`, and the norms at the ends of its stacks."""
    D, F, prefix = config.d_model, config.d_ff, torch_prefix(theirs)
    params: dict[str, Any] = {}
    for side, depth in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
        for n in range(depth):
            at = f"{prefix}{side}.layers.{n}"
            layer: dict[str, Any] = {}
            norms = []
            for ours, name in ATTENTIONS[side].items():
                layer[ours] = torch_attention(theirs, f"{at}.{name}", config)
                norms.append(f"{ours}_residual")
            layer["feed_forward"] = {
                "ffn_in": theirs.linear(f"{at}.linear1", (D,), (F,)),
                "ffn_out": theirs.linear(f"{at}.linear2", (F,), (D,)),
            }
            for number, ours in enumerate([*norms, "feed_forward_residual"], start=1):
                name = f"{at}.norm{number}"
                layer[ours] = {"norm": theirs.norm(f"{name}.weight", f"{name}.bias", D)}
            params[f"{side}_{n}"] = layer
        if config.ends_in_norm:
            name = f"{prefix}{side}.norm"
            params[f"{side}_norm"] = theirs.norm(f"{name}.weight", f"{name}.bias", D)
    return params


def torch_attention(theirs: Weights, at: str, config: ModelConfig) -> dict[str, Any]:
    """Take an attention whose queries, keys and values are projected by one matrix (3 D, D)."""
    D, H, K = config.d_model, config.num_heads, config.key_width
    three = theirs.take(f"{at}.in_proj_weight", 3 * D, D).reshape(3, D, D)
    params = {
        part: {"kernel": matrix.T.reshape(D, H, K)}
        for part, matrix in zip(PARTS[:3], three, strict=True)
    }
    if config.attention_bias:
        biases = theirs.take(f"{at}.in_proj_bias", 3 * D).reshape(3, H, K)
        for part, bias_HK in zip(PARTS[:3], biases, strict=True):
            params[part]["bias"] = bias_HK
    params["out"] = theirs.linear(f"{at}.out_proj", (H, K), (D,), config.attention_bias)
    return params


def annotated_layers(theirs: Weights, config: ModelConfig) -> dict[str, Any]:
    """Take the layers of The Annotated Transformer, and the norms at the ends of its stacks."""
    D, F, H, K = config.d_model, config.d_ff, config.num_heads, config.key_width
    names = {"self_attention": "self_attn", "cross_attention": "src_attn"}
    params: dict[str, Any] = {}

    def norm(at: str) -> dict[str, np.ndarray]:
        return theirs.norm(f"{at}.a_2", f"{at}.b_2", D)

    for side, depth in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
        for n in range(depth):
            at, layer = f"{side}.layers.{n}", dict[str, Any]()
            for number, ours in enumerate(ATTENTIONS[side]):
                linears = f"{at}.{names[ours]}.linears"
                layer[ours] = {
                    part: theirs.linear(f"{linears}.{i}", (D,), (H, K))
                    for i, part in enumerate(PARTS[:3])
                }
                layer[ours]["out"] = theirs.linear(f"{linears}.3", (H, K), (D,))
                layer[f"{ours}_residual"] = {"norm": norm(f"{at}.sublayer.{number}.norm")}
            layer["feed_forward"] = {
                "ffn_in": theirs.linear(f"{at}.feed_forward.w_1", (D,), (F,)),
                "ffn_out": theirs.linear(f"{at}.feed_forward.w_2", (F,), (D,)),
            }
            last = len(ATTENTIONS[side])
            layer["feed_forward_residual"] = {"norm": norm(f"{at}.sublayer.{last}.norm")}
            params[f"{side}_{n}"] = layer
        if config.ends_in_norm:
            params[f"{side}_norm"] = norm(f"{side}.norm")
    return params


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
    prefix = torch_prefix(theirs)
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
