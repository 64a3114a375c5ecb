"""Masks, scaled dot-product attention (Equation 1) and multi-head attention (Section 3.2).

Heads are the second axis throughout: the positions of one head are contiguous in memory, as a
decoder's cache requires. A mask is True where a query may attend. `jformer/__init__.py` lists the
letters of the axes.
"""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jformer.components import arguments, find
from jformer.config import PAD, ModelConfig
from jformer.model.linear import Linear
from jformer.model.numerics import Dropout, attend_fused, einsum_f32
from jformer.model.positions import Positions
from jformer.model.shapes import checked

Kind = Literal["encoder", "decoder", "cross"]


@checked
def padding_mask(tokens_BM: Array) -> Array:
    """Prevent every query from attending to padding in the memory: (B, 1, 1, M)."""
    return (tokens_BM != PAD)[:, None, None, :]


@checked
def segment_mask(segments_BQ: Array, segments_BM: Array) -> Array:
    """Keep the texts of a packed row apart: (B, 1, Q, M). Segments count from 1, padding is 0."""
    same_BQM = segments_BQ[:, :, None] == segments_BM[:, None, :]
    return (same_BQM & (segments_BM != PAD)[:, None, :])[:, None]


def causal_mask(length: int) -> Array:
    """Prevent position t from attending to later positions, Section 3.2.3: (1, 1, T, T).

    Targets are padded at the end, so this mask also hides the padding from their tokens.
    """
    return jnp.tril(jnp.ones((1, 1, length, length), bool))


@checked
def attend(
    q_BHQK: Array,
    k_BHMK: Array,
    v_BHMU: Array,
    mask_B1QM: Array,
    distances_BQM: Array | None = None,
    kind: Kind = "encoder",
    bias_BHQM: Array | float = 0.0,
    drop: Callable[[Array], Array] = lambda weights: weights,
    *,
    scaled: bool = True,
) -> tuple[Array, Array]:
    """Equation 1: return the mixed values (B, H, Q, U) and the attention weights (B, H, Q, M).

    The softmax is in float32 whatever the compute dtype. A query whose mask row is all False gets
    a finite answer that the loss must ignore. Variants add `bias_BHQM` to the logits and `drop`
    weights. Other attention components need their kind and the distances, memory position minus
    query position.
    """
    # The keys come first: in decoding, XLA multiplies many keys by few queries up to 1.8 times as
    # fast on a CPU as few queries by many keys.
    logits_BHQM = einsum_f32("BHMK,BHQK->BHQM", k_BHMK, q_BHQK)
    if scaled:
        logits_BHQM /= q_BHQK.shape[-1] ** 0.5  # keeps the variance at 1, Section 3.2.1
    logits_BHQM += bias_BHQM
    # finfo.min and not -inf: a row of -inf would turn the softmax into NaN.
    logits_BHQM = jnp.where(mask_B1QM, logits_BHQM, jnp.finfo(jnp.float32).min)
    weights_BHQM = drop(jax.nn.softmax(logits_BHQM).astype(v_BHMU.dtype))
    return jnp.einsum("BHQM,BHMU->BHQU", weights_BHQM, v_BHMU), weights_BHQM


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: h attentions in parallel.

    `kind` is "encoder" or "decoder" for self-attention, and "cross" between the two.
    """

    config: ModelConfig
    kind: Kind = "encoder"

    def setup(self):
        config, H, use_bias = self.config, self.config.num_heads, self.config.attention_bias
        self.attend = find("config.model.attention", "attention", config.attention)
        self.positions = find("config.model.positions", "positions", config.positions)
        if self.kind == "cross" and not self.positions.cross_attention:
            self.positions = Positions()
        self.query = Linear(config, (H, config.key_width), use_bias)
        self.key = Linear(config, (H, config.key_width), use_bias)
        self.value = Linear(config, (H, config.value_width), use_bias)
        if config.out_projection:
            self.out = Linear(config, (config.d_model,), use_bias, input_axes=2, ends_branch=True)
        self.weights_dropout = Dropout(config.attention_dropout)

    @checked
    def __call__(
        self,
        x_BQD: Array,
        memory_BMD: Array,
        mask_B1QM: Array,
        train: bool = False,
        positions: tuple[Array, Array] | None = None,
    ) -> Array:
        """Let each position of `x_BQD` attend to the memory: (B, Q, D).

        The positions of queries and memory default to the indices within the row.
        """
        if positions is None:
            positions = jnp.arange(x_BQD.shape[1])[None], jnp.arange(memory_BMD.shape[1])[None]
        k_BHMK, v_BHMU = self.project_kv(memory_BMD, positions[1])
        return self.attend_to(x_BQD, k_BHMK, v_BHMU, mask_B1QM, positions, train)

    @checked
    def project_kv(self, memory_BMD: Array, positions_BM: Array) -> tuple[Array, Array]:
        """Project the memory to keys (B, H, M, K) and values (B, H, M, U); cached when decoding."""
        k_BHMK = self.key(memory_BMD).swapaxes(1, 2)
        v_BHMU = self.value(memory_BMD).swapaxes(1, 2)
        return self.positions.rotate(k_BHMK, positions_BM), v_BHMU

    @checked
    def attend_to(
        self,
        x_BQD: Array,
        k_BHMK: Array,
        v_BHMU: Array,
        mask_B1QM: Array,
        positions: tuple[Array, Array],
        train: bool = False,
    ) -> Array:
        """Let each position of `x_BQD` attend to projected keys and values: (B, Q, D)."""
        positions_BQ, positions_BM = positions
        q_BHQK = self.positions.rotate(self.query(x_BQD).swapaxes(1, 2), positions_BQ)
        if train and self.config.fused_attention:
            scaled = arguments("attention", self.config.attention)["scaled"]
            mixed_BHQU = attend_fused(q_BHQK, k_BHMK, v_BHMU, mask_B1QM, scaled)
        else:
            # Self-attention has the same distances in all rows, packed or not: B is 1.
            distances_BQM = positions_BM[:, None, :] - positions_BQ[:, :, None]
            bias_BHQM = self.positions.bias(self.config.num_heads, distances_BQM)
            drop = functools.partial(self.weights_dropout, train=train)
            mixed_BHQU, weights_BHQM = self.attend(
                q_BHQK, k_BHMK, v_BHMU, mask_B1QM, distances_BQM, self.kind, bias_BHQM, drop
            )
            # Kept only if a caller requests it: apply(..., mutable="intermediates").
            self.sow("intermediates", "weights_BHQM", weights_BHQM)
        mixed_BQHU = mixed_BHQU.swapaxes(1, 2)
        if self.config.out_projection:
            return self.out(mixed_BQHU)
        return mixed_BQHU.reshape(*mixed_BQHU.shape[:2], self.config.d_model)
