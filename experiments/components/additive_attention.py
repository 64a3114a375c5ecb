"""Additive attention (Bahdanau et al. 2015) instead of the scaled dot product of Equation 1.

    jformer --config=tiny \\
        --config.model.attention=experiments/components/additive_attention.py:AdditiveAttention

Section 3.2.1 compares the two. Their theoretical complexity is similar, but the dot product is
faster and takes less memory, because it is a single matrix product. This implementation stores the
sum of every query and key, an array of shape (B, H, Q, M, K).
"""

import jax
import jax.numpy as jnp
from flax import linen as nn


class AdditiveAttention(nn.Module):
    """Computes the logits v . tanh(q + k). All heads of a module share the vector v."""

    @nn.compact
    def __call__(self, q_BHQK, k_BHMK, v_BHMU, mask_B1QM, distances_BQM, kind, bias_BHQM, drop):
        v_K = self.param("v", nn.initializers.normal(1.0), (q_BHQK.shape[-1],))
        sums_BHQMK = jnp.tanh(q_BHQK[:, :, :, None] + k_BHMK[:, :, None])
        logits_BHQM = jnp.einsum("BHQMK,K->BHQM", sums_BHQMK.astype(jnp.float32), v_K)
        logits_BHQM += bias_BHQM
        logits_BHQM = jnp.where(mask_B1QM, logits_BHQM, jnp.finfo(jnp.float32).min)
        weights_BHQM = drop(jax.nn.softmax(logits_BHQM).astype(v_BHMU.dtype))
        return jnp.einsum("BHQM,BHMU->BHQU", weights_BHQM, v_BHMU), weights_BHQM
