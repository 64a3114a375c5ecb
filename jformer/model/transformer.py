"""The encoder-decoder Transformer, Section 3 and Figure 1.

Tokens are int32 ids, padding stands at the end. `encode` and `decode` are Figure 1's two halves;
`start` and `step` decode one position at a time with the same parameters and the same result.
Letters: B sentences, S source, T target, W hypotheses, D d_model, H heads, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jformer.config import ModelConfig
from jformer.errors import UserError
from jformer.model.attention import (
    causal_mask,
    default_attention,
    einsum_f32,
    padding_mask,
    segment_mask,
)
from jformer.model.dropout import Dropout
from jformer.model.layers import DecoderLayer, EncoderLayer, by_sentences
from jformer.model.positions import positions_in_segments, sinusoids, sinusoids_in_halves
from jformer.model.shapes import check_shapes


@struct.dataclass
class Memory:
    """What every hypothesis of a sentence reads: computed once, the same at all positions."""

    cross_kv: Any  # a pair (B, H, S, K), (B, H, S, U) for each decoder layer
    mask_B11S: Any


class Transformer(nn.Module):
    """`model.apply({"params": params}, source_BS, target_BT)` gives logits of the next tokens.

    The source has the target's vocabulary, unless it has a size of its own. `make_attend` and
    `make_norm` swap parts, see layers.py.
    """

    config: ModelConfig
    vocabulary_size: int
    source_vocabulary_size: int | None = None
    make_attend: Callable[[], Callable] = default_attention
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
        encoder_layer = rematerialized(EncoderLayer, config, train_argument=3)
        decoder_layer = rematerialized(DecoderLayer, config, train_argument=5)
        parts = (self.make_attend, self.make_norm)
        self.encoder = [encoder_layer(config, *parts) for _ in range(config.num_layers)]
        # What depends on the depth of a stack, as initial values do, is by the decoder's own.
        own = dataclasses.replace(config, num_layers=config.decoder_layers)
        self.decoder = [decoder_layer(own, *parts) for _ in range(config.decoder_layers)]
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
        x_BSD = self.run_stack(self.encoder, x_BSD, mask, train)
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
        x_BTD = self.run_stack(self.decoder, x_BTD, mask, memory_BSD, memory_mask, train)
        return self.logits(self.end_stack("decoder_norm", x_BTD))

    def precompute_cross_kv(self, memory_BSD, source_BS):
        """The `Memory` that `step` reads."""
        positions_S = jnp.arange(source_BS.shape[1])
        cross_kv = [
            layer.cross_attention.project_kv(memory_BSD, positions_S) for layer in self.decoder
        ]
        return Memory(cross_kv, padding_mask(source_BS))

    def init_cache(self, B, W, T):
        """A pair of keys and values (B, H, W, T, K) a layer, for hypotheses of up to T tokens."""
        config = self.config
        widths = (config.key_width, config.value_width)
        return [
            tuple(
                jnp.zeros((B, config.num_heads, W, T, width), config.compute_dtype)
                for width in widths
            )
            for _ in range(config.decoder_layers)
        ]

    def decode_step(self, tokens_BW, t, beam_indices_BWT, cache, memory):
        """`decode` at position t alone: logits (B, W, V), and the cache with position t filled.

        The logits are NaN where t is beyond a table of learned positions.

        A hypothesis w is written into place w of the cache. What comes of it may go on at another
        place: `ancestors_BWT` says at which place w's history stood at each position up to t, so
        that a search which puts its hypotheses in order has nothing to move but these numbers.
        """
        W, T = beam_indices_BWT.shape[1:]
        places_11W1, reached_T = jnp.arange(W)[None, None, :, None], jnp.arange(T) <= t
        own_BWWT = (beam_indices_BWT[:, :, None] == places_11W1) & reached_T[None, None, None]
        mask_B1WX = own_BWWT.reshape(-1, 1, W, W * T)
        x_BWD = self.embed(self.embedding, tokens_BW, t[None], train=False)
        new_cache = []
        for layer, cache_BHWTK, memory_BHSK in zip(
            self.decoder, cache, memory.cross_kv, strict=True
        ):
            x_BWD, cache_BHWTK = layer.decode_step(
                x_BWD, t, cache_BHWTK, mask_B1WX, memory_BHSK, memory.mask_B11S
            )
            new_cache.append(cache_BHWTK)
        return self.logits(self.end_stack("decoder_norm", x_BWD)), new_cache

    def run_stack(self, layers, x_BLD, *others_and_train):
        """The layers one after the other, each with the same other arguments.

        Under `scan_layers` one compiled layer takes turns with the parameters of all. They are
        stacked here and not in the tree, which is therefore the same with and without.
        """
        if not self.config.scan_layers or self.is_initializing():
            for layer in layers:
                x_BLD = layer(x_BLD, *others_and_train)
            return x_BLD
        params = [layer.variables["params"] for layer in layers]
        # A key for each layer: masks are drawn as well as in the unrolled model, but are others.
        random = self.has_rng("dropout")
        keys = jax.random.split(self.make_rng("dropout"), len(layers)) if random else None
        free_layer = layers[0].clone(parent=None)  # bound to nothing: a function of its parameters

        def run_layer(x_BLD, params_and_key):
            params, key = params_and_key
            rngs = {"dropout": key} if random else {}
            return free_layer.apply({"params": params}, x_BLD, *others_and_train, rngs=rngs), None

        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
        return jax.lax.scan(run_layer, x_BLD, (stacked, keys))[0]

    def end_stack(self, norm, x_BLD):
        """A pre-norm stack ends with a norm; in a post-norm one each layer has done so."""
        if self.config.norm_position == "post":
            return x_BLD
        return getattr(self, norm)(x_BLD).astype(x_BLD.dtype)

    def embed(self, embedding_VD, tokens_BL, positions_L, train, segments_BL=None):
        """Embedding times sqrt(d_model) plus position (Sections 3.4, 3.5), with dropout (5.4).

        One position serves all the tokens, as in `step`; in segments each begins at the first.
        """
        scale, encoded_BLD = self.config.d_model**0.5, self.encode_positions(positions_L)[None]
        if segments_BL is not None:
            encoded_BLD = encoded_BLD[0][positions_in_segments(segments_BL)]
        # Cast after the look-up: its gradient, a sum over tokens, is then in float32.
        x_BLD = (embedding_VD[tokens_BL] * scale + encoded_BLD).astype(self.config.compute_dtype)
        return self.embedding_dropout(by_sentences(x_BLD), train)

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
            # A position that is known only to the compiled step gives NaN beyond the table.
            rows_LD = jnp.take(self.position_embedding, positions_L, axis=0, mode="fill")
            return rows_LD * d_model**0.5
        return jnp.zeros((len(positions_L), d_model))

    def logits(self, x_BLD):
        """The linear map before the softmax, by the embedding matrix again; Section 3.4.

        Its result is in float32 whatever the compute dtype.
        """
        return einsum_f32("BLD,DV->BLV", x_BLD, self.output.T.astype(x_BLD.dtype))


def rematerialized(layer, config: ModelConfig, train_argument):
    """The layer's class, made to keep less for the backward pass: `model.remat`."""
    if config.remat == "none":
        return layer
    policy = jax.checkpoint_policies.dots_saveable if config.remat == "dots" else None
    # `train` is no array; self is argument 0. XLA must not merge the second computation with the
    # first; in the two loops of a scan it cannot. On a CPU it does merge: there only a scan saves.
    prevent_cse = not config.scan_layers
    return nn.remat(layer, policy=policy, static_argnums=train_argument, prevent_cse=prevent_cse)


def unrolled(model: Transformer) -> Transformer:
    """The same model with every operation of every layer in the traced program, once."""
    return model.clone(config=dataclasses.replace(model.config, scan_layers=False, remat="none"))


def attention_weights(model: Transformer, params, source_BS, target_BT) -> dict[str, jax.Array]:
    """The weights of every attention: `{"decoder_0/cross_attention": (B, H, Q, M), ...}`."""
    model = unrolled(model)  # a scan would keep none
    _, kept = model.apply({"params": params}, source_BS, target_BT, mutable="intermediates")
    leaves = jax.tree_util.tree_leaves_with_path(kept["intermediates"])
    return {
        "/".join(key.key for key in path[:2]): weights.astype(jnp.float32)
        for path, weights in leaves
    }
