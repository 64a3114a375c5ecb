"""The encoder-decoder Transformer, Section 3 and Figure 1.

Tokens are int32 ids, padding stands at the end. `encode` and `decode` are Figure 1's two halves;
`start` and `step` decode one position at a time with the same parameters and the same result.
Letters: B sentences, S source, T target, W hypotheses, D d_model, H heads, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jformer.config import ModelConfig, UserError
from jformer.model.attention import causal_mask, equation_1, padding_mask, segment_mask
from jformer.model.dropout import Dropout
from jformer.model.layers import DecoderLayer, EncoderLayer
from jformer.model.positions import positions_in_segments, sinusoids, sinusoids_in_halves
from jformer.model.shapes import check_shapes


@struct.dataclass
class Memory:
    """What every hypothesis of a sentence reads: computed once, the same at all positions."""

    keys_values: Any  # a pair (B, S, H, K), (B, S, H, U) for each decoder layer
    mask_B11S: Any


class Transformer(nn.Module):
    """`model.apply({"params": params}, source_BS, target_BT)` gives logits of the next tokens.

    The source has the target's vocabulary, unless it has a size of its own. `make_attend` and
    `make_norm` swap parts, see layers.py.
    """

    config: ModelConfig
    vocabulary_size: int
    source_vocabulary_size: int | None = None
    make_attend: Callable[[], Callable] = equation_1
    make_norm: Callable[[], nn.Module] = nn.LayerNorm

    def setup(self):
        config = self.config

        sizes = (self.vocabulary_size, self.source_vocabulary_size or self.vocabulary_size)
        if config.tying == "all" and len(set(sizes)) > 1:
            raise ValueError(f"vocabularies of {sizes} entries cannot share a matrix: tying=all")

        def matrix(name, rows):
            # With this deviation the scaled embeddings have variance 1.
            values = nn.initializers.normal(config.d_model**-0.5)
            return self.param(name, values, (rows, config.d_model))

        # One matrix for source, target and output (Section 3.4), unless `tying` says otherwise.
        self.embedding = self.source_embedding = self.output = matrix("embedding", sizes[0])
        if config.tying != "all":
            self.source_embedding = matrix("source_embedding", sizes[1])
        if config.tying == "none":
            self.output = matrix("output", sizes[0])
        if config.positions == "learned":
            self.position_embedding = matrix("position_embedding", config.max_positions)
        self.embedding_dropout = Dropout(config.dropout)
        parts = (config, self.make_attend, self.make_norm)
        self.encoder = [EncoderLayer(*parts) for _ in range(config.num_layers)]
        self.decoder = [DecoderLayer(*parts) for _ in range(config.num_layers)]
        if config.norm_position == "pre":
            self.encoder_norm, self.decoder_norm = self.make_norm(), self.make_norm()

    def __call__(self, source_BS, target_BT, train=False, segments=None):
        """Logits (B, T, V) of the token after each target position, given those up to it.

        `train=True` needs `rngs={"dropout": key}`. Rows that hold several pairs have `segments`,
        `(source_segments_BS, target_segments_BT)`: pair 1, 2, ... of the row, and 0 for padding.
        """
        source_segments_BS = None if segments is None else segments[0]
        memory_BSD = self.encode(source_BS, train, source_segments_BS)
        return self.decode(target_BT, memory_BSD, source_BS, train, segments)

    def encode(self, source_BS, train=False, segments_BS=None):
        x_BSD = self.embed(
            self.source_embedding, source_BS, jnp.arange(source_BS.shape[1]), train, segments_BS
        )
        mask = padding_mask(source_BS)  # (B, 1, 1, S): all queries of a row see the same
        if segments_BS is not None:
            mask = segment_mask(segments_BS, segments_BS)  # (B, 1, S, S)
        for layer in self.encoder:
            x_BSD = layer(x_BSD, mask, train)
        return self.end_stack("encoder_norm", x_BSD)

    def decode(self, target_BT, memory_BSD, source_BS, train=False, segments=None):
        """`source_BS` only says which positions of the memory are padding."""
        check_shapes(target_BT=target_BT, memory_BSD=memory_BSD, source_BS=source_BS)
        length, segments_BT = target_BT.shape[1], None
        mask, memory_mask = causal_mask(length), padding_mask(source_BS)
        if segments is not None:
            segments_BS, segments_BT = segments
            mask &= segment_mask(segments_BT, segments_BT)
            memory_mask = segment_mask(segments_BT, segments_BS)
        x_BTD = self.embed(self.embedding, target_BT, jnp.arange(length), train, segments_BT)
        for layer in self.decoder:
            x_BTD = layer(x_BTD, mask, memory_BSD, memory_mask, train)
        return self.logits(self.end_stack("decoder_norm", x_BTD))

    def start(self, memory_BSD, source_BS):
        """The `Memory` that `step` reads."""
        positions_S = jnp.arange(source_BS.shape[1])
        keys_values = [
            layer.cross_attention.keys_values(memory_BSD, positions_S) for layer in self.decoder
        ]
        return Memory(keys_values, padding_mask(source_BS))

    def empty_cache(self, B, W, T):
        """A pair of keys and values (B, W, T, H, K) a layer, for hypotheses of up to T tokens."""
        config = self.config
        widths = (config.key_width, config.value_width)
        return [
            tuple(jnp.zeros((B, W, T, config.num_heads, width)) for width in widths)
            for _ in range(config.num_layers)
        ]

    def step(self, tokens_BW, t, cache, memory):
        """`decode` at position t alone: logits (B, W, V), and the cache with position t filled."""
        x_BWD = self.embed(self.embedding, tokens_BW, t[None], train=False)
        new_cache = []
        for layer, cache_BWTHK, memory_BSHK in zip(
            self.decoder, cache, memory.keys_values, strict=True
        ):
            x_BWD, cache_BWTHK = layer.step(x_BWD, t, cache_BWTHK, memory_BSHK, memory.mask_B11S)
            new_cache.append(cache_BWTHK)
        return self.logits(self.end_stack("decoder_norm", x_BWD)), new_cache

    def end_stack(self, norm, x_BLD):
        """A pre-norm stack ends with a norm; in a post-norm one each layer has done so."""
        return getattr(self, norm)(x_BLD) if self.config.norm_position == "pre" else x_BLD

    def embed(self, embedding_VD, tokens_BL, positions_L, train, segments_BL=None):
        """Embedding times sqrt(d_model) plus position (Sections 3.4, 3.5), with dropout (5.4).

        One position serves all the tokens, as in `step`; in segments each begins at the first.
        """
        scale, encoded_BLD = self.config.d_model**0.5, self.encode_positions(positions_L)[None]
        if segments_BL is not None:
            encoded_BLD = encoded_BLD[0][positions_in_segments(segments_BL)]
        return self.embedding_dropout(embedding_VD[tokens_BL] * scale + encoded_BLD, train)

    def encode_positions(self, positions_L):
        """What is added to the embeddings; zero where attention itself knows the positions."""
        d_model, kind = self.config.d_model, self.config.positions
        if kind == "sinusoidal":
            return sinusoids(positions_L, d_model)
        if kind == "halves":
            return sinusoids_in_halves(positions_L, d_model)
        if kind == "learned":
            if len(positions_L) > self.config.max_positions:
                raise UserError(
                    f"config.model.max_positions={self.config.max_positions}: "
                    f"a text needs {len(positions_L)}; shorten it, or train with more"
                )
            return self.position_embedding[positions_L] * d_model**0.5
        return jnp.zeros((len(positions_L), d_model))

    def logits(self, x_BLD):
        """The linear map before the softmax, by the embedding matrix again; Section 3.4."""
        return x_BLD @ self.output.T


def attention_weights(model: Transformer, params, source_BS, target_BT) -> dict[str, jax.Array]:
    """The weights of every attention: `{"decoder_0/cross_attention": (B, H, Q, M), ...}`."""
    _, kept = model.apply({"params": params}, source_BS, target_BT, mutable="intermediates")
    leaves = jax.tree_util.tree_leaves_with_path(kept["intermediates"])
    return {"/".join(key.key for key in path[:2]): weights for path, weights in leaves}
