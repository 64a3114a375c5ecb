"""A folder that transformers opens with `AutoTokenizer` and `AutoModelForSeq2SeqLM`, as Marian.

Marian is the Transformer of the paper with biases in attention and of the logits, which are zero
for a model without. It has 1e-5 as the epsilon of its norms where Flax has 1e-6. Its class has no
setting for that.
"""

from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from jformer.components import find
from jformer.config import BOS, EOS, PAD, ModelConfig
from jformer.data.vocabulary import FIRST
from jformer.errors import UserError, import_extra
from jformer.extras.interop.ctranslate2 import MOST_POSITIONS, token_names
from jformer.extras.interop.layouts import (
    MARIAN,
    check_common,
    check_model,
    halves_order,
    leaves,
    matrix_of,
    reordered,
)
from jformer.files import read_object, write_object
from jformer.run import Run


def check(config: ModelConfig, user: str) -> None:
    """Raise `UserError` for what Marian cannot hold; `user` is the flag that asks for it."""
    check_common(config, user)
    check_model(
        config,
        user,
        activation=("relu", "gelu", "silu"),
        norm_position=("post",),
        positions=("sinusoidal",),
        tying=("all",),
    )


def export(run: Run, folder: Path, format: str) -> None:
    """Write weights, configs and the tokenizer, whose ids become those of the model."""
    check(run.config.model, f"--format={format}")
    if run.vocabularies.source is not run.vocabularies.target:
        raise UserError(
            f"config.data.joint_vocabulary=False: --format={format} can hold one vocabulary alone"
        )
    safetensors = import_extra("safetensors.numpy", f"--format={format}", "safetensors")
    state = state_dict(run.params, run.config.model)
    state = {name: array.copy(order="C") for name, array in state.items()}
    safetensors.save_file(state, folder / "model.safetensors", {"format": "pt"})
    write_object(folder / "config.json", model_config(run))
    write_object(folder / "generation_config.json", generation_config(run))
    special = dict(zip(("pad", "bos", "eos"), token_names(run.vocabulary), strict=False))
    tokenizer = folder / "tokenizer.json"
    run.vocabulary.save(tokenizer)
    content = read_object(tokenizer, "export again")
    write_object(tokenizer, shifted(content, [*special.values()]))
    words: dict[str, Any] = {f"{role}_token": name for role, name in special.items()}
    words |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_object(folder / "tokenizer_config.json", words)


def state_dict(params: Any, config: ModelConfig) -> dict[str, np.ndarray]:
    """Return Marian's weights for our parameters, without tables of positions and tied copies."""
    flat = flatten_dict(params, sep="/")
    arrays = {name: np.asarray(x, np.float32) for name, x in flat.items()}
    arrays = reordered(arrays, halves_order(config.d_model))
    embedding_VD = arrays.pop("embedding")
    bias_V = arrays.pop("output_bias", np.zeros(len(embedding_VD), np.float32))
    names = {name: leaf.name for name, leaf in leaves(MARIAN, config).items()}
    state = {names[name]: matrix_of(name, array) for name, array in arrays.items()}
    state["model.shared.weight"] = embedding_VD
    for name in [name for name in state if name.endswith("_proj.weight")]:
        bias = name.removesuffix("weight") + "bias"
        state.setdefault(bias, np.zeros(len(state[name]), np.float32))
    return state | {"final_logits_bias": bias_V[None]}


def model_config(run: Run) -> dict[str, Any]:
    config, V = run.config.model, run.vocabulary.size
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
        "vocab_size": V,
        "decoder_vocab_size": V,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": True,
        "max_position_embeddings": max(MOST_POSITIONS, run.config.longest) + 1,
        "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        "dtype": "float32",
        **special_ids(),
    }


def generation_config(run: Run) -> dict[str, Any]:
    """Return the settings of `generate`: those of the run that it has, too."""
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


def shifted(document: dict[str, Any], special: list[str]) -> dict[str, Any]:
    """Return a tokenizer whose ids are the model's, and that ends each text with EOS."""
    model = document["model"]
    if isinstance(model["vocab"], dict):
        entries = {entry: number + FIRST for entry, number in model["vocab"].items()}
        vocab: Any = dict(zip(special, range(FIRST), strict=True)) | entries
    else:  # Unigram's entries are a list with scores
        least = min(score for _, score in model["vocab"])
        vocab = [[name, least] for name in special] + model["vocab"]
    model = {**model, "vocab": vocab}
    if model.get("unk_id") is not None:
        model["unk_id"] += FIRST
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": name, **plain, "special": True}
        for number, name in enumerate(special)
    ]
    added += [{**token, "id": token["id"] + FIRST} for token in document["added_tokens"]]
    return {**document, "model": model, "added_tokens": added, "post_processor": ending(special)}


def ending(special: list[str]) -> dict[str, Any]:
    """Return the post-processor of the library `tokenizers` that appends EOS to a text."""
    eos = special[EOS]
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    other = [{"Sequence": {"id": "B", "type_id": 0}}]
    end = [{"SpecialToken": {"id": eos, "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": text + end,
        "pair": text + end + other + end,
        "special_tokens": {eos: {"id": eos, "ids": [EOS], "tokens": [eos]}},
    }
