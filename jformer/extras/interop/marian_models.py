"""Marian models in the format of Hugging Face: a folder as the OPUS-MT models are published in.

    config.json, model.safetensors or pytorch_model.bin    the model
    vocab.json, target_vocab.json if there are two         the id of each piece
    source.spm, target.spm                                 SentencePiece: how texts are cut

Its position table is the paper's with all sines before all cosines. So the columns of all that has
an axis D are put into the paper's order, and the model is the same.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from tokenizers import Tokenizer

from jformer.console import say
from jformer.data.vocabulary import Vocabulary
from jformer.errors import UserError
from jformer.extras.interop import layouts
from jformer.extras.interop.weights import Weights, read_weights
from jformer.extras.interop.words import Words
from jformer.extras.sentencepiece import from_sentencepiece
from jformer.files import read_object

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
LEAST_LIKELY = -1e6  # the score of a piece that the model knows, and its SentencePiece does not
RESTORE = "copy the model's folder again"
# The keys of the ids that are PAD, BOS and EOS here.
SPECIALS = ("pad_token_id", "decoder_start_token_id", "eos_token_id")


def marian_weights(folder: Path) -> Weights:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return read_weights(folder / name)
    raise UserError(f"--from={folder}: has neither model.safetensors nor pytorch_model.bin")


def marian_values(folder: Path) -> dict[str, Any]:
    """Return the config keys of the model and of the search in its config.json."""
    path = folder / "config.json"
    theirs = read_object(path, RESTORE)
    needed = ("d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim")
    heads = ("encoder_attention_heads", "decoder_attention_heads")
    needed_keys = (*needed, *heads, *SPECIALS, "activation_function")
    if missing := [name for name in needed_keys if name not in theirs]:
        raise UserError(f"{path}: has no {', '.join(missing)}; is it that of a Marian model?")
    for one, other in ((needed[3], needed[4]), heads):
        if theirs[one] != theirs[other]:
            raise UserError(f"{path}: {one} and {other} must be equal")
    activation = theirs["activation_function"]
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UserError(f"{path}: activation_function={activation} is none of {known}")
    search = path.with_name("generation_config.json")
    generation = {**theirs, **(read_object(search, RESTORE) if search.is_file() else {})}
    return {
        "model.d_model": theirs["d_model"],
        "model.d_ff": theirs["encoder_ffn_dim"],
        "model.num_layers": theirs["encoder_layers"],
        "model.num_decoder_layers": theirs["decoder_layers"],
        "model.num_heads": theirs[heads[0]],
        "model.activation": ACTIVATIONS[activation],
        "model.attention_bias": True,
        "model.norm": "layer_norm(epsilon=1e-5)",
        "decode.search": f"beam(early_stopping={generation.get('early_stopping') is True})",
        "decode.beam_size": generation.get("num_beams") or 1,
        "decode.length_penalty": float(generation.get("length_penalty") or 1.0),
        "decode.length_penalty_beta": 0.0,
        "data.max_length": theirs.get("max_position_embeddings", 512),
    }


def marian_matrices(
    theirs: Weights, folder: Path, D: int, sizes: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Take the embeddings, the output and the bias of the logits; embeddings as ours are scaled."""
    shared = "model.shared.weight"
    names = {
        "source_embedding": ("model.encoder.embed_tokens.weight", shared),
        "embedding": ("model.decoder.embed_tokens.weight", shared, "lm_head.weight"),
        "output": ("lm_head.weight", "model.decoder.embed_tokens.weight", shared),
    }
    taken = {}
    for ours, candidates in names.items():
        name = next((name for name in candidates if name in theirs), candidates[0])
        taken[ours] = theirs.take(name, sizes[ours != "source_embedding"], D)
    if shared in theirs:
        theirs.take(shared, sizes[1], D)  # the same matrix under one more name
    if "final_logits_bias" in theirs:
        taken["output_bias"] = theirs.take("final_logits_bias", 1, sizes[1])[0]
    theirs.ignore_sinusoids(D, paper_order(D))
    theirs.ignore(r"model\.\w+\.embed_positions\.weights", "M2M100's sinusoids, which are computed")
    if not read_object(folder / "config.json", RESTORE).get("scale_embedding", False):
        for ours in ("source_embedding", "embedding"):
            taken[ours] = taken[ours] / np.float32(D**0.5)  # ours are multiplied by it
    return taken


