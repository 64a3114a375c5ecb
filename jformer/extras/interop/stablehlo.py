"""The model as StableHLO programs, which run with JAX alone: no code of this package is needed.

Axes B (sentences), S (source) and T (target) have any size. The weights are arguments, so that they
are stored once, in weights.npz; signatures.json says what each program takes and returns.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax import export as jax_export

from jformer.components import BUILT_IN
from jformer.config import BOS, EOS, PAD
from jformer.decoding.ensemble import encode_sources
from jformer.errors import import_extra
from jformer.extras.interop.limits import check_model
from jformer.files import replace_file, write_object
from jformer.model import decoding
from jformer.model.transformer import Transformer
from jformer.run import Run

PLATFORMS = ("cpu", "cuda", "tpu")
Weights = dict[str, Array]  # by our names, as encoder_0/self_attention/query/kernel


def export(run: Run, folder: Path, format: str) -> None:
    """Write the programs encode, step and greedy, weights, signatures and the vocabulary."""
    # A table of learned positions ends, and a size that may be anything is not compared with it.
    others = [kind for kind in BUILT_IN["positions"] if kind != "learned"]
    check_model(run.config.model, f"--format={format}", positions=others)
    import_extra("flatbuffers", f"--format={format}", "flatbuffers")  # of jax.export
    # One dtype on every platform; `auto` would choose by the machine that exports.
    config = dataclasses.replace(run.config.model, dtype="float32", attention_kernel="xla")
    model = run.model.clone(config=config)
    weights: dict[str, Any] = {
        name: np.asarray(x) for name, x in flatten_dict(run.params, sep="/").items()
    }
    np.savez(folder / "weights.npz", **weights)
    signatures = {}
    for name, (function, arguments) in programs(model, weights).items():
        program = jax_export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
        replace_file(folder / f"{name}.stablehlo", bytes(program.serialize()))
        signatures[name] = {
            "takes": [described(argument) for argument in arguments[1:]],
            "returns": described(jax.tree.unflatten(program.out_tree, program.out_avals)),
        }
    ids = {"pad": PAD, "bos": BOS, "eos": EOS, "first_entry_of_vocabulary": EOS + 1}
    about = {"platforms": PLATFORMS, "ids": ids, "first_argument": "all of weights.npz by name"}
    write_object(folder / "signatures.json", {**about, "programs": signatures})
    run.vocabularies.save(folder)


def described(tree: Any) -> Any:
    """Return the dtype and the axes of each array in a tree, as "int32 (B, S)"."""
    return jax.tree.map(lambda x: f"{x.dtype} ({', '.join(map(str, x.shape))})", tree)


def programs(model: Transformer, weights: Any) -> dict[str, tuple[Callable, tuple]]:
    """Return functions by name, with the shapes of their arguments."""
    B, S, T = jax_export.symbolic_shape("B, S, T")
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), weights)
    source_BS = jax.ShapeDtypeStruct((B, S), jnp.int32)
    ids_B = jax.ShapeDtypeStruct((B,), jnp.int32)
    zeros_BT = jax.ShapeDtypeStruct((B, T), jnp.int32)

    encode, step, greedy = (
        functools.partial(function, model)
        for function in (encode_source, decode_step, greedy_search)
    )
    memory = jax.eval_shape(encode, shapes, source_BS)
    cache = jax.eval_shape(lambda: init_cache(model, B, T))
    t = jax.ShapeDtypeStruct((), jnp.int32)
    return {
        "encode": (encode, (shapes, source_BS)),
        "step": (step, (shapes, ids_B, t, cache, memory)),
        "greedy": (greedy, (shapes, source_BS, ids_B, zeros_BT)),
    }


def encode_source(model: Transformer, weights: Weights, source_BS: Array) -> dict[str, Any]:
    """Return keys and values of the encoded sources for each decoder layer, and their mask."""
    [memory] = encode_sources((model,), (unflatten_dict(weights, sep="/"),), source_BS)
    return {"keys_values": [list(pair) for pair in memory.cross_kv], "mask": memory.mask_B11S}


def init_cache(model: Transformer, B: Any, T: Any) -> list[list[Array]]:
    """Return an empty cache: keys (B, H, K, 1, T) and values (B, H, 1, T, U) for each layer."""
    cache = decoding.init_cache(model.config, 1, T)
    return [[jnp.zeros((B, *x.shape), x.dtype) for x in layer] for layer in cache]


def decode_step(
    model: Transformer, weights: Weights, tokens_B: Array, t: Array, cache: Any, memory: Any
) -> tuple[Array, list[list[Array]]]:
    """Return logits (B, V) of the tokens at t + 1, and the cache with position t filled."""
    variables = {"params": unflatten_dict(weights, sep="/")}
    places_1T = jnp.zeros((1, cache[0][1].shape[3]), jnp.int32)

    def one(token: Array, cache: Any, memory: Any) -> Any:
        own = decoding.Memory([tuple(pair) for pair in memory["keys_values"]], memory["mask"])
        layers = [tuple(layer) for layer in cache]
        return model.apply(
            variables, token[None], t, places_1T, layers, own, method=decoding.decode_step
        )

    logits_B1V, new_cache = jax.vmap(one)(tokens_B, cache, memory)
    return logits_B1V[:, 0], [list(layer) for layer in new_cache]


def greedy_search(
    model: Transformer, weights: Weights, source_BS: Array, limits_B: Array, zeros_BT: Array
) -> Array:
    """Return outputs (B, T): up to and with EOS, or as many tokens as limits_B; then PAD."""
    B, T = zeros_BT.shape
    memory = encode_source(model, weights, source_BS)

    def busy(state: Any) -> Array:
        t, _, done_B, _ = state
        return (t < T) & ~jnp.all(done_B)

    def extend(state: Any) -> Any:
        t, tokens_BT, done_B, cache = state
        before_B = jnp.where(t == 0, BOS, tokens_BT[:, t - 1])
        logits_BV, cache = decode_step(model, weights, before_B, t, cache, memory)
        logits_BV = logits_BV.at[:, PAD].set(-jnp.inf).at[:, BOS].set(-jnp.inf)
        best_B = jnp.where(done_B, PAD, jnp.argmax(logits_BV, axis=-1).astype(jnp.int32))
        tokens_BT = tokens_BT.at[:, t].set(best_B)
        return t + 1, tokens_BT, done_B | (best_B == EOS) | (t + 1 >= limits_B), cache

    state = jnp.int32(0), zeros_BT, limits_B <= 0, init_cache(model, B, T)
    return jax.lax.while_loop(busy, extend, state)[1]
