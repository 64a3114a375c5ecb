"""The floating point operations of a model and the peak speed of a device, used for MFU.

Model FLOPs utilization (MFU; Chowdhery et al. 2022, PaLM, appendix B) is the number of operations
per second that the model requires, divided by the peak of the devices. Operations repeated to save
memory count once. A multiply-add is two operations.
"""

import re

from jformer.config import Config

# 10^12 operations per second of dense bfloat16 matrix products, by NVIDIA's data sheets and Google
# Cloud's documentation; half the number if a sheet specifies it "with sparsity". The whole name
# must match: a part of a GPU (MIG) is slower than the GPU it is named after.
BFLOAT16_PEAKS = (
    (r"NVIDIA A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe", 312),
    (r"NVIDIA H100 80GB HBM3|NVIDIA H200|NVIDIA GH200 .*", 989),
    (r"NVIDIA H100 PCIe", 756),
    (r"NVIDIA H100 NVL|NVIDIA H200 NVL", 835),
    (r"TPU v4", 275),
    (r"TPU v5 lite|TPU v5e", 197),
    (r"TPU v5|TPU v5p", 459),
    (r"TPU v6 lite|TPU v6e", 918),
)


def sheet_flops(device_kind: str, dtype: str = "bfloat16") -> float | None:
    """Return the peak operations per second of a kind of device, if its data sheet is known."""
    for kind, tera in BFLOAT16_PEAKS:
        if dtype == "bfloat16" and re.fullmatch(kind, device_kind):
            return tera * 1e12
    return None


def step_flops(config: Config, B: float, S: int, T: int) -> float:
    """Return the operations of a train step on B rows of S + T positions, padding included."""
    passes = 2 if config.train.r_drop_alpha else 1
    # The backward pass has two products for each forward product: for the inputs and the weights.
    return passes * 3 * 2.0 * B * sum(multiply_adds(config, S, T).values())


def multiply_adds(config: Config, S: int, T: int) -> dict[str, int]:
    """Return the multiply-adds (MAC) of a forward pass on one row, by module.

    Only matrix products count, which are nearly all of the computation.
    """
    model = config.model
    D, F, H, K, U = model.d_model, model.d_ff, model.num_heads, model.key_width, model.value_width

    def attention(Q: int, M: int) -> int:
        out = D * H * U * Q if model.out_projection else 0
        projections = D * H * (K * (Q + M) + U * M) + out
        return projections + Q * M * H * (K + U)

    return {
        "encoder/self_attention": model.num_layers * attention(S, S),
        "encoder/feed_forward": model.num_layers * 2 * D * F * S,
        "decoder/self_attention": model.decoder_layers * attention(T, T),
        "decoder/cross_attention": model.decoder_layers * attention(T, S),
        "decoder/feed_forward": model.decoder_layers * 2 * D * F * T,
        "output": D * config.data.vocabulary_size * T,
    }
