"""The names of our parameters in other programs, and what the formats of these programs support.

Their matrices are ours transposed, with the heads in one axis: `matrix_of` and its inverse
`array_of`.

Marian's sinusoids are the paper's with all sines before all cosines. A permutation of the d_model
features turns ours into these, and the whole model into one with the same outputs: `reordered`. It
is exact, since every feature goes through the same products in another order.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from jformer.components import name_of
from jformer.config import ModelConfig
from jformer.errors import UserError
from jformer.training import sharding

# Parts of our names, and their parts in torch.nn.Transformer, The Annotated Transformer and Marian.
# The parts of a path are joined: `encoder_0/self_attention/out/bias` is `layer`, `self_attention`,
# `out` and `bias`. A part of one stack begins with its name.
NAMES = {
    "layer": ("{stack}.layers.{n}.", "{stack}.layers.{n}.", "model.{stack}.layers.{n}."),
    "final_norm": ("{stack}.norm.", "{stack}.norm.", "model.{stack}.layer_norm."),
    "self_attention": ("self_attn.", "self_attn.", "self_attn."),
    "cross_attention": ("multihead_attn.", "src_attn.", "encoder_attn."),
    "query": ("in_proj_", "linears.0.", "q_proj."),
    "key": ("in_proj_", "linears.1.", "k_proj."),
    "value": ("in_proj_", "linears.2.", "v_proj."),
    "out": ("out_proj.", "linears.3.", "out_proj."),
    "feed_forward": ("", "feed_forward.", ""),
    "ffn_in": ("linear1.", "w_1.", "fc1."),
    "ffn_out": ("linear2.", "w_2.", "fc2."),
    "self_attention_residual": ("norm1.", "sublayer.0.", "self_attn_layer_norm."),
    "cross_attention_residual": ("norm2.", "sublayer.1.", "encoder_attn_layer_norm."),
    "encoder/feed_forward_residual": ("norm2.", "sublayer.1.", "final_layer_norm."),
    "feed_forward_residual": ("norm3.", "sublayer.2.", "final_layer_norm."),
    "norm": ("", "norm.", ""),
    "kernel": ("weight", "weight", "weight"),
    "bias": ("bias", "bias", "bias"),
    "norm/scale": ("weight", "a_2", "weight"),
    "norm/bias": ("bias", "b_2", "bias"),
}
COLUMNS = {"pytorch": 0, "annotated": 1, "marian": 2, "m2m100": 2}
JOINED = ("query", "key", "value")  # are one tensor in the layout pytorch, in this order
# Values of config.model that an export format holds, besides those that all formats hold.
OF_FORMATS: dict[str, dict[str, Collection[Any]]] = {
    "ctranslate2": {"positions": ("sinusoidal", "halves", "learned", "none")},
    "transformers": {"norm_position": ("post",), "positions": ("sinusoidal",), "tying": ("all",)},
}
# The axes of our arrays, by the end of their names. Sharding does not need the small ones.
AXES = {
    **sharding.AXES,
    "ffn_out/bias": "D",
    "out/bias": "D",
    "norm/scale": "D",
    "norm/bias": "D",
}


def tensor_name(name: str, layout: str) -> str:
    """Return the other program's name of our parameter of a layer or final norm."""
    stack, number, *modules, kind = name.replace("_", "/", 1).split("/")
    if "norm" in (number, *modules):
        kind = f"norm/{kind}"
    path = ["final_norm" if number == "norm" else "layer", *modules, kind]
    if unknown := [part for part in path if part not in NAMES]:
        raise UserError(f"--layout={layout}: does not support {unknown[0]}, as in {name}")
    column = COLUMNS[layout]
    theirs = "".join(NAMES.get(f"{stack}/{part}", NAMES[part])[column] for part in path)
    return theirs.format(stack=stack, n=number)


def named_layers(arrays: Mapping[str, np.ndarray], layout: str) -> dict[str, np.ndarray]:
    """Return our parameters of layers and final norms as tensors."""
    return {
        tensor_name(name, layout): matrix_of(name, array)
        for name, array in arrays.items()
        if "/" in name
    }


def matrix_of(name: str, array: np.ndarray) -> np.ndarray:
    """Return our array of that name as others have it."""
    if not name.endswith("/kernel"):
        return array.reshape(-1)
    shape = (-1, array.shape[-1]) if name.endswith("/out/kernel") else (array.shape[0], -1)
    return array.reshape(shape).T


def array_of(name: str, matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return their array for our name in our shape; the inverse of `matrix_of`."""
    return (matrix.T if name.endswith("/kernel") else matrix).reshape(shape)


def halves_order(d_model: int) -> np.ndarray:
    """Return the features with a sine, which are even, and then those with a cosine."""
    return np.arange(d_model).reshape(-1, 2).T.ravel()


def reordered(arrays: dict[str, np.ndarray], order: np.ndarray) -> dict[str, np.ndarray]:
    """Permute the d_model features of our arrays by name, which is an exact change of the model."""
    return {
        name: np.take(array, order, axes.index("D")) if "D" in (axes := axes_of(name)) else array
        for name, array in arrays.items()
    }


def axes_of(name: str) -> str:
    """Return the axes of our array, such as `encoder_0/feed_forward/ffn_in/kernel`."""
    return AXES[max(filter(name.endswith, AXES), key=len)]  # of out/kernel and ffn_out/kernel


def check_model(config: ModelConfig, format: str) -> None:
    """Raise `UserError` for the first key of `config.model` that an export format does not hold."""
    width = config.d_model // config.num_heads
    supported: dict[str, Collection[Any]] = {
        "attention": ("dot_product",),
        "out_projection": (True,),
        "zero_padding": (False,),
        "final_norm": ("auto", "on" if config.norm_position == "pre" else "off"),
        "norm": ("layer_norm",),
        "d_k": (None, width),
        "d_v": (None, width),
        "activation": ("relu", "gelu", "silu"),
        **OF_FORMATS[format.partition(":")[0]],
    }
    for name, values in supported.items():
        value = getattr(config, name)
        # The options of a norm and of positions are written with the weights.
        if (name_of(value) if name in ("norm", "positions") else value) not in values:
            known = " or ".join(str(value) for value in values)
            raise config.wrong(name, f"--format={format} supports only {known}")
