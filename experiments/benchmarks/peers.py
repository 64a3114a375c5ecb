"""The models of other projects that the benchmarks compare with jformer.

Each is configured for speed, as its users would. Dropout applies only at the paper's positions.
Dropout inside attention and the feed-forward network would be more work than jformer does.
Functions import JAX locally, so that a process of another project does not pay for it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from jformer.components import arguments
from jformer.config import BOS, EOS, PAD, Config, DecodeConfig

if TYPE_CHECKING:
    from jformer.run import Run

LAYER_NORM_EPSILON = 1e-6  # Flax's default


class TorchTransformer(nn.Module):
    """`nn.Transformer` with the embeddings, positions and output layer that it lacks."""

    def __init__(self, config: Config, longest: int):
        super().__init__()
        model, V = config.model, config.data.vocabulary_size
        self.embedding = nn.Embedding(V, model.d_model, PAD)
        self.positions = nn.Buffer(torch.randn(longest, model.d_model))
        self.dropout = nn.Dropout(model.dropout)
        self.scale = model.d_model**0.5
        self.transformer = nn.Transformer(
            model.d_model,
            model.num_heads,
            model.num_layers,
            model.decoder_layers,
            model.d_ff,
            model.dropout,
            batch_first=True,
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Identity()  # inside the feed-forward network
        with torch.no_grad():
            self.embedding.weight.mul_(model.d_model**-0.5)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) * self.scale + self.positions[: ids.shape[1]]
        return self.dropout(x)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        T = target.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(T, device=target.device)
        # Use numbers to add, as in the causal mask: torch warns if the two masks differ in kind.
        padding = torch.zeros(source.shape, device=source.device)
        padding = padding.masked_fill(source == PAD, -torch.inf)
        x = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return x @ self.embedding.weight.T


class Marian(nn.Module):
    """Hugging Face's MarianMT, with PyTorch's fused attention (SDPA)."""

    def __init__(self, config: Config, longest: int):
        super().__init__()
        self.model = marian_model(config, config.data.vocabulary_size, longest)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.model(
            input_ids=source,
            attention_mask=source != PAD,
            decoder_input_ids=target,
            use_cache=False,
        ).logits


def loss_of(
    model: nn.Module, texts: Sequence[torch.Tensor], smoothing: float, bf16: bool
) -> torch.Tensor:
    """Return the label-smoothed loss per token of a batch: source, target and labels."""
    source, target, labels = texts
    with torch.autocast(source.device.type, torch.bfloat16, enabled=bf16):
        logits = model(source, target)
        return functional.cross_entropy(
            logits.flatten(0, 1),
            labels.flatten().long(),
            ignore_index=PAD,
            label_smoothing=smoothing,
        )


def marian_model(config: Config, vocabulary_size: int, longest: int) -> Any:
    from transformers import MarianConfig, MarianMTModel

    model = config.model
    marian_config = MarianConfig(
        vocab_size=vocabulary_size,
        d_model=model.d_model,
        encoder_layers=model.num_layers,
        decoder_layers=model.decoder_layers,
        encoder_attention_heads=model.num_heads,
        decoder_attention_heads=model.num_heads,
        encoder_ffn_dim=model.d_ff,
        decoder_ffn_dim=model.d_ff,
        dropout=model.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=longest,
        pad_token_id=PAD,
        decoder_start_token_id=BOS,
        bos_token_id=BOS,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        attn_implementation="sdpa",
    )
    return MarianMTModel(marian_config)


def marian_of(run: "Run", longest: int) -> Any:
    """Return Marian with the weights of a run, for texts of up to `longest` tokens."""
    from jformer.extras.interop.hugging_face import state_dict

    model = marian_model(run.config, run.vocabulary.size, longest)
    state = state_dict(run.params, run.config.model)
    tensors = {name: torch.tensor(value) for name, value in state.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    # Marian computes its position tables, and the other names refer to the shared matrix.
    computed = ("embed_positions.weight", "embed_tokens.weight", "lm_head.weight")
    lacking = [name for name in missing if not name.endswith(computed)]
    if unexpected or lacking:
        raise ValueError(f"weights of Marian: missing {lacking}, unknown {unexpected}")
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = LAYER_NORM_EPSILON
    return model.eval()


@torch.inference_mode()
def generate(
    model: Any, ids: Sequence[list[int]], decode: DecodeConfig, bf16: bool
) -> list[list[int]]:
    """Return Marian's translations. Batches have similar lengths, and the longest come first.

    An output has at most `decode.max_extra_length` more tokens than the longest source of its
    batch. The search divides the log-probability of a hypothesis by its length to the power of
    `decode.length_penalty`.
    """
    early_stopping = arguments("search", decode.search)["early_stopping"]
    outputs: dict[int, list[int]] = {}
    order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
    for first in range(0, len(order), decode.batch_size):
        numbers = order[first : first + decode.batch_size]
        texts = [torch.tensor([*ids[number], EOS]) for number in numbers]
        source = pad_sequence(texts, batch_first=True, padding_value=PAD).to(model.device)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            found = model.generate(
                input_ids=source,
                attention_mask=source != PAD,
                num_beams=decode.beam_size,
                early_stopping=early_stopping and decode.beam_size > 1,
                do_sample=False,
                length_penalty=decode.length_penalty,
                max_new_tokens=source.shape[1] + decode.max_extra_length,
            )
        for number, output in zip(numbers, found.tolist(), strict=True):
            outputs[number] = [token for token in output if token not in (BOS, EOS, PAD)]
    return [outputs[number] for number in range(len(ids))]
