"""The train step and the search are lowered for devices that no test has, so that both still can.

Lowering is all of JAX's work on a program; what is left is the compiler of the device.
"""

import dataclasses
import re

import jax
import pytest

from jformer.config import Config, DataConfig, ModelConfig
from jformer.extras.cost import abstract_step

B, T, V = 16, 24, 60
SMALL = ModelConfig(num_layers=2, d_model=32, d_ff=48, num_heads=2, dtype="bfloat16")
PLATFORMS = ["cuda", "tpu"]


def lowered_step(platform, batching="buckets", **model):
    config = Config(
        model=dataclasses.replace(SMALL, **model),
        data=DataConfig(vocabulary_size=V, batching=batching),
    )
    step, arguments = abstract_step(config, B, T)
    return step.trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_the_train_step_is_lowered_for_other_devices(platform, batching):
    program = lowered_step(platform, batching)
    assert f"tensor<{V}x32xbf16>" in program  # the matrix of the logits, in the compute dtype
    assert "stablehlo.while" in program  # the loss in chunks


@pytest.mark.parametrize("kernel", ["xla", "cudnn"])
def test_the_key_for_the_kernel_puts_it_into_each_attention_of_a_gpu(kernel, monkeypatch):
    """What JAX asks the device about cuDNN is answered here, as there is none."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda capability: False)
    program = lowered_step("cuda", attention_kernel=kernel)
    calls = re.findall(r"custom_call @__cudnn\$fmha(\w*)\(", program)
    attentions = SMALL.num_layers + 2 * SMALL.num_layers  # in the decoder there are two a layer
    expected = {"xla": [], "cudnn": [False, True] * attentions}[kernel]
    assert sorted(call.endswith("Backward") for call in calls) == sorted(expected)
