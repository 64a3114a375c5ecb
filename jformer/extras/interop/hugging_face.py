"""Marian, M2M100 and NLLB models in the format of Hugging Face: folders to import and to export.

    config.json, model.safetensors or pytorch_model.bin    the model
    vocab.json, target_vocab.json if there are two         Marian, as OPUS-MT: the id of each piece
    source.spm, target.spm                                 Marian: how texts are segmented
    tokenizer.json                                         NLLB: pieces, merges and languages
    vocab.json, sentencepiece.bpe.model                    M2M100: pieces and segmentation

Marian is the paper's model with biases in attention and of the logits, and sinusoids with all sines
before all cosines. Its norms have an epsilon of 1e-5 where Flax has 1e-6; its class has no setting
for that. M2M100 is Marian with pre-norm, other sinusoids and without a bias of the logits.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from jformer.components import find
from jformer.config import BOS, EOS, PAD, ModelConfig
from jformer.errors import UserError, import_extra
from jformer.extras.interop import layouts, vocabularies
from jformer.extras.interop.ctranslate2 import MAX_SOURCE_LENGTH, token_names
from jformer.extras.interop.state_dicts import Source, Weights, read_tensors
from jformer.extras.interop.vocabularies import RESTORE, ForeignVocabularies, SpecialIds
from jformer.files import read_object, write_object
from jformer.run import Run
from jformer.schema import flatten

MODEL_TYPES = {"marian": "marian", "m2m100": "m2m_100"}
# The keys of config.json, and ours in config.model.
KEYS = {
    "d_model": "d_model",
    "encoder_layers": "num_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_ffn_dim": "d_ff",
    "decoder_ffn_dim": "d_ff",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    "activation_function": "activation",
}
# The embedding that the files may have under several names; a missing name is tied to another.
SHARED = "model.shared.weight"
MATRICES = {
    "source_embedding": "model.encoder.embed_tokens.weight",
    "embedding": "model.decoder.embed_tokens.weight",
    "output": "lm_head.weight",
}
TIED = (MATRICES["embedding"], SHARED, MATRICES["output"])  # the first of these that a file has
# The special tokens of an exported Marian model.
EXPORTED_IDS = {
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "decoder_start_token_id": BOS,
    "forced_eos_token_id": None,
}


def read(folder: Path, layout: str, languages: tuple[str, str]) -> Source:
    """Read a folder of the layout marian or m2m100; `languages` are those of an M2M100 run."""
    config = read_config(folder, layout)
    values = model_values(config, layout) | search_values(folder, config)
    path = folder / "model.safetensors"
    path = path if path.is_file() else folder / "pytorch_model.bin"
    theirs = Weights(read_tensors(path), path)
    if layout == "m2m100":
        values |= {"data.source_language": languages[0], "data.target_language": languages[1]}
        size = config["vocab_size"]
        sides = vocabularies.read_m2m100(folder, languages, size, special_ids(config))
    else:
        sides = vocabularies.read_marian(folder, special_ids(config))
    matrices = model_matrices(theirs, config["d_model"], sides)
    scale = config["d_model"] ** 0.5 if config.get("scale_embedding") else 1.0
    return Source(folder.name, layout, theirs, values, sides, matrices, scale)


def read_config(folder: Path, layout: str) -> dict[str, Any]:
    """Return the content of config.json; `UserError` if it is of another model."""
    path = folder / "config.json"
    config = read_object(path, RESTORE)
    if config.get("model_type") != MODEL_TYPES[layout]:
        raise UserError(f"{path}: model_type={config.get('model_type')}: is not {layout}")
    return config


def special_ids(config: dict[str, Any]) -> SpecialIds:
    return config["pad_token_id"], config["decoder_start_token_id"], config["eos_token_id"]


def model_values(config: dict[str, Any], layout: str) -> dict[str, Any]:
    """Return our config keys of a model."""
    values = {f"model.{ours}": config[theirs] for theirs, ours in KEYS.items()}
    if config["activation_function"] == "swish":
        values["model.activation"] = "silu"
    values |= {"model.attention_bias": True, "model.norm": "layer_norm(epsilon=1e-5)"}
    if layout == "m2m100":
        values["model.norm_position"] = "pre"
        # Positions count from the row after that of padding, as in fairseq.
        values["model.positions"] = f"halves(first={config['pad_token_id'] + 1})"
    return values


def search_values(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return our config keys of the search, from generation_config.json or config.json."""
    path = folder / "generation_config.json"
    generation = {**config, **(read_object(path, RESTORE) if path.is_file() else {})}
    return {
        "decode.search": f"beam(early_stopping={generation.get('early_stopping') is True})",
        "decode.beam_size": generation.get("num_beams") or 1,
        "decode.length_penalty": float(generation.get("length_penalty") or 1.0),
        "decode.length_penalty_beta": 0.0,
        "data.max_length": config.get("max_position_embeddings", 512),
    }


