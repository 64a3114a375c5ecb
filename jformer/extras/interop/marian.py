"""The names that Hugging Face's Marian has for our parameters, and the parameters in its form.

Marian is the Transformer of the paper with biases in attention and of the logits, which are zero
for a model without. Its matrices are ours transposed, with the heads in one axis: `matrix_of` and
its inverse `array_of`.

Marian's sinusoids are those of the paper with all sines before all cosines. A permutation of the
d_model features turns ours into these, and the whole model into one with the same outputs:
`reordered`. It is exact, since every feature goes through the same products in another order.
"""

from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from jformer.config import ModelConfig
from jformer.extras.interop.limits import check_common, check_model


class Leaf(NamedTuple):
    name: str  # Marian's
    axes: str  # of our array, by the letters of jformer/__init__.py


EMBEDDING, OUTPUT_BIAS = "embedding", "output_bias"
SHARED = "model.shared.weight"
# Marian's other names of the same matrix.
TIED = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
ATTENTION = {
    "query/kernel": Leaf("q_proj.weight", "DHK"),
    "key/kernel": Leaf("k_proj.weight", "DHK"),
    "value/kernel": Leaf("v_proj.weight", "DHU"),
    "out/kernel": Leaf("out_proj.weight", "HUD"),
}
ATTENTION_BIASES = {
    "query/bias": Leaf("q_proj.bias", "HK"),
    "key/bias": Leaf("k_proj.bias", "HK"),
    "value/bias": Leaf("v_proj.bias", "HU"),
    "out/bias": Leaf("out_proj.bias", "D"),
}
NORM = {"scale": Leaf("weight", "D"), "bias": Leaf("bias", "D")}
FEED_FORWARD = {
    "feed_forward/ffn_in/kernel": Leaf("fc1.weight", "DF"),
    "feed_forward/ffn_in/bias": Leaf("fc1.bias", "F"),
    "feed_forward/ffn_out/kernel": Leaf("fc2.weight", "FD"),
    "feed_forward/ffn_out/bias": Leaf("fc2.bias", "D"),
}
ATTENTIONS = {
    "encoder": {"self_attention": "self_attn"},
    "decoder": {"self_attention": "self_attn", "cross_attention": "encoder_attn"},
}


def check(config: ModelConfig, user: str) -> None:
    """Raise `UserError` for what Marian has no place for; `user` is the flag that asks for it."""
    check_common(config, user)
    check_model(
        config,
        user,
        activation=("relu", "gelu", "silu"),
        norm_position=("post",),
        positions=("sinusoidal",),
        tying=("all",),
    )


def layer_leaves(stack: str, config: ModelConfig) -> dict[str, Leaf]:
    """Return the leaves of a layer of the encoder or the decoder by our names."""
    leaves = dict(FEED_FORWARD)
    attention = ATTENTION | (ATTENTION_BIASES if config.attention_bias else {})
    norms = {"feed_forward": "final_layer_norm"}
    for ours, theirs in ATTENTIONS[stack].items():
        norms[ours] = f"{theirs}_layer_norm"
        for name, leaf in attention.items():
            leaves[f"{ours}/{name}"] = leaf._replace(name=f"{theirs}.{leaf.name}")
    for ours, theirs in norms.items():
        for name, leaf in NORM.items():
            leaves[f"{ours}_residual/norm/{name}"] = leaf._replace(name=f"{theirs}.{leaf.name}")
    return leaves


def leaves(config: ModelConfig) -> dict[str, Leaf]:
    """Return the leaves of the model by our names, as `encoder_0/feed_forward/...`.

    The bias of the logits is not among them.
    """
    result = {EMBEDDING: Leaf(SHARED, "VD")}
    for stack, depth in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
        for number in range(depth):
            for name, leaf in layer_leaves(stack, config).items():
                theirs = f"model.{stack}.layers.{number}.{leaf.name}"
                result[f"{stack}_{number}/{name}"] = leaf._replace(name=theirs)
    return result


def matrix_of(name: str, array: np.ndarray) -> np.ndarray:
    """Return our array of that name as Marian has it."""
    if not name.endswith("/kernel"):
        return array if name == EMBEDDING else array.reshape(-1)
    shape = (-1, array.shape[-1]) if name.endswith("/out/kernel") else (array.shape[0], -1)
    return array.reshape(shape).T


def array_of(name: str, matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return Marian's array for our name in our shape; the inverse of `matrix_of`."""
    return (matrix.T if name.endswith("/kernel") else matrix).reshape(shape)


def halves_order(d_model: int) -> np.ndarray:
    """Return the features with a sine, which are even, and then those with a cosine."""
    return np.arange(d_model).reshape(-1, 2).T.ravel()


def reordered(
    arrays: dict[str, np.ndarray], order: np.ndarray, config: ModelConfig
) -> dict[str, np.ndarray]:
    """Permute the d_model features of our arrays by name, which is an exact change of the model."""
    axes = {name: leaf.axes for name, leaf in leaves(config).items()}
    axes |= {"source_embedding": "VD", "output": "VD", OUTPUT_BIAS: "V"}
    return {
        name: np.take(array, order, axes[name].index("D")) if "D" in axes[name] else array
        for name, array in arrays.items()
    }


def state_dict(params: Any, config: ModelConfig) -> dict[str, np.ndarray]:
    """Return Marian's weights for our parameters, without tables of positions and tied copies."""
    flat = flatten_dict(params, sep="/")
    arrays = {name: np.asarray(x, np.float32) for name, x in flat.items()}
    arrays = reordered(arrays, halves_order(config.d_model), config)
    bias_V = arrays.pop(OUTPUT_BIAS, np.zeros(len(arrays[EMBEDDING]), np.float32))
    names = {name: leaf.name for name, leaf in leaves(config).items()}
    state = {names[name]: matrix_of(name, array) for name, array in arrays.items()}
    for name in [name for name in state if name.endswith("_proj.weight")]:
        bias = name.removesuffix("weight") + "bias"
        state.setdefault(bias, np.zeros(len(state[name]), np.float32))
    return state | {"final_logits_bias": bias_V[None]}
