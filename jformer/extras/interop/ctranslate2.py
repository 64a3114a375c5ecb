"""Models for CTranslate2, with weights in float32 or in 8 bits.

Its specification of a Transformer holds post- and pre-norm, positions that are added to the
embeddings, and matrices that are tied or not. Self-attention has queries, keys and values in one
matrix there, and cross-attention keys and values.
"""

import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jformer.components import arguments, find
from jformer.config import BOS, EOS, PAD
from jformer.data.vocabulary import Vocabulary
from jformer.errors import import_extra
from jformer.extras.interop.layouts import check_model, matrix_of
from jformer.run import Run

QUANTIZATIONS = {"ctranslate2": "float32", "ctranslate2:int8": "int8"}
MAX_SOURCE_LENGTH = 1024  # in tokens, CTranslate2's default
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}
SPECIAL = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}


def export(run: Run, folder: Path, format: str) -> None:
    """Write the model, and the tokenizers of the run under names of the library `tokenizers`."""
    check_model(run.config.model, format)
    save_model(run, folder, QUANTIZATIONS[format])
    run.vocabularies.target.save(folder / "tokenizer.json")
    if run.vocabularies.source is not run.vocabularies.target:
        run.vocabularies.source.save(folder / "source_tokenizer.json")


def save_model(run: Run, folder: Path, quantization: str = "float32") -> None:
    """Write a model that `ctranslate2.Translator` opens; it ends sources with EOS by itself."""
    import_extra("ctranslate2", "CTranslate2", "ctranslate2")
    spec = specification(run)
    source, target = map(token_names, run.vocabularies)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.bos_token = spec.config.decoder_start_token = target[BOS]
    spec.config.eos_token, spec.config.unk_token = target[EOS], target[PAD]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = arguments("norm", run.config.model.norm)["epsilon"]
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def token_names(vocabulary: Vocabulary) -> list[str]:
    """Return CTranslate2's string of each id, all different: the entries of the tokenizer."""
    entries = vocabulary.entries()
    names = [f"<gap {n}>" if entry is None else entry for n, entry in enumerate(entries)]
    for token, name in SPECIAL.items():
        names[token] = f"<{name}>" if name in entries else name
    return names


def specification(run: Run) -> Any:
    """Return the `TransformerSpec` of CTranslate2 with the weights of a run."""
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation

    config, params = run.config.model, run.params
    spec = TransformerSpec.from_config(
        (config.num_layers, config.decoder_layers),
        config.num_heads,
        pre_norm=config.norm_position == "pre",
        activation=Activation[ACTIVATIONS[config.activation]],
    )
    shared = params["embedding"]
    spec.encoder.embeddings[0].weight = as_float32(params.get("source_embedding", shared))
    spec.decoder.embeddings.weight = as_float32(shared)
    spec.decoder.projection.weight = as_float32(params.get("output", shared))
    if config.output_bias:
        spec.decoder.projection.bias = as_float32(params["output_bias"])
    table_LD = positions_table(run)
    for stack, name in ((spec.encoder, "encoder"), (spec.decoder, "decoder")):
        stack.position_encodings.encodings = table_LD
        if config.norm_position == "pre":
            set_norm(stack.layer_norm, params[f"{name}_norm"])
        for number, layer in enumerate(stack.layer):
            set_layer(layer, params[f"{name}_{number}"])
    return spec


def positions_table(run: Run) -> np.ndarray:
    """Return what is added to the embeddings at each position that a text can have: (L, D)."""
    config = run.config.model
    length = max(MAX_SOURCE_LENGTH, run.config.longest) + 1  # EOS
    if config.max_positions < math.inf:
        length = int(config.max_positions)
    table = run.params.get("position_embedding")
    positions = find("config.model.positions", "positions", config.positions)
    return as_float32(positions.added(jnp.arange(length), config.d_model, table))


def set_layer(spec: Any, layer: Any) -> None:
    own = layer["self_attention"]
    set_linear(spec.self_attention.linear[0], own, "query", "key", "value")
    set_linear(spec.self_attention.linear[1], own, "out")
    set_norm(spec.self_attention.layer_norm, layer["self_attention_residual"]["norm"])
    if "cross_attention" in layer:
        cross = layer["cross_attention"]
        set_linear(spec.attention.linear[0], cross, "query")
        set_linear(spec.attention.linear[1], cross, "key", "value")
        set_linear(spec.attention.linear[2], cross, "out")
        set_norm(spec.attention.layer_norm, layer["cross_attention_residual"]["norm"])
    set_linear(spec.ffn.linear_0, layer["feed_forward"], "ffn_in")
    set_linear(spec.ffn.linear_1, layer["feed_forward"], "ffn_out")
    set_norm(spec.ffn.layer_norm, layer["feed_forward_residual"]["norm"])


def set_linear(spec: Any, params: Any, *names: str) -> None:
    """Set the matrices of several products of the same input, one below the other."""
    kernels = [matrix_of(f"/{name}/kernel", as_float32(params[name]["kernel"])) for name in names]
    spec.weight = np.concatenate(kernels)
    if "bias" in params[names[0]]:
        spec.bias = np.concatenate([as_float32(params[name]["bias"]).ravel() for name in names])


def set_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = as_float32(norm["scale"]), as_float32(norm["bias"])


def as_float32(array: Any) -> np.ndarray:
    return np.array(array, np.float32)  # a copy: CTranslate2 scales it in place