def model_matrices(theirs: Weights, D: int, sides: ForeignVocabularies) -> dict[str, np.ndarray]:
    """Take the embeddings, the output and the bias of the logits."""
    tied = next((name for name in TIED if name in theirs.tensors), SHARED)
    names = {ours: name if name in theirs.tensors else tied for ours, name in MATRICES.items()}
    taken, V = theirs.take_matrices(names, D, sides), sides[1].size
    if SHARED in theirs.tensors:
        theirs.take(SHARED, V, D)  # the same matrix under one more name
    if "final_logits_bias" in theirs.tensors:
        taken["output_bias"] = theirs.take("final_logits_bias", 1, V)[0]
    for name in theirs.tensors:
        if "embed_positions.weight" in name:
            theirs.ignore(name)
    return taken


def export(run: Run, folder: Path, format: str) -> None:
    """Write a Marian model and its tokenizer, whose ids become those of the model.

    `AutoTokenizer` and `AutoModelForSeq2SeqLM` of transformers open the folder.
    """
    user = f"--format={format}"
    if run.vocabulary.language_token is not None:
        raise UserError(f"{user}: a run from M2M100 or NLLB requires --original=FOLDER, its origin")
    layouts.check_model(run.config.model, format)
    if run.vocabularies.source is not run.vocabularies.target:
        raise run.config.data.wrong("joint_vocabulary", f"{user} supports only one vocabulary")
    save_model(folder, state_dict(run.params, run.config.model), marian_config(run))
    write_object(folder / "generation_config.json", generation_config(run))
    names = token_names(run.vocabulary)
    vocabularies.with_end(run.vocabulary, names).save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": names[PAD],
        "bos_token": names[BOS],
        "eos_token": names[EOS],
        "clean_up_tokenization_spaces": False,
    }
    write_object(folder / "tokenizer_config.json", settings)


def state_dict(params: Any, config: ModelConfig) -> dict[str, np.ndarray]:
    """Return Marian's weights for our parameters, without tables of positions and tied copies."""
    arrays = layouts.reordered(arrays_of(params), layouts.halves_order(config.d_model))
    embedding_VD = arrays["embedding"]
    bias_V = arrays.get("output_bias", np.zeros(len(embedding_VD), np.float32))
    state = layouts.named_layers(arrays, "marian")
    for name in [name for name in state if name.endswith("_proj.weight")]:
        bias = name.removesuffix("weight") + "bias"
        state.setdefault(bias, np.zeros(len(state[name]), np.float32))
    return state | {SHARED: embedding_VD, "final_logits_bias": bias_V[None]}


def marian_config(run: Run) -> dict[str, Any]:
    config = run.config.model
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        **{theirs: getattr(config, ours) for theirs, ours in KEYS.items()},
        "decoder_layers": config.decoder_layers,
        "vocab_size": run.vocabulary.size,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": True,
        "max_position_embeddings": max(MAX_SOURCE_LENGTH, run.config.longest) + 1,
        "dtype": "float32",
        **EXPORTED_IDS,
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
        **EXPORTED_IDS,
    }


def export_m2m100(run: Run, original: Path, folder: Path) -> None:
    """Write an imported M2M100 or NLLB model with the other files of the folder `original`.

    After a fine-tuning, encoder, decoder and output differ in their matrices, and </s> in its rows
    as the beginning and the end of a target. They are then three matrices, which transformers
    reads from version 5.
    """
    config, values = read_config(original, "m2m100"), flatten(run.config)
    for key, value in model_values(config, "m2m100").items():
        if values[key] != value:
            raise UserError(f"--original={original}: config.{key}={values[key]} must be {value}")
    specials, V = special_ids(config), config["vocab_size"]
    rows = [*specials, *(token for token in range(V) if token not in specials)]
    if {side.size for side in run.vocabularies} != {len(rows)}:
        raise UserError(f"--original={original}: the run has another vocabulary")
    arrays = arrays_of(run.params)

    def in_their_rows(name: str) -> np.ndarray:
        ours = arrays.get(name, arrays["embedding"])
        theirs = np.zeros((V, *ours.shape[1:]), np.float32)
        theirs[rows] = ours  # </s> takes the row of EOS, the later one
        return theirs

    encoder_VD, decoder_VD, output_VD = map(in_their_rows, MATRICES)
    decoder_VD[rows[BOS]] = arrays["embedding"][BOS]
    bias_V = in_their_rows("output_bias")
    if np.any(bias_V):  # only after a fine-tuning
        output_VD += np.outer(bias_V, constant_direction(arrays))
    state = layouts.named_layers(arrays, "m2m100") | {SHARED: decoder_VD}
    is_tied = np.array_equal(encoder_VD, decoder_VD) and np.array_equal(output_VD, decoder_VD)
    if not is_tied:
        matrices = (encoder_VD, decoder_VD, output_VD)
        state |= dict(zip(MATRICES.values(), matrices, strict=True))
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


def arrays_of(params: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(x, np.float32) for name, x in flatten_dict(params, sep="/").items()}


def save_model(folder: Path, state: dict[str, np.ndarray], config: dict[str, Any]) -> None:
    safetensors = import_extra("safetensors.numpy", "--format=transformers", "safetensors")
    # The library writes memory as it lies, so that a transposed view would be wrong.
    state = {name: array.copy(order="C") for name, array in state.items()}
    safetensors.save_file(state, folder / "model.safetensors", {"format": "pt"})
    write_object(folder / "config.json", config)
