"""BatchNorm (Ioffe and Szegedy 2015) instead of LayerNorm.

    jformer --config=tiny --config.model.norm=experiments/components/batch_norm.py:BatchNorm

For each component, the mean and the variance are taken over all positions of a batch. These include
the other sentences and their padding, so a translation depends on the rest of its batch.
"""

import jax
from flax import linen as nn


class BatchNorm(nn.Module):
    """Normalizes with the statistics of the batch, or with `batch_stats` if they are given.

    As in Algorithm 2 of the BatchNorm paper, `batch_stats` should be means over many batches of a
    trained model. `apply(..., mutable="batch_stats")` returns the statistics of one batch.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x_BLD):
        D = x_BLD.shape[-1]
        scale_D = self.param("scale", nn.initializers.ones, (D,))
        bias_D = self.param("bias", nn.initializers.zeros, (D,))
        mean_11D = x_BLD.mean((0, 1), keepdims=True)
        variance_11D = x_BLD.var((0, 1), keepdims=True)
        if self.is_mutable_collection("batch_stats"):
            self.put_variable("batch_stats", "mean", mean_11D)
            self.put_variable("batch_stats", "variance", variance_11D)
        elif self.has_variable("batch_stats", "mean"):
            mean_11D = self.get_variable("batch_stats", "mean")
            variance_11D = self.get_variable("batch_stats", "variance")
        normed_BLD = (x_BLD - mean_11D) * jax.lax.rsqrt(variance_11D + self.epsilon)
        return normed_BLD * scale_D[None, None] + bias_D[None, None]
