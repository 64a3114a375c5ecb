"""Attention weights of a trained model, to look at them."""

import dataclasses
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
    """Cross-attention weights (H, T, S) by layer; source with EOS at its end, target with BOS."""

    weights: dict[str, np.ndarray]
    source_tokens: list[str]
    target_tokens: list[str]


def attention_weights(
    model: Transformer, params: Any, source_BS: Array, target_BT: Array
) -> dict[str, Array]:
    """Return the weights of every attention: `{"decoder_0/cross_attention": (B, H, Q, M), ...}`."""
    # A scan would keep none.
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
    """Return what each position of the target attends to while the next token is predicted."""
    (source_ids,) = vocabularies.source.encode([source])
    (target_ids,) = vocabularies.target.encode([target])
    source_ids, target_ids = [*source_ids, EOS], [BOS, *target_ids]
    source_BS, target_BT = jnp.array([source_ids]), jnp.array([target_ids])
    weights = jax.jit(attention_weights, static_argnums=0)(model, params, source_BS, target_BT)
    cross = {name: np.asarray(w[0]) for name, w in weights.items() if "cross" in name}
    sides = vocabularies.source.tokens(source_ids), vocabularies.target.tokens(target_ids)
    return Attention(cross, *sides)
