"""config.model: the size of the Transformer and the variants of its parts."""

import dataclasses
import math

from jformer import components
from jformer.backend import compute_capability, target_platform
from jformer.errors import UserError
from jformer.schema import RATE, Section, choice, component, key

TYINGS = ("all", "output", "none")
INITIALIZERS = ("scaled_xavier", "xavier", "normal")
REMATS = ("none", "layer", "dots")
DTYPES = ("auto", "float32", "bfloat16")
HOPPER = 9.0  # the compute capability of the GPUs where attention_kernel=auto selects cuDNN


@dataclasses.dataclass(frozen=True)
class ModelConfig(Section):
    path = "config.model"

    num_layers: int = key(6, "layers of the encoder and of the decoder, N; Section 3.1", ">= 1")
    num_decoder_layers: int | None = key(
        None, "layers of the decoder, if it differs; unset: num_layers", ">= 1"
    )
    d_model: int = key(
        512, "width of the embeddings and of every sub-layer's output; Section 3.1", ">= 2"
    )
    d_ff: int = key(2048, "inner width of the feed-forward network; Section 3.3", ">= 1")
    num_heads: int = key(8, "attention heads, h; Section 3.2.2", ">= 1")
    d_k: int | None = key(None, "width of queries and keys per head; unset: d_model / h", ">= 1")
    d_v: int | None = key(None, "width of values per head; unset: d_model / h", ">= 1")
    dropout: float = key(0.1, "dropout rate, P_drop; Section 5.4", *RATE)
    attention_dropout: float = key(
        0.0, "dropout rate of the attention weights; the paper has none", *RATE
    )
    activation_dropout: float = key(
        0.0, "dropout rate inside the feed-forward network; the paper has none", *RATE
    )
    residual_dropout: bool = key(
        True, "dropout of each sub-layer's output, and not of the embeddings alone; Section 5.4"
    )
    attention: str = component("dot_product", "attention", "attention of each head; Section 3.2.1")
    activation: str = component("relu", "activation", "activation of the feed-forward network")
    norm: str = component("layer_norm", "norm", "normalization; Section 3.1")
    attention_bias: bool = key(
        False, "biases in the projections of attention; the paper has none, Section 3.2.2"
    )
    out_projection: bool = key(
        True, "project the concatenated heads, W^O; Section 3.2.2; without it h d_v = d_model"
    )
    norm_position: str = choice(
        "norm after each residual sum, or before each sub-layer", "post", "pre"
    )
    final_norm: str = choice(
        "one more norm at the end of each stack; auto: with norm_position=pre", "auto", "on", "off"
    )
    positions: str = component("sinusoidal", "positions", "position encoding; Section 3.5")
    tying: str = choice(
        "which of the two embeddings and the output share one matrix; Section 3.4", *TYINGS
    )
    output_bias: bool = key(False, "a bias for each logit; the paper has none, Section 3.4")
    zero_padding: bool = key(
        False,
        "keep the embedding of padding at zero, so that its logit is 0 if they share a matrix",
    )
    initializer: str = choice("initial values of the kernels", *INITIALIZERS)
    dtype: str = choice(
        "compute dtype of activations; auto: bfloat16 on GPU and TPU, float32 on CPU",
        *DTYPES,
        resumable=True,
    )
    attention_kernel: str = choice(
        "implementation of Equation 1 over whole texts: XLA operations or cuDNN's fused kernel "
        "(bfloat16 on NVIDIA GPUs); auto: cuDNN on Hopper GPUs",
        "auto",
        "xla",
        "cudnn",
        resumable=True,
    )
    remat: str = choice(
        "recompute in the backward pass to save memory: all of a layer, or all but its "
        "matrix products (dots)",
        *REMATS,
        resumable=True,
    )
    scan_layers: bool = key(
        False, "compile one layer and loop over it: compiles faster", resumable=True
    )

    def check(self) -> None:
        """Raise `UserError` for the first value that cannot work."""
        self.check_keys()
        if self.d_model % 2:
            raise self.wrong("d_model", "must be even (sines and cosines)")
        if self.d_model % self.num_heads and None in (self.d_k, self.d_v):
            divisors = [h for h in range(1, self.d_model + 1) if self.d_model % h == 0]
            close = min(divisors, key=lambda h: abs(h - self.num_heads))
            raise self.wrong(
                "num_heads",
                f"does not divide d_model={self.d_model}; "
                f"the nearest that does is {close}, or set model.d_k and model.d_v",
            )
        if components.name_of(self.positions) == "rotary" and self.key_width % 2:
            raise UserError(
                f"config.model.d_k={self.key_width}: must be even, for rotary positions"
            )
        if not self.out_projection and self.num_heads * self.value_width != self.d_model:
            joined = f"{self.num_heads} heads of d_v={self.value_width}"
            reason = f"{joined} are no d_model={self.d_model}; set config.model.out_projection=True"
            raise self.wrong("out_projection", reason)
        if self.attention_kernel == "cudnn" and (conflict := self._cudnn_conflict()):
            raise self.wrong("attention_kernel", conflict)

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
        """Whether each stack ends in a norm of its own, beside those of its layers."""
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
        """Whether the kernel of cuDNN computes attention over whole texts on this backend."""
        if self.attention_kernel == "xla" or self.compute_dtype != "bfloat16":
            return False
        if target_platform() != "gpu":
            return False
        if self.attention_kernel == "cudnn":
            return True
        return compute_capability() == HOPPER and self._cudnn_conflict() is None

    @property
    def max_positions(self) -> float:
        """The maximum number of tokens of a text, EOS included: a learned table has an end."""
        if components.name_of(self.positions) != "learned":
            return math.inf
        return components.arguments("positions", self.positions)["max_positions"]

    def _cudnn_conflict(self) -> str | None:
        """Return why the fused kernel of cuDNN cannot compute this attention, or None."""
        supported = {
            "attention": components.name_of(self.attention) == "dot_product",
            "attention_dropout": self.attention_dropout == 0,
            "positions": components.name_of(self.positions) not in ("relative", "alibi", ""),
            "dtype": self.dtype != "float32",
        }
        for name, fits in supported.items():
            if not fits:
                return f"is not for {self.assignment(name)}"
        if self.key_width != self.value_width or self.key_width % 8 or self.key_width > 128:
            widths = f"d_k={self.key_width} and d_v={self.value_width}"
            return f"needs equal d_k and d_v, a multiple of 8 up to 128, not {widths}"
        return None
