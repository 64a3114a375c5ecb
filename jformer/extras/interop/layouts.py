"""Other programs' names of our parameters, a table per program, and what their formats can hold.

Their matrices are ours transposed, with the heads in one axis: `matrix_of` and its inverse
`array_of`.

Marian's sinusoids are the paper's with all sines before all cosines. A permutation of the d_model
features turns ours into these, and the whole model into one with the same outputs: `reordered`. It
is exact, since every feature goes through the same products in another order.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import unflatten_dict

from jformer.components import name_of
from jformer.config import ModelConfig
from jformer.extras.interop.weights import Weights
from jformer.training import sharding


class Leaf(NamedTuple):
    name: str  # of their tensor
    part: int | None = None  # of a tensor that joins queries, keys and values


class Layout(NamedTuple):
    """Prefixes of names; `layer`, and then `scale`, `bias` or `weight` complete a name."""

    layer: str
    attentions: tuple[str, str]  # self-attention, cross-attention
    projections: tuple[str, str, str, str]  # query, key, value, out
    feed_forward: tuple[str, str]
    norms: Mapping[str, tuple[str, ...]]  # by stack, in the order of the sub-layers
    final_norm: str = ""
    scale: str = "weight"
    bias: str = "bias"

    @property
    def is_joint(self) -> bool:
        """Whether one tensor joins queries, keys and values."""
        return self.projections[0] == self.projections[1]


PYTORCH = Layout(
    "{stack}.layers.{number}.",
    ("self_attn.", "multihead_attn."),
    ("in_proj_", "in_proj_", "in_proj_", "out_proj."),
    ("linear1.", "linear2."),
    {"encoder": ("norm1.", "norm2."), "decoder": ("norm1.", "norm2.", "norm3.")},
    "{stack}.norm.",
)
ANNOTATED = Layout(
    "{stack}.layers.{number}.",
    ("self_attn.", "src_attn."),
    ("linears.0.", "linears.1.", "linears.2.", "linears.3."),
    ("feed_forward.w_1.", "feed_forward.w_2."),
    {
        "encoder": ("sublayer.0.norm.", "sublayer.1.norm."),
        "decoder": ("sublayer.0.norm.", "sublayer.1.norm.", "sublayer.2.norm."),
    },
    "{stack}.norm.",
    scale="a_2",
    bias="b_2",
)
MARIAN = Layout(
    "model.{stack}.layers.{number}.",
    ("self_attn.", "encoder_attn."),
    ("q_proj.", "k_proj.", "v_proj.", "out_proj."),
    ("fc1.", "fc2."),
    {
        "encoder": ("self_attn_layer_norm.", "final_layer_norm."),
        "decoder": ("self_attn_layer_norm.", "encoder_attn_layer_norm.", "final_layer_norm."),
    },
)
M2M100 = MARIAN._replace(final_norm="model.{stack}.layer_norm.")
ATTENTIONS = {"encoder": ("self_attention",), "decoder": ("self_attention", "cross_attention")}
# The axes of our arrays, by the end of their names. Sharding does not need the small ones.
AXES = {
    **sharding.AXES,
    "ffn_out/bias": "D",
    "out/bias": "D",
    "norm/scale": "D",
    "norm/bias": "D",
}


def axes_of(name: str) -> str:
    """Return the axes of our array, such as `encoder_0/feed_forward/ffn_in/kernel`."""
    return AXES[max(filter(name.endswith, AXES), key=len)]  # of out/kernel and ffn_out/kernel


def leaves(layout: Layout, config: ModelConfig, prefix: str = "") -> dict[str, Leaf]:
    """Return the leaves of all layers and final norms by our names."""
    found = {}
    for stack, depth in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
        for number in range(depth):
            layer = prefix + layout.layer.format(stack=stack, number=number)
            for ours, leaf in layer_leaves(layout, stack, config.attention_bias).items():
                found[f"{stack}_{number}/{ours}"] = leaf._replace(name=layer + leaf.name)
        if config.ends_in_norm:
            norm = prefix + layout.final_norm.format(stack=stack)
            found[f"{stack}_norm/scale"] = Leaf(norm + layout.scale)
            found[f"{stack}_norm/bias"] = Leaf(norm + layout.bias)
    return found


def layer_leaves(layout: Layout, stack: str, attention_bias: bool) -> dict[str, Leaf]:
    """Return the leaves of a layer of the encoder or the decoder by our names."""
    found = {}
    for ours, theirs in zip(ATTENTIONS[stack], layout.attentions, strict=False):
        parts = zip(("query", "key", "value", "out"), layout.projections, strict=True)
        for number, (part, projection) in enumerate(parts):
            joined = number if layout.is_joint and part != "out" else None
            found[f"{ours}/{part}/kernel"] = Leaf(f"{theirs}{projection}weight", joined)
            if attention_bias:
                found[f"{ours}/{part}/bias"] = Leaf(f"{theirs}{projection}bias", joined)
    for ours, theirs in zip(("ffn_in", "ffn_out"), layout.feed_forward, strict=True):
        found[f"feed_forward/{ours}/kernel"] = Leaf(f"{theirs}weight")
        found[f"feed_forward/{ours}/bias"] = Leaf(f"{theirs}bias")
    sub_layers = (*ATTENTIONS[stack], "feed_forward")
    for ours, theirs in zip(sub_layers, layout.norms[stack], strict=True):
        found[f"{ours}_residual/norm/scale"] = Leaf(theirs + layout.scale)
        found[f"{ours}_residual/norm/bias"] = Leaf(theirs + layout.bias)
    return found


def take_layers(
    theirs: Weights, layout: Layout, config: ModelConfig, prefix: str = ""
) -> dict[str, Any]:
    """Take the layers of both stacks, and their final norms, as our parameters."""
    H, K, U = config.num_heads, config.key_width, config.value_width
    sizes = {"D": config.d_model, "F": config.d_ff, "H": H, "K": K, "U": U}
    arrays = {}
    for name, leaf in leaves(layout, config, prefix).items():
        shape = tuple(sizes[axis] for axis in axes_of(name))
        rows, *columns = matrix_of(name, np.empty(shape)).shape
        if leaf.part is None:
            matrix = theirs.take(leaf.name, rows, *columns)
        else:
            matrix = np.split(theirs.take(leaf.name, 3 * rows, *columns), 3)[leaf.part]
        arrays[name] = array_of(name, matrix, shape)
    return unflatten_dict(arrays, sep="/")


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


def check_model(config: ModelConfig, user: str, **held: Collection[Any]) -> None:
    """Raise `UserError` for the first key of `config.model` whose value is not in `held[key]`.

    `user` is the flag that asks for the format, such as --format=ctranslate2.
    """
    for name, values in held.items():
        value = getattr(config, name)
        # The options of a norm and of positions are written with the weights.
        if (name_of(value) if name in ("norm", "positions") else value) not in values:
            known = " or ".join(str(value) for value in values)
            raise config.wrong(name, f"{user} can hold {known} alone")


def check_common(config: ModelConfig, user: str) -> None:
    """Raise `UserError` for what neither Marian nor CTranslate2 has a place for."""
    ends_in_norm = "on" if config.norm_position == "pre" else "off"
    check_model(
        config,
        user,
        attention=("dot_product",),
        out_projection=(True,),
        zero_padding=(False,),
        final_norm=("auto", ends_in_norm),
        norm=("layer_norm",),
        d_k=(None, config.d_model // config.num_heads),
        d_v=(None, config.d_model // config.num_heads),
    )
