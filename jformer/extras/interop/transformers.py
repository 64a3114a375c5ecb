"""A folder that transformers opens with `AutoTokenizer` and `AutoModelForSeq2SeqLM`.

The model is a Marian model, or M2M100 if the run was imported from M2M100 or NLLB.

Marian is the Transformer of the paper with biases in attention and of the logits, which are zero
for a model without. It has 1e-5 as the epsilon of its norms where Flax has 1e-6. Its class has no
setting for that.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from tokenizers import Tokenizer, processors

from jformer.components import find
from jformer.config import BOS, EOS, PAD, ModelConfig
from jformer.data.vocabulary import FIRST, Vocabulary
from jformer.errors import UserError, import_extra
from jformer.extras.interop import hugging_face, layouts
from jformer.extras.interop.ctranslate2 import MAX_SOURCE_LENGTH, token_names
from jformer.extras.interop.vocabularies import renumbered
from jformer.files import write_object
from jformer.run import Run
from jformer.schema import flatten


def check(config: ModelConfig, user: str) -> None:
    """Raise `UserError` for what Marian cannot hold; `user` is the flag that asks for it."""
    layouts.check_model(
        config,
        user,
        activation=("relu", "gelu", "silu"),
        norm_position=("post",),
        positions=("sinusoidal",),
        tying=("all",),
    )


def export(run: Run, folder: Path, format: str) -> None:
    """Write weights, configs and the tokenizer, whose ids become those of the model."""
    if run.vocabulary.language_token is not None:
        raise UserError(
            f"--format={format}: a run from M2M100 or NLLB requires --original=FOLDER, its origin"
        )
    check(run.config.model, f"--format={format}")
    if run.vocabularies.source is not run.vocabularies.target:
        raise UserError(
            f"config.data.joint_vocabulary=False: --format={format} supports only one vocabulary"
        )
    save_model(folder, state_dict(run.params, run.config.model), model_config(run))
    write_object(folder / "generation_config.json", generation_config(run))
    names = token_names(run.vocabulary)
    tokenizer_of(run.vocabulary, names).save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"pad_token": names[PAD], "bos_token": names[BOS]}
    settings |= {"eos_token": names[EOS], "clean_up_tokenization_spaces": False}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_object(folder / "tokenizer_config.json", settings)


def tokenizer_of(vocabulary: Vocabulary, names: list[str]) -> Tokenizer:
    """Return a tokenizer whose ids are the model's, and that ends each text with EOS."""
    document = json.loads(vocabulary.tokenizer.to_str())
    ids = {name: token for token, name in enumerate(names)}
    tokenizer = renumbered(document, ids, ()).vocabulary.tokenizer
    tokenizer.add_special_tokens(names[:FIRST])
    eos = names[EOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", eos], pair=["$A", eos, "$B", eos], special_tokens=[(eos, EOS)]
    )
    return tokenizer


def export_m2m100(run: Run, original: Path, folder: Path) -> None:
    """Write an imported M2M100 or NLLB model with the other files of the folder `original`.

    After a fine-tuning, encoder, decoder and output differ in their matrices, and </s> in its rows
    as the beginning and the end of a target. They are then three matrices, which transformers
    reads from version 5.
    """
    config = hugging_face.read_config(original, "m2m100")
    pad_bos_eos = hugging_face.special_ids(config)
    V, D = config["vocab_size"], config["d_model"]
    rows = [*pad_bos_eos, *(token for token in range(V) if token not in pad_bos_eos)]
    values = flatten(run.config)
    for key, value in hugging_face.model_values(config, "m2m100").items():
        if values[key] != value:
            raise UserError(f"--original={original}: config.{key}={values[key]} must be {value}")
    if {side.size for side in run.vocabularies} != {len(rows)}:
        raise UserError(f"--original={original}: the run has another vocabulary")
    arrays = arrays_of(run.params)
    encoder_VD, decoder_VD, output_VD = np.zeros((3, V, D), np.float32)
    encoder_VD[rows] = arrays.get("source_embedding", arrays["embedding"])
    decoder_VD[rows] = arrays["embedding"]
    output_VD[rows] = arrays.get("output", arrays["embedding"])
    decoder_VD[rows[BOS]] = arrays["embedding"][BOS]
    bias_V = np.zeros(V, np.float32)
    bias_V[rows] = arrays.get("output_bias", 0.0)
    if np.any(bias_V):  # only after a fine-tuning
        output_VD += np.outer(bias_V, constant_direction(arrays))
    state = layers_of(arrays, "m2m100") | {"model.shared.weight": decoder_VD}
    is_tied = np.array_equal(encoder_VD, decoder_VD) and np.array_equal(output_VD, decoder_VD)
    if not is_tied:
        for stack, matrix_VD in (("encoder", encoder_VD), ("decoder", decoder_VD)):
            state[f"model.{stack}.embed_tokens.weight"] = matrix_VD
        state["lm_head.weight"] = output_VD
    config |= {"scale_embedding": True, "tie_word_embeddings": is_tied, "dtype": "float32"}
    for path in original.iterdir():
        if path.suffix in (".json", ".model"):
            shutil.copy(path, folder)
    save_model(folder, state, config)


