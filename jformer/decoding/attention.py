"""Attention weights of a trained model, for inspection."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jformer.config import BOS, EOS
from jformer.data.vocabulary import Vocabularies
from jformer.model.transformer import Transformer


@dataclasses.dataclass(frozen=True)
class Attention:
    """The weights (H, Q, M) of every attention for one pair, in float32.

    They are named `encoder_0/self_attention`, `decoder_0/self_attention` and
    `decoder_0/cross_attention`. Row t of the decoder's weights predicts token t + 1.
    """

    weights: dict[str, np.ndarray]
    source_tokens: list[str]  # with EOS at the end
    target_tokens: list[str]  # with BOS before the first

    def layers(self, stack: str, kind: str) -> list[np.ndarray]:
        """Return one kind of weights by layer, such as `"decoder", "cross_attention"`."""
        names = (f"{stack}_{n}/{kind}" for n in itertools.count())
        return [
            self.weights[name] for name in itertools.takewhile(self.weights.__contains__, names)
        ]


def attention_weights(
    model: Transformer, params: Any, source_BS: Array, target_BT: Array
) -> dict[str, Array]:
    """Return the weights of every attention: `{"decoder_0/cross_attention": (B, H, Q, M), ...}`."""
    # A scan over layers would not keep the weights.
    model = model.clone(config=dataclasses.replace(model.config, scan_layers=False, remat="none"))
    _, kept = model.apply({"params": params}, source_BS, target_BT, mutable="intermediates")
    leaves = jax.tree_util.tree_leaves_with_path(kept["intermediates"])
    return {
        "/".join(key.key for key in path[:2]): weights.astype(jnp.float32)
        for path, weights in leaves
    }


def attention_of(
    model: Transformer, params: Any, vocabularies: Vocabularies, source: str, target: str
) -> Attention:
    """Return the attention weights of all positions of a source and a given target.

    Raises `UserError` for a text beyond the table of learned positions.
    """
    (source_ids,) = vocabularies.source.encode([source])
    (target_ids,) = vocabularies.target.encode([target])
    source_ids, target_ids = [*source_ids, EOS], [BOS, *target_ids]
    source_BS, target_BT = jnp.array([source_ids]), jnp.array([target_ids])
    weights = jax.jit(attention_weights, static_argnums=0)(model, params, source_BS, target_BT)
    kept = {name: np.asarray(w[0]) for name, w in weights.items()}
    sides = vocabularies.source.tokens(source_ids), vocabularies.target.tokens(target_ids)
    return Attention(kept, *sides)
