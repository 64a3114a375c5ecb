"""The encoder-decoder Transformer, Section 3 and Figure 1.

Tokens are int32 ids, padding stands at the end. `encode` and `decode` are Figure 1's two halves;
`start` and `step` decode one position at a time with the same parameters and the same result.
Letters: B sentences, S source, T target, W hypotheses, D d_model, H heads, V vocabulary.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jformer.config import ModelConfig
from jformer.model.attention import causal_mask, padding_mask
from jformer.model.layers import DecoderLayer, Dropout, EncoderLayer
from jformer.model.positions import sinusoids
from jformer.model.shapes import check_shapes


@struct.dataclass
class Memory:
    """What every hypothesis of a sentence reads: computed once, the same at all positions."""

    keys_values: Any  # a pair (B, S, H, K), (B, S, H, U) for each decoder layer
    mask_B11S: Any


class Transformer(nn.Module):
    """`model.apply({"params": params}, source_BS, target_BT)` gives logits of the next tokens."""

    config: ModelConfig
    vocabulary_size: int

    def setup(self):
        config = self.config
        # One matrix for source, target and output (Section 3.4). Its deviation makes the scaled
        # embeddings of variance 1, as large as the position encoding beside them.
        self.embedding = self.param(
            "embedding",
            nn.initializers.normal(config.d_model**-0.5),
            (self.vocabulary_size, config.d_model),
        )
        self.embedding_dropout = Dropout(config.dropout)
        self.encoder = [EncoderLayer(config) for _ in range(config.num_layers)]
        self.decoder = [DecoderLayer(config) for _ in range(config.num_layers)]

    def __call__(self, source_BS, target_BT, train=False):
        """Logits (B, T, V) of the token after each target position, given those up to it.

        `train=True` needs `rngs={"dropout": key}`.
        """
        memory_BSD = self.encode(source_BS, train)
        return self.decode(target_BT, memory_BSD, source_BS, train)

    def encode(self, source_BS, train=False):
        x_BSD = self.embed(source_BS, jnp.arange(source_BS.shape[1]), train)
        mask_B11S = padding_mask(source_BS)
        for layer in self.encoder:
            x_BSD = layer(x_BSD, mask_B11S, train)
        return x_BSD

    def decode(self, target_BT, memory_BSD, source_BS, train=False):
        """`source_BS` only says which positions of the memory are padding."""
        check_shapes(target_BT=target_BT, memory_BSD=memory_BSD, source_BS=source_BS)
        length = target_BT.shape[1]
        x_BTD = self.embed(target_BT, jnp.arange(length), train)
        mask_11TT, memory_mask_B11S = causal_mask(length), padding_mask(source_BS)
        for layer in self.decoder:
            x_BTD = layer(x_BTD, mask_11TT, memory_BSD, memory_mask_B11S, train)
        return self.logits(x_BTD)

    def start(self, memory_BSD, source_BS):
        """The `Memory` that `step` reads."""
        keys_values = [layer.cross_attention.keys_values(memory_BSD) for layer in self.decoder]
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
        x_BWD = self.embed(tokens_BW, t[None], train=False)
        new_cache = []
        for layer, cache_BWTHK, memory_BSHK in zip(
            self.decoder, cache, memory.keys_values, strict=True
        ):
            x_BWD, cache_BWTHK = layer.step(x_BWD, t, cache_BWTHK, memory_BSHK, memory.mask_B11S)
            new_cache.append(cache_BWTHK)
        return self.logits(x_BWD), new_cache

    def embed(self, tokens_BL, positions_L, train):
        """Embedding times sqrt(d_model) plus position (Sections 3.4, 3.5), with dropout (5.4).

        One position serves all the tokens, as in `step`.
        """
        d_model = self.config.d_model
        x_BLD = self.embedding[tokens_BL] * d_model**0.5 + sinusoids(positions_L, d_model)[None]
        return self.embedding_dropout(x_BLD, train)

    def logits(self, x_BLD):
        """The embedding matrix again, as the linear map before the softmax; Section 3.4."""
        return x_BLD @ self.embedding.T
