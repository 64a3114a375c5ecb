"""Additive attention (Bahdanau et al. 2015) in place of the scaled product of Equation 1.

    jformer --config=tiny \\
        --config.model.attention=experiments/components/additive_attention.py:AdditiveAttention

Section 3.2.1 compares the two: similar in theoretical complexity, the product is faster and takes
less memory, as it is one matrix product. Here the sums of all queries and keys are (B, H, Q, M, K).
"""

import jax
import jax.numpy as jnp
from flax import linen as nn


class AdditiveAttention(nn.Module):
    """The logits are v . tanh(q + k), with a vector v for all heads of an attention."""

    @nn.compact
    def __call__(self, q_BHQK, k_BHMK, v_BHMU, mask_B1QM, distances_BQM, kind, bias_BHQM, drop):
        v_K = self.param("v", nn.initializers.normal(1.0), (q_BHQK.shape[-1],))
        sums_BHQMK = jnp.tanh(q_BHQK[:, :, :, None] + k_BHMK[:, :, None])
        logits_BHQM = jnp.einsum("BHQMK,K->BHQM", sums_BHQMK.astype(jnp.float32), v_K)
        logits_BHQM += bias_BHQM
        logits_BHQM = jnp.where(mask_B1QM, logits_BHQM, jnp.finfo(jnp.float32).min)
        weights_BHQM = drop(jax.nn.softmax(logits_BHQM).astype(v_BHMU.dtype))
        return jnp.einsum("BHQM,BHMU->BHQU", weights_BHQM, v_BHMU), weights_BHQM
