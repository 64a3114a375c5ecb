"""Initial values of the parameters."""

from collections.abc import Callable

from flax import linen as nn

from jformer.config import ModelConfig


def kernel_init(config: ModelConfig, ends_branch: bool = False) -> Callable:
    """Return the initializer of a kernel; `ends_branch` is for the last one of a residual branch.

    The paper does not give one. The default is Xavier, smaller by sqrt(2N) at the end of a branch:
    branches that begin small beside what they are added to let a post-norm stack learn from its
    first steps (GPT-2 scales them so, Radford et al. 2019). With plain Xavier 6 + 6 layers stay at
    the unigram distribution for hundreds of steps.
    """
    if config.initializer == "normal":
        return nn.initializers.normal(0.02)
    if config.initializer == "scaled_xavier" and ends_branch:
        return nn.initializers.variance_scaling(1 / (2 * config.num_layers), "fan_avg", "uniform")
    return nn.initializers.xavier_uniform()
