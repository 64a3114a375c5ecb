"""The encoder-decoder Transformer, Section 3 and Figure 1.

Tokens are int32 ids with padding at the end. `encode` and `decode` are the two halves of Figure 1.
To decode one position at a time, see decoding.py.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from jformer.config import ModelConfig
from jformer.model.attention import causal_mask, padding_mask, segment_mask
from jformer.model.embeddings import create_embeddings
from jformer.model.layers import DecoderLayer, EncoderLayer, make_norm, normalize
from jformer.model.numerics import (
    Dropout,
    einsum_f32,
    rematerialized,
    scan_layers,
    shard_by_batch,
    shard_by_column,
)
from jformer.model.positions import positions_in_segments
from jformer.model.shapes import checked

Segments = tuple[Array, Array] | None  # of source and target


class Transformer(nn.Module):
    """`model.apply({"params": params}, source_BS, target_BT)` gives logits of the next tokens.

    The source has the target's vocabulary, unless `source_vocabulary_size` is given.
    """

    config: ModelConfig
    vocabulary_size: int
    source_vocabulary_size: int | None = None

    def setup(self):
        config = self.config
        V_target = self.vocabulary_size
        V_source = self.source_vocabulary_size or V_target
        self.embeddings = create_embeddings(self.param, config, V_source, V_target)
        self.embedding_dropout = Dropout(config.dropout)
        encoder_layer = rematerialized(EncoderLayer, config, train_argument=3)
        decoder_layer = rematerialized(DecoderLayer, config, train_argument=5)
        self.encoder = [encoder_layer(config) for _ in range(config.num_layers)]
        # Initial values depend on the depth of a stack: the decoder's layers get their own.
        decoder_config = dataclasses.replace(config, num_layers=config.decoder_layers)
        self.decoder = [decoder_layer(decoder_config) for _ in range(config.decoder_layers)]
        # A post-norm stack already ends in a norm.
        self.encoder_norm = make_norm(config) if config.ends_in_norm else None
        self.decoder_norm = make_norm(config) if config.ends_in_norm else None

    def __call__(
        self, source_BS: Array, target_BT: Array, train: bool = False, segments: Segments = None
    ) -> Array:
        """Return logits (B, T, V) of the token after each target position.

        `train=True` requires `rngs={"dropout": key}`. Rows that hold several pairs have `segments`,
        the numbers (B, S) and (B, T) of the pair that each token belongs to: 1, 2, ... and 0 for
        padding.
        """
        states_BTD, output = self.decoder_states(source_BS, target_BT, train, segments)
        return logits_of(states_BTD, *output)

    def decoder_states(
        self, source_BS: Array, target_BT: Array, train: bool = False, segments: Segments = None
    ) -> tuple[Array, tuple[Array, Array | None]]:
        """Return the last states of the decoder, and the other arguments of `logits_of`."""
        memory_BSD = self.encode(source_BS, train, segments)
        states_BTD = self.decode(target_BT, memory_BSD, source_BS, train, segments)
        return states_BTD, self.embeddings.output

    @checked
    def encode(self, source_BS: Array, train: bool = False, segments: Segments = None) -> Array:
        """Encode the sources: (B, S, D)."""
        positions_BS = None
        mask_B1SS = padding_mask(source_BS)
        if segments is not None:
            positions_BS = positions_in_segments(segments[0])
            mask_B1SS = segment_mask(segments[0], segments[0])
        x_BSD = self.embed(self.embeddings.source_VD, source_BS, train, positions_BS)
        x_BSD = self.run_stack(self.encoder, x_BSD, mask_B1SS, train)
        return normalize(self.encoder_norm, x_BSD)

    @checked
    def decode(
        self,
        target_BT: Array,
        memory_BSD: Array,
        source_BS: Array,
        train: bool = False,
        segments: Segments = None,
    ) -> Array:
        """Return the last states: (B, T, D). `source_BS` shows the padding of the memory."""
        positions = positions_BT = None
        mask_B1TT = causal_mask(target_BT.shape[1])
        memory_mask_B1TS = padding_mask(source_BS)
        if segments is not None:
            segments_BS, segments_BT = segments
            mask_B1TT &= segment_mask(segments_BT, segments_BT)
            memory_mask_B1TS = segment_mask(segments_BT, segments_BS)
            positions_BT = positions_in_segments(segments_BT)
            positions = positions_BT, positions_in_segments(segments_BS)
        x_BTD = self.embed(self.embeddings.target_VD, target_BT, train, positions_BT)
        x_BTD = self.run_stack(
            self.decoder, x_BTD, mask_B1TT, memory_BSD, memory_mask_B1TS, train, positions
        )
        return normalize(self.decoder_norm, x_BTD)

    def run_stack(self, layers: list, x_BLD: Array, *arguments: Any) -> Array:
        """Run the layers in sequence, each with the same other arguments."""
        if self.config.scan_layers and not self.is_initializing():
            key = self.make_rng("dropout") if self.has_rng("dropout") else None
            return scan_layers(layers, key, x_BLD, *arguments)
        for layer in layers:
            x_BLD = layer(x_BLD, *arguments)
        return x_BLD

    @checked
    def embed(
        self,
        embedding_VD: Array,
        tokens_BL: Array,
        train: bool = False,
        positions_BL: Array | None = None,
        first: Array | int = 0,
    ) -> Array:
        """Embed the tokens: times sqrt(d_model), plus position (Sections 3.4, 3.5), dropout (5.4).

        Positions are counted from `first`, unless `positions_BL` has those of packed rows.
        """
        positions, table = self.embeddings.positions, self.embeddings.position_table
        positions_L = first + jnp.arange(tokens_BL.shape[1])
        encoding_LD = positions.added(positions_L, self.config.d_model, table)
        encoding_BLD = encoding_LD[None] if positions_BL is None else encoding_LD[positions_BL]
        # In float32, because the gradient of the look-up is a sum over tokens.
        x_BLD = embedding_VD[tokens_BL] * self.config.d_model**0.5 + encoding_BLD
        x_BLD = x_BLD.astype(self.config.compute_dtype)
        # Cast before the devices exchange columns for rows.
        return self.embedding_dropout(shard_by_batch(shard_by_column(x_BLD)), train)


@checked
def logits_of(
    x_BLD: Array, output_VD: Array, bias_V: Array | None, product: Callable = einsum_f32
) -> Array:
    """Multiply by the transposed embedding matrix (Section 3.4): logits (B, L, V)."""
    logits_BLV = product("BLD,VD->BLV", x_BLD, output_VD.astype(x_BLD.dtype))
    return logits_BLV if bias_V is None else logits_BLV + bias_V[None, None]
