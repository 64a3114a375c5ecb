"""Masks, scaled dot-product attention (Equation 1) and multi-head attention (Section 3.2).

A mask is True where a query may attend. Letters: B sentences, Q queries, M memory, D d_model,
H heads, K d_k, U d_v.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from jformer.config import PAD, ModelConfig
from jformer.model.dropout import Dropout
from jformer.model.positions import RelativeVectors, alibi_bias, apply_rotary
from jformer.model.shapes import check_shapes


def padding_mask(tokens_BM):
    """Keeps every query off the padding of the memory."""
    return (tokens_BM != PAD)[:, None, None, :]


def segment_mask(segments_BQ, segments_BM):
    """Keeps each text of a packed row to itself. Segments count from 1, padding is 0."""
    same_BQM = segments_BQ[:, :, None] == segments_BM[:, None, :]
    return (same_BQM & (segments_BM != PAD)[:, None, :])[:, None]


def causal_mask(length):
    """Keeps position t from positions after t, Section 3.2.3.

    Padding stands at the end of a target, so no real position can see it: no second mask.
    """
    return jnp.tril(jnp.ones((1, 1, length, length), bool))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def einsum_f32(formula, x, y):
    """An einsum with a float32 result, whatever the compute dtype."""
    return jnp.einsum(formula, x, y, preferred_element_type=jnp.float32)


@einsum_f32.defjvp
def einsum_f32_jvp(formula, primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    # By JAX's own rule the backward pass would multiply float32 gradients, slower than the forward
    # pass and twice as often; by this one they are rounded to the compute dtype first.
    tangent = jnp.einsum(formula, dx, y) + jnp.einsum(formula, x, dy)
    return einsum_f32(formula, x, y), tangent.astype(jnp.float32)


def attend(q_BQHK, k_BMHK, v_BMHU, mask_B1QM, bias_BHQM=0.0, drop=lambda weights: weights):
    """Equation 1, with the softmax in float32 whatever the compute dtype: answers and weights.

    The mask's axes B and Q may be 1. A query whose mask row is all False gets a finite answer
    that the loss must ignore. The paper adds no bias to the logits and drops none of the weights.
    """
    check_shapes(q_BQHK=q_BQHK, k_BMHK=k_BMHK, v_BMHU=v_BMHU)
    # By heads first: a decoder keeps its cache so, and there this undoes the swaps of `read`.
    q_BHQK, k_BHMK, v_BHMU = (x.swapaxes(1, 2) for x in (q_BQHK, k_BMHK, v_BMHU))
    logits_BHQM = einsum_f32("BHQK,BHMK->BHQM", q_BHQK, k_BHMK)
    logits_BHQM /= q_BQHK.shape[-1] ** 0.5  # keeps the variance at 1, Section 3.2.1
    logits_BHQM += bias_BHQM
    # finfo.min and not -inf: a row of -inf would turn the softmax into NaN.
    logits_BHQM = jnp.where(mask_B1QM, logits_BHQM, jnp.finfo(jnp.float32).min)
    weights_BHQM = drop(jax.nn.softmax(logits_BHQM).astype(v_BMHU.dtype))
    mixed_BHQU = jnp.einsum("BHQM,BHMU->BHQU", weights_BHQM, v_BHMU)
    return mixed_BHQU.swapaxes(1, 2), weights_BHQM


def default_attention():
    return attend


def kernel_init(config: ModelConfig, ends_branch=False):
    """Initial values of a kernel; `ends_branch` is the projection that ends a residual branch.

    The paper is silent on them. The default is Xavier, smaller by sqrt(2N) at the end of a branch:
    branches that begin small beside what they are added to let a post-norm stack learn from its
    first steps (GPT-2 scales them so, Radford et al. 2019). With plain Xavier 6 + 6 layers stay at
    the unigram distribution for hundreds of steps.
    """
    if config.initializer == "normal":
        return nn.initializers.normal(0.02)
    if config.initializer == "scaled_xavier" and ends_branch:
        return nn.initializers.variance_scaling(1 / (2 * config.num_layers), "fan_avg", "uniform")
    return nn.initializers.xavier_uniform()


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: h attentions side by side, without biases.

    `positions` says which of the encodings by distance it uses: relative, rotary, alibi; the others
    are added to the embeddings. `make_attend` makes Equation 1, or what takes its arguments.
    """

    config: ModelConfig
    positions: str = "none"
    make_attend: Callable[[], Callable] = default_attention

    def setup(self):
        self.attend = self.make_attend()
        config, first, last = self.config, kernel_init(self.config), kernel_init(self.config, True)

        def project(features, axis=-1, kernel_init=first):
            return nn.DenseGeneral(
                features, axis, use_bias=False, kernel_init=kernel_init, dtype=config.compute_dtype
            )

        self.query = project((config.num_heads, config.key_width))
        self.key = project((config.num_heads, config.key_width))
        self.value = project((config.num_heads, config.value_width))
        self.out = project(config.d_model, axis=(-2, -1), kernel_init=last)
        self.weights_dropout = Dropout(config.attention_dropout)
        if self.positions == "relative":
            self.relative_key = RelativeVectors(config.max_distance, config.key_width)
            self.relative_value = RelativeVectors(config.max_distance, config.value_width)

    def __call__(self, x_BQD, memory_BMD, mask_B1QM, train=False):
        k_BHMK, v_BHMU = self.project_kv(memory_BMD, jnp.arange(memory_BMD.shape[1]))
        positions_Q = jnp.arange(x_BQD.shape[1])
        return self.attend_cached(x_BQD, positions_Q, k_BHMK, v_BHMU, mask_B1QM, train)

    def project_kv(self, memory_BMD, positions_M):
        """What queries read; a decoder computes it once for each position and keeps it.

        Heads come first: a query's head finds what it reads side by side.
        """
        k_BMHK, v_BMHU = self.key(memory_BMD), self.value(memory_BMD)
        return self.rotate_if_rotary(k_BMHK, positions_M).swapaxes(1, 2), v_BMHU.swapaxes(1, 2)

    def attend_cached(self, x_BQD, positions_Q, k_BHMK, v_BHMU, mask_B1QM, train, positions_M=None):
        """Each query's mixture of the values, back in d_model. Unset, positions_M are 0, 1, ..."""
        if positions_M is None:
            positions_M = jnp.arange(k_BHMK.shape[2])
        distances_QM = positions_M[None, :] - positions_Q[:, None]
        q_BQHK = self.rotate_if_rotary(self.query(x_BQD), positions_Q)
        if not self.config.scaled_attention:
            q_BQHK *= q_BQHK.shape[-1] ** 0.5  # undoes the division in Equation 1
        mixed_BQHU, weights_BHQM = self.attend(
            q_BQHK,
            k_BHMK.swapaxes(1, 2),
            v_BHMU.swapaxes(1, 2),
            mask_B1QM,
            self.bias(q_BQHK, distances_QM),
            functools.partial(self.weights_dropout, train=train),
        )
        if self.positions == "relative":
            relative_QMU = self.relative_value(distances_QM).astype(weights_BHQM.dtype)
            mixed_BQHU += jnp.einsum("BHQM,QMU->BQHU", weights_BHQM, relative_QMU)
        # Kept only where a caller asks for it: apply(..., mutable="intermediates").
        self.sow("intermediates", "weights_BHQM", weights_BHQM)
        return self.out(mixed_BQHU)

    def rotate_if_rotary(self, x_BLHK, positions_L):
        return apply_rotary(x_BLHK, positions_L) if self.positions == "rotary" else x_BLHK

    def bias(self, q_BQHK, distances_QM):
        """What the distance of a query and a key adds to the logits of Equation 1."""
        if self.positions == "alibi":
            return alibi_bias(distances_QM, self.config.num_heads)
        if self.positions == "relative":
            relative_QMK = self.relative_key(distances_QM).astype(q_BQHK.dtype)
            return einsum_f32("BQHK,QMK->BHQM", q_BQHK, relative_QMK) / q_BQHK.shape[-1] ** 0.5
        return 0.0
