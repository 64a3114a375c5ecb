"""Linear maps between axes of activations."""

import math
from collections.abc import Callable

from flax import linen as nn
from jax import Array


class Linear(nn.Module):
    """Map the last `input_axes` axes of an array to axes of the sizes `outputs`.

    The kernel has all these axes: (D, H, K) for the queries of H heads.
    """

    outputs: tuple[int, ...]
    kernel_init: Callable
    dtype: str
    input_axes: int = 1
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        batch, inputs = x.shape[: -self.input_axes], x.shape[-self.input_axes :]
        rows, columns = math.prod(inputs), math.prod(self.outputs)

        def init(key, shape):
            return self.kernel_init(key, (rows, columns)).reshape(shape)

        kernel = self.param("kernel", init, (*inputs, *self.outputs)).astype(self.dtype)
        # Matrices on both sides: with more axes XLA transposes kernels and activations in memory.
        y_NF = x.reshape(-1, rows).astype(self.dtype) @ kernel.reshape(rows, columns)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), self.outputs)
            y_NF += bias.astype(self.dtype).reshape(1, columns)
        return y_NF.reshape(*batch, *self.outputs)
