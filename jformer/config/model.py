"""config.model: the size of the Transformer and the variants of its parts."""

import dataclasses
import math

from jformer import components
from jformer.backend import compute_capability, target_platform
from jformer.schema import RATE, Section, choice, component, key

HOPPER = 9.0  # the compute capability of the GPUs where attention_kernel=auto selects cuDNN
ON_OFF = ("auto", "on", "off")
DTYPES = ("auto", "float32", "bfloat16")
KERNELS = ("auto", "xla", "cudnn")
REMATS = ("none", "layer", "dots")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Section):
    path = "config.model"

    num_layers: int = key(6, "layers of the encoder and of the decoder, N; Section 3.1", ">= 1")
    num_decoder_layers: int | None = key(None, "layers of the decoder, if different", ">= 1")
    d_model: int = key(512, "width of the embeddings and sub-layers; Section 3.1", ">= 2")
    d_ff: int = key(2048, "inner width of the feed-forward network; Section 3.3", ">= 1")
    num_heads: int = key(8, "attention heads, h; Section 3.2.2", ">= 1")
    d_k: int | None = key(None, "width of queries and keys per head; unset: d_model / h", ">= 1")
    d_v: int | None = key(None, "width of values per head; unset: d_model / h", ">= 1")
    dropout: float = key(0.1, "dropout rate, P_drop; Section 5.4", *RATE)
    attention_dropout: float = key(0.0, "dropout rate of the weights; not in the paper", *RATE)
    activation_dropout: float = key(0.0, "dropout rate of the activation; not in the paper", *RATE)
    residual_dropout: bool = key(True, "dropout of sub-layers, not only embeddings; Section 5.4")
    attention: str = component("dot_product", "attention", "attention of each head; Section 3.2.1")
    activation: str = component("relu", "activation", "activation of the feed-forward network")
    norm: str = component("layer_norm", "norm", "normalization; Section 3.1")
    attention_bias: bool = key(False, "biases in the projections of attention; not in the paper")
    out_projection: bool = key(True, "project the concatenated heads, W^O; Section 3.2.2")
    norm_position: str = choice("norm after each residual sum, or before sub-layers", "post", "pre")
    final_norm: str = choice("a norm after each stack; auto: if norm_position=pre", *ON_OFF)
    positions: str = component("sinusoidal", "positions", "position encoding; Section 3.5")
    tying: str = choice("which matrices are shared; Section 3.4", "all", "output", "none")
    output_bias: bool = key(False, "a bias for each logit; not in the paper")
    zero_padding: bool = key(False, "keep the embedding of padding at zero")
    initializer: str = choice("initial values of the kernels", "scaled_xavier", "xavier", "normal")
    dtype: str = choice("compute dtype; auto: bfloat16, or float32 on CPU", *DTYPES, resumable=True)
    attention_kernel: str = choice(
        "kernel for Equation 1; auto: cuDNN on Hopper GPUs", *KERNELS, resumable=True
    )
    remat: str = choice(
        "recompute layers in the backward pass, or all but matrix products", *REMATS, resumable=True
    )
    scan_layers: bool = key(False, "compile one layer and loop over it", resumable=True)

    def check(self) -> None:
        super().check()
        if self.d_model % self.num_heads and None in (self.d_k, self.d_v):
            reason = f"must divide d_model={self.d_model}, unless you set model.d_k and model.d_v"
            raise self.wrong("num_heads", reason)
        if self.attention_kernel == "cudnn" and not self.fits_cudnn:
            raise self.wrong(
                "attention_kernel",
                "requires attention=dot_product, positions other than alibi, "
                "attention_dropout=0, bfloat16, and d_k = d_v, a multiple of 8 up to 128",
            )

    @property
    def decoder_layers(self) -> int:
        return self.num_decoder_layers or self.num_layers

    @property
    def key_width(self) -> int:
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        return self.d_v or self.d_model // self.num_heads

    @property
    def ends_in_norm(self) -> bool:
        """Whether each stack ends in a norm of its own, in addition to its layers' norms."""
        if self.final_norm == "auto":
            return self.norm_position == "pre"
        return self.final_norm == "on"

    @property
    def compute_dtype(self) -> str:
        """The dtype of activations: on a CPU XLA has no fast bfloat16 product."""
        if self.dtype != "auto":
            return self.dtype
        return "float32" if target_platform() == "cpu" else "bfloat16"

    @property
    def fused_attention(self) -> bool:
        """Whether cuDNN's kernel computes attention over whole texts on this backend."""
        if self.attention_kernel == "xla" or self.compute_dtype != "bfloat16":
            return False
        if target_platform() != "gpu":
            return False
        is_hopper = compute_capability() == HOPPER
        return self.attention_kernel == "cudnn" or (is_hopper and self.fits_cudnn)

    @property
    def fits_cudnn(self) -> bool:
        """Whether cuDNN's fused kernel can compute this attention."""
        return (
            components.name_of(self.attention) == "dot_product"
            and components.name_of(self.positions) not in ("alibi", "")
            and self.attention_dropout == 0
            and self.dtype != "float32"
            and self.key_width == self.value_width
            and self.key_width % 8 == 0
            and self.key_width <= 128
        )

    @property
    def max_positions(self) -> float:
        """The maximum number of tokens of a text, EOS included; finite for a learned table."""
        if components.name_of(self.positions) != "learned":
            return math.inf
        return components.arguments("positions", self.positions)["max_positions"]
