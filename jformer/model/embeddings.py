"""Token embeddings: their scale and the shared matrix (Section 3.4)."""

import dataclasses
from collections.abc import Callable

from flax import linen as nn
from jax import Array

from jformer.components import find
from jformer.config import PAD, ModelConfig
from jformer.model.positions import Positions


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """Embedding matrices with one row per token. The paper shares one matrix for all three."""

    source_VD: Array
    target_VD: Array
    output: tuple[Array, Array | None]  # the matrix (V, D) of the logits, and a bias (V)
    positions: Positions
    position_table: Array | None  # of learned positions


def create_embeddings(
    param: Callable, config: ModelConfig, V_source: int, V_target: int
) -> Embeddings:
    """Create one matrix for source, target and output (Section 3.4), or as `tying` specifies.

    `param` is the method of the module that owns the parameters.
    """
    if config.tying == "all" and V_source != V_target:
        raise ValueError(f"vocabularies of {V_source} and {V_target} entries require tying=output")

    def matrix(name: str, rows: int) -> Array:
        # With this standard deviation the scaled embeddings have variance 1.
        return param(name, nn.initializers.normal(config.d_model**-0.5), (rows, config.d_model))

    def tokens(name: str, rows: int) -> Array:
        embedding_VD = matrix(name, rows)
        return embedding_VD.at[PAD].set(0.0) if config.zero_padding else embedding_VD

    source_VD = target_VD = output_VD = tokens("embedding", V_target)
    if config.tying != "all":
        source_VD = tokens("source_embedding", V_source)
    if config.tying == "none":
        output_VD = matrix("output", V_target)
    bias_V = None
    if config.output_bias:
        bias_V = param("output_bias", nn.initializers.zeros_init(), (V_target,))
    positions = find("config.model.positions", "positions", config.positions)
    table = positions.table(matrix)
    return Embeddings(source_VD, target_VD, (output_VD, bias_V), positions, table)