def paper_order(D: int) -> np.ndarray:
    """Return where sine, cosine, sine, cosine, ... stand with all sines before all cosines."""
    return np.argsort(layouts.halves_order(D))


def paper_columns(params: dict[str, Any], d_model: int) -> dict[str, Any]:
    """Put the columns of all that has an axis D into the order of the paper's sinusoids."""
    arrays = flatten_dict(params, sep="/")
    arrays = layouts.reordered(arrays, paper_order(d_model))
    return unflatten_dict(arrays, sep="/")


def marian_words(folder: Path) -> tuple[Words, Words]:
    """Return the vocabularies of source and target; the same object if they are one."""
    config = read_object(folder / "config.json", RESTORE)
    pad, bos, eos = (config[name] for name in SPECIALS)
    source, target = folder / "source.spm", folder / "target.spm"
    for path in (source, target, folder / "vocab.json"):
        if not path.is_file():
            raise UserError(f"{path}: no such file; {RESTORE}")
    source_ids = read_object(folder / "vocab.json", RESTORE)
    own = folder / "target_vocab.json"
    target_ids = read_object(own, RESTORE) if own.is_file() else source_ids
    target_words = words_of_pieces(pieces_of(target, target_ids), target_ids, (pad, bos, eos))
    if source_ids == target_ids and source.read_bytes() == target.read_bytes():
        return target_words, target_words
    source_words = words_of_pieces(pieces_of(source, source_ids), source_ids, (pad, bos, eos))
    return source_words, target_words


def pieces_of(spm: Path, ids: Mapping[str, int]) -> dict[str, Any]:
    """Return the document of a tokenizer that cuts texts as a SentencePiece model does."""
    try:
        document = json.loads(from_sentencepiece(spm).to_str())
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{spm}: must be a SentencePiece Unigram or BPE model ({error})") from error
    pieces = dict(document["model"]["vocab"])
    if lost := [name for name in pieces if name not in ids and not name.startswith(" ")]:
        say(f"ignored     {len(lost):,} pieces of {spm.name} that the model has no id for")
    return document


def words_of_pieces(
    document: dict[str, Any], ids: Mapping[str, int], specials: tuple[int, int, int]
) -> Words:
    """Return a vocabulary that cuts texts as a tokenizer's document does, with other ids."""
    kept = [piece for piece in sorted(ids, key=ids.__getitem__) if ids[piece] not in specials]
    model = {**document["model"]}
    document = {**document, "model": model}
    if model["type"] == "Unigram":
        scores = dict(model["vocab"])
        unknown = model["vocab"][model["unk_id"]][0]
        names = [unknown if piece == "<unk>" else piece for piece in kept]
        model["vocab"] = [[name, scores.get(name, LEAST_LIKELY)] for name in names]
        model["unk_id"] = names.index(unknown)
    else:
        unknown = model["unk_token"]
        names = [unknown if piece == "<unk>" else piece for piece in kept]
        merges = [m if isinstance(m, list) else m.split(" ", 1) for m in model["merges"]]
        known = {*names}
        model["vocab"] = {name: number for number, name in enumerate(names)}
        model["merges"] = [m for m in merges if {*m, "".join(m)} <= known]
    # Models of several target languages take the language from the beginning of a source.
    document["added_tokens"] = [
        {
            "id": number,
            "content": name,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False),
        }
        for number, name in enumerate(names)
        if name.startswith(">>") and name.endswith("<<")
    ]
    vocabulary = Vocabulary(Tokenizer.from_str(json.dumps(document)))
    rows = np.array([*specials, *(ids[piece] for piece in kept)])
    return Words(vocabulary, rows, len(ids))
