"""The encoder-decoder Transformer, Section 3 and Figure 1.

Tokens are int32 ids with padding at the end. `encode` and `decode` are the two halves of Figure 1.
`precompute_cross_kv`, `init_cache` and `decode_step` decode one position at a time with the same
parameters and the same result.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax import Array

from jformer.components import find
from jformer.config import PAD, ModelConfig
from jformer.model.attention import causal_mask, padding_mask, segment_mask
from jformer.model.dropout import Dropout
from jformer.model.einsum import einsum_f32
from jformer.model.layers import (
    DecoderLayer,
    EncoderLayer,
    make_norm,
    normalize,
    shard_by_batch,
    shard_by_column,
)
from jformer.model.positions import positions_in_segments
from jformer.model.shapes import checked
from jformer.model.stack import rematerialized, scan_layers

# Keys (H, K, W, T) and values (H, W, T, U) for each layer. Keys of a cache are transposed, because
# few queries multiply them up to 2.4 times as fast on a CPU.
Cache = list[tuple[Array, Array]]


@struct.dataclass
class Memory:
    """The encoded source as keys and values, precomputed once for all positions and hypotheses."""

    cross_kv: Any  # keys (B, H, K, S) and values (B, H, S, U) for each decoder layer
    mask_B11S: Any


class Transformer(nn.Module):
    """`model.apply({"params": params}, source_BS, target_BT)` gives logits of the next tokens.

    The source has the target's vocabulary, unless `source_vocabulary_size` is given.
    """

    config: ModelConfig
    vocabulary_size: int
    source_vocabulary_size: int | None = None

    def setup(self):
        config = self.config
        self.create_embeddings()
        self.embedding_dropout = Dropout(config.dropout)
        encoder_layer = rematerialized(EncoderLayer, config, train_argument=3)
        decoder_layer = rematerialized(DecoderLayer, config, train_argument=5)
        self.encoder = [encoder_layer(config) for _ in range(config.num_layers)]
        # Initial values depend on the depth of a stack: the decoder's layers get their own.
        decoder_config = dataclasses.replace(config, num_layers=config.decoder_layers)
        self.decoder = [decoder_layer(decoder_config) for _ in range(config.decoder_layers)]
        if config.ends_in_norm:
            self.encoder_norm = make_norm(config)
            self.decoder_norm = make_norm(config)

    def create_embeddings(self) -> None:
        """Create one matrix for source, target and output (Section 3.4), or as `tying` says."""
        config, V_target = self.config, self.vocabulary_size
        V_source = self.source_vocabulary_size or V_target
        if config.tying == "all" and V_source != V_target:
            raise ValueError(f"vocabularies of {V_source} and {V_target} entries need tying=output")

        def matrix(name: str, rows: int) -> Array:
            # With this deviation the scaled embeddings have variance 1.
            normal = nn.initializers.normal(config.d_model**-0.5)
            return self.param(name, normal, (rows, config.d_model))

        def words(name: str, rows: int) -> Array:
            embedding_VD = matrix(name, rows)
            return embedding_VD.at[PAD].set(0.0) if config.zero_padding else embedding_VD

        self.embedding = self.source_embedding = self.output = words("embedding", V_target)
        if config.tying != "all":
            self.source_embedding = words("source_embedding", V_source)
        if config.tying == "none":
            self.output = matrix("output", V_target)
        if config.output_bias:
            self.output_bias = self.param("output_bias", nn.initializers.zeros_init(), (V_target,))
        self.positions = find("config.model.positions", "positions", config.positions)
        self.position_table = self.positions.table(matrix)

    def __call__(
        self,
        source_BS: Array,
        target_BT: Array,
        train: bool = False,
        segments: tuple[Array, Array] | None = None,
    ) -> Array:
        """Return logits (B, T, V) of the token after each target position.

        `train=True` needs `rngs={"dropout": key}`. Rows that hold several pairs have `segments`,
        the numbers (B, S) and (B, T) of the pair that each token belongs to: 1, 2, ... and 0 for
        padding.
        """
        return logits_of(*self.decoder_states(source_BS, target_BT, train, segments))

    def decoder_states(
        self,
        source_BS: Array,
        target_BT: Array,
        train: bool = False,
        segments: tuple[Array, Array] | None = None,
    ) -> tuple[Array, Array]:
        """Return the last states of the decoder (B, T, D), and the matrix (V, D) of the logits.

        A bias of the logits is one more column of the matrix, and the states end in a one for it.
        """
        memory_BSD = self.encode(source_BS, train, None if segments is None else segments[0])
        states_BTD = self.run_decoder(target_BT, memory_BSD, source_BS, train, segments)
        if not self.config.output_bias:
            return states_BTD, self.output
        ones_BT1 = jnp.ones((*states_BTD.shape[:2], 1), states_BTD.dtype)
        columns = jnp.concatenate([self.output, self.output_bias[:, None]], axis=1)
        return jnp.concatenate([states_BTD, ones_BT1], axis=2), columns

    @checked
    def encode(
        self, source_BS: Array, train: bool = False, segments_BS: Array | None = None
    ) -> Array:
        """Encode the sources: (B, S, D)."""
        positions_S = jnp.arange(source_BS.shape[1])
        x_BSD = self.embed(self.source_embedding, source_BS, positions_S, train, segments_BS)
        mask_B1SS = padding_mask(source_BS)
        if segments_BS is not None:
            mask_B1SS = segment_mask(segments_BS, segments_BS)
        x_BSD = self.run_stack(self.encoder, x_BSD, mask_B1SS, train)
        return self.final_norm("encoder_norm", x_BSD)

    @checked
    def decode(
        self,
        target_BT: Array,
        memory_BSD: Array,
        source_BS: Array,
        train: bool = False,
        segments: tuple[Array, Array] | None = None,
    ) -> Array:
        """Return logits (B, T, V), given the encoded sources; `source_BS` shows their padding."""
        states_BTD = self.run_decoder(target_BT, memory_BSD, source_BS, train, segments)
        return self.logits(states_BTD)

    def run_decoder(
        self,
        target_BT: Array,
        memory_BSD: Array,
        source_BS: Array,
        train: bool,
        segments: tuple[Array, Array] | None,
    ) -> Array:
        """Return the last states of the decoder: (B, T, D)."""
        segments_BT, positions_T = None, jnp.arange(target_BT.shape[1])
        positions: tuple = (None, None)
        mask_B1TT, memory_mask_B1TS = causal_mask(len(positions_T)), padding_mask(source_BS)
        if segments is not None:
            segments_BS, segments_BT = segments
            mask_B1TT &= segment_mask(segments_BT, segments_BT)
            memory_mask_B1TS = segment_mask(segments_BT, segments_BS)
            positions = positions_in_segments(segments_BT), positions_in_segments(segments_BS)
        x_BTD = self.embed(self.embedding, target_BT, positions_T, train, segments_BT)
        x_BTD = self.run_stack(
            self.decoder, x_BTD, mask_B1TT, memory_BSD, memory_mask_B1TS, train, *positions
        )
        return self.final_norm("decoder_norm", x_BTD)

    @checked
    def precompute_cross_kv(self, memory_BSD: Array, source_BS: Array) -> Memory:
        """Project the encoded sources to the keys and values of every decoder layer."""
        positions_1S = jnp.arange(source_BS.shape[1])[None]
        cross_kv = []
        for layer in self.decoder:
            k_BHSK, v_BHSU = layer.cross_attention.project_kv(memory_BSD, positions_1S)
            cross_kv.append((k_BHSK.swapaxes(2, 3), v_BHSU))
        return Memory(cross_kv, padding_mask(source_BS))

    def init_cache(self, W: int, T: int) -> Cache:
        """Return an empty cache for the W hypotheses of one sentence, of up to T tokens."""
        config = self.config
        H, dtype = config.num_heads, config.compute_dtype
        k_HKWT = jnp.zeros((H, config.key_width, W, T), dtype)
        v_HWTU = jnp.zeros((H, W, T, config.value_width), dtype)
        return [(k_HKWT, v_HWTU)] * config.decoder_layers

    @checked
    def decode_step(
        self, tokens_W: Array, t: Array, beam_indices_WT: Array, cache: Cache, memory: Memory
    ) -> tuple[Array, Cache]:
        """Decode position t of one sentence: logits (W, V), and the cache with position t filled.

        `memory` is that of the sentence, without the axis B. The logits are NaN where t is beyond a
        table of learned positions.

        Hypothesis w is written into place w of the cache. A search reorders its hypotheses, and
        `beam_indices_WT` is what it reorders instead of the cache: the place where the history of
        each hypothesis stands at each position up to t.
        """
        x_1WD = self.embed(self.embedding, tokens_W[None], t[None])
        new_cache = []
        for layer, layer_cache, cross_kv in zip(self.decoder, cache, memory.cross_kv, strict=True):
            x_1WD, layer_cache = layer.decode_step(
                x_1WD, t, layer_cache, beam_indices_WT, cross_kv, memory.mask_B11S
            )
            new_cache.append(layer_cache)
        x_1WD = self.final_norm("decoder_norm", x_1WD)
        return self.logits(x_1WD)[0], new_cache

    def logits(self, x_BLD: Array) -> Array:
        """Return the logits of the decoder's last states: float32 (B, L, V)."""
        logits_BLV = logits_of(x_BLD, self.output)
        return logits_BLV + self.output_bias[None, None] if self.config.output_bias else logits_BLV

    def run_stack(self, layers: list, x_BLD: Array, *arguments: Any) -> Array:
        """Run the layers one after the other, each with the same other arguments."""
        if self.config.scan_layers and not self.is_initializing():
            key = self.make_rng("dropout") if self.has_rng("dropout") else None
            return scan_layers(layers, key, x_BLD, *arguments)
        for layer in layers:
            x_BLD = layer(x_BLD, *arguments)
        return x_BLD

    def final_norm(self, name: str, x_BLD: Array) -> Array:
        """Normalize the end of a pre-norm stack; in a post-norm one the last layer has done so."""
        if not self.config.ends_in_norm:
            return x_BLD
        return normalize(getattr(self, name), x_BLD)

    @checked
    def embed(
        self,
        embedding_VD: Array,
        tokens_BL: Array,
        positions_L: Array,
        train: bool = False,
        segments_BL: Array | None = None,
    ) -> Array:
        """Embed the tokens: times sqrt(d_model), plus position (Sections 3.4, 3.5), dropout (5.4).

        One position may serve all the tokens, as in `decode_step`.
        """
        added_LD = self.positions.added(positions_L, self.config.d_model, self.position_table)
        encoded_BLD = added_LD[None]
        if segments_BL is not None:
            encoded_BLD = encoded_BLD[0][positions_in_segments(segments_BL)]
        # Cast after the look-up: its gradient, a sum over tokens, is then in float32.
        x_BLD = embedding_VD[tokens_BL] * self.config.d_model**0.5 + encoded_BLD
        # Cast before the devices exchange columns for rows.
        x_BLD = shard_by_column(x_BLD.astype(self.config.compute_dtype))
        return self.embedding_dropout(shard_by_batch(x_BLD), train)


@checked
def logits_of(x_BLD: Array, output_VD: Array) -> Array:
    """Multiply by the transposed embedding matrix (Section 3.4): float32 (B, L, V)."""
    return einsum_f32("BLD,VD->BLV", x_BLD, output_VD.astype(x_BLD.dtype))