def constant_direction(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return a vector (D,) whose product with every output of the decoder's final norm is 1.

    M2M100 has no bias of the logits, so it is a multiple of this vector in each row of the output.
    The norm is x * scale + bias, and the elements of x sum to 0.
    """
    scale_D, bias_D = (arrays[f"decoder_norm/{name}"] for name in ("scale", "bias"))
    return 1 / (scale_D * np.sum(bias_D / scale_D))


def save_model(folder: Path, state: dict[str, np.ndarray], config: dict[str, Any]) -> None:
    safetensors = import_extra("safetensors.numpy", "--format=transformers", "safetensors")
    # The library writes memory as it lies, so that a transposed view would be wrong.
    state = {name: array.copy(order="C") for name, array in state.items()}
    safetensors.save_file(state, folder / "model.safetensors", {"format": "pt"})
    write_object(folder / "config.json", config)


def state_dict(params: Any, config: ModelConfig) -> dict[str, np.ndarray]:
    """Return Marian's weights for our parameters, without tables of positions and tied copies."""
    arrays = layouts.reordered(arrays_of(params), layouts.halves_order(config.d_model))
    embedding_VD = arrays["embedding"]
    bias_V = arrays.get("output_bias", np.zeros(len(embedding_VD), np.float32))
    state = layers_of(arrays, "marian")
    state["model.shared.weight"] = embedding_VD
    for name in [name for name in state if name.endswith("_proj.weight")]:
        bias = name.removesuffix("weight") + "bias"
        state.setdefault(bias, np.zeros(len(state[name]), np.float32))
    return state | {"final_logits_bias": bias_V[None]}


def arrays_of(params: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(x, np.float32) for name, x in flatten_dict(params, sep="/").items()}


def layers_of(arrays: dict[str, np.ndarray], layout: str) -> dict[str, np.ndarray]:
    """Return the tensors of layers and final norms under their names in a layout."""
    layers = {name: array for name, array in arrays.items() if "/" in name}
    return {
        layouts.tensor_name(name, layout): layouts.matrix_of(name, array)
        for name, array in layers.items()
    }


def model_config(run: Run) -> dict[str, Any]:
    config = run.config.model
    stacks = {"encoder": config.num_layers, "decoder": config.decoder_layers}
    sizes: dict[str, Any] = {}
    for stack, depth in stacks.items():
        sizes |= {f"{stack}_layers": depth, f"{stack}_attention_heads": config.num_heads}
        sizes[f"{stack}_ffn_dim"] = config.d_ff
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "d_model": config.d_model,
        **sizes,
        "vocab_size": run.vocabulary.size,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": True,
        "max_position_embeddings": max(MAX_SOURCE_LENGTH, run.config.longest) + 1,
        "dtype": "float32",
        **special_ids(),
    }


def generation_config(run: Run) -> dict[str, Any]:
    """Return the settings of the run's search that `generate` also has."""
    decode = run.config.decode
    search = find("config.decode.search", "search", decode.search)
    return {
        "num_beams": decode.beam_size,
        "length_penalty": decode.length_penalty,
        "early_stopping": getattr(search, "early_stopping", False) and decode.beam_size > 1,
        "max_new_tokens": run.config.data.max_length + decode.max_extra_length,
        "suppress_tokens": [PAD, BOS],
        **special_ids(),
    }


def special_ids() -> dict[str, int | None]:
    ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    return {**ids, "decoder_start_token_id": BOS, "forced_eos_token_id": None}
