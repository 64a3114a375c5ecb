"""BatchNorm (Ioffe and Szegedy 2015) instead of LayerNorm.

    jformer --config=tiny --config.model.norm=experiments/components/batch_norm.py:BatchNorm

For each component, the mean and the variance are taken over all positions of a batch. These include
the other sentences and their padding, so a translation depends on the rest of its batch.
"""

import jax
from flax import linen as nn


class BatchNorm(nn.Module):
    """Normalizes with the statistics of the batch, in inference as well."""

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x_BLD):
        D = x_BLD.shape[-1]
        scale_D = self.param("scale", nn.initializers.ones, (D,))
        bias_D = self.param("bias", nn.initializers.zeros, (D,))
        centered_BLD = x_BLD - x_BLD.mean((0, 1))
        inverse_deviation_D = jax.lax.rsqrt(x_BLD.var((0, 1)) + self.epsilon)
        return centered_BLD * inverse_deviation_D * scale_D + bias_D
