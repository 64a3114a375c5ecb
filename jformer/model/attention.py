"""Masks, scaled dot-product attention (Equation 1) and multi-head attention (Section 3.2).

A mask is True where a query may attend. Letters: B sentences, Q queries, M memory, D d_model,
H heads, K d_k, U d_v.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from jformer.config import PAD, ModelConfig
from jformer.model.shapes import check_shapes


def padding_mask(tokens_BM):
    """Keeps every query off the padding of the memory."""
    return (tokens_BM != PAD)[:, None, None, :]


def causal_mask(length):
    """Keeps position t from positions after t, Section 3.2.3.

    Padding stands at the end of a target, so no real position can see it: no second mask.
    """
    return jnp.tril(jnp.ones((1, 1, length, length), bool))


def attend(q_BQHK, k_BMHK, v_BMHU, mask_B1QM):
    """Equation 1, with the softmax in float32 whatever the compute dtype.

    The mask's axes B and Q may be 1. A query whose mask row is all False gets a finite answer
    that the loss must ignore.
    """
    check_shapes(q_BQHK=q_BQHK, k_BMHK=k_BMHK, v_BMHU=v_BMHU)
    logits_BHQM = jnp.einsum("BQHK,BMHK->BHQM", q_BQHK, k_BMHK).astype(jnp.float32)
    logits_BHQM /= q_BQHK.shape[-1] ** 0.5  # keeps the variance at 1, Section 3.2.1
    # finfo.min and not -inf: a row of -inf would turn the softmax into NaN.
    logits_BHQM = jnp.where(mask_B1QM, logits_BHQM, jnp.finfo(jnp.float32).min)
    weights_BHQM = jax.nn.softmax(logits_BHQM).astype(v_BMHU.dtype)
    return jnp.einsum("BHQM,BMHU->BQHU", weights_BHQM, v_BMHU)


def residual_init(num_layers):
    """Xavier, smaller by sqrt(2N), for the projection that ends a residual branch.

    The paper is silent on initial values. Branches that begin small beside what they are added to
    let a post-norm stack learn from its first steps (GPT-2 scales them so, Radford et al. 2019);
    with plain Xavier 6 + 6 layers stay at the unigram distribution for hundreds of steps.
    """
    return nn.initializers.variance_scaling(1 / (2 * num_layers), "fan_avg", "uniform")


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: h attentions side by side, without biases."""

    config: ModelConfig

    def setup(self):
        config = self.config

        xavier, smaller = nn.initializers.xavier_uniform(), residual_init(config.num_layers)

        def project(features, axis=-1, kernel_init=xavier):
            return nn.DenseGeneral(features, axis, use_bias=False, kernel_init=kernel_init)

        self.query = project((config.num_heads, config.key_width))
        self.key = project((config.num_heads, config.key_width))
        self.value = project((config.num_heads, config.value_width))
        self.out = project(config.d_model, axis=(-2, -1), kernel_init=smaller)

    def __call__(self, x_BQD, memory_BMD, mask_B1QM):
        k_BMHK, v_BMHU = self.keys_values(memory_BMD)
        return self.read(x_BQD, k_BMHK, v_BMHU, mask_B1QM)

    def keys_values(self, memory_BMD):
        """What queries read; a decoder computes it once for each position and keeps it."""
        return self.key(memory_BMD), self.value(memory_BMD)

    def read(self, x_BQD, k_BMHK, v_BMHU, mask_B1QM):
        """Each query's mixture of the values, back in d_model."""
        return self.out(attend(self.query(x_BQD), k_BMHK, v_BMHU, mask_B1QM))
