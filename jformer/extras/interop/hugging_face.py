"""Marian, M2M100 and NLLB models in the format of Hugging Face.

    config.json, model.safetensors or pytorch_model.bin    the model
    vocab.json, target_vocab.json if there are two         Marian, as OPUS-MT: the id of each piece
    source.spm, target.spm                                 Marian: how texts are segmented
    tokenizer.json                                         NLLB: pieces, merges and languages
    vocab.json, sentencepiece.bpe.model                    M2M100: pieces and segmentation

Marian is the paper's model with biases in attention, and sinusoids with all sines before all
cosines. M2M100 is Marian with pre-norm, other sinusoids and without a bias of the logits.

A source of M2M100 begins with the token of its language, and a target with </s> and the token of
its language. Here a vocabulary of each side has a tokenizer that puts the language's token before
every text. Sources and targets therefore have two vocabularies, although the model has one matrix.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from jformer.data.vocabulary import LANGUAGE, Vocabulary
from jformer.errors import UserError
from jformer.extras.interop.layouts import paper_order
from jformer.extras.interop.vocabularies import ForeignVocabularies, renumbered
from jformer.extras.interop.weights import Source, Weights, read_weights, take_matrices
from jformer.extras.sentencepiece import from_sentencepiece
from jformer.files import read_object

MODEL_TYPES = {"marian": "marian", "m2m100": "m2m_100"}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
RESTORE = "copy the model's folder again"
# The languages of M2M100 in the order of their ids, which follow the pieces. No file has them.
LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
)
SPACE = "\u2581"


def read(folder: Path, layout: str, languages: tuple[str, str]) -> Source:
    """Read a folder of the layout marian or m2m100; `languages` are those of an M2M100 run."""
    config = read_config(folder, layout)
    values = model_values(config, layout) | search_values(folder, config)
    names = ("model.safetensors", "pytorch_model.bin")
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"--from={folder}: has neither {' nor '.join(names)}")
    theirs = read_weights(path)
    if layout == "m2m100":
        values |= {"data.source_language": languages[0], "data.target_language": languages[1]}
        vocabularies = m2m100_vocabularies(folder, config, languages)
    else:
        vocabularies = marian_vocabularies(folder, config)
    matrices = model_matrices(theirs, config["d_model"], vocabularies)
    scale = config["d_model"] ** 0.5 if config.get("scale_embedding") else 1.0
    return Source(folder.name, layout, theirs, values, vocabularies, matrices, scale)


def read_config(folder: Path, layout: str) -> dict[str, Any]:
    """Return the content of config.json; `UserError` if it is of another model."""
    path = folder / "config.json"
    config = read_object(path, RESTORE)
    if config.get("model_type") != MODEL_TYPES[layout]:
        raise UserError(f"{path}: model_type={config.get('model_type')}: is not {layout}")
    heads = [config[f"{stack}_attention_heads"] for stack in ("encoder", "decoder")]
    if heads[0] != heads[1]:
        raise UserError(f"{path}: encoder_attention_heads must equal decoder_attention_heads")
    if (activation := config["activation_function"]) not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UserError(f"{path}: activation_function={activation} must be one of {known}")
    return config


def model_values(config: dict[str, Any], layout: str) -> dict[str, Any]:
    """Return our config keys of a model."""
    values = {
        "model.d_model": config["d_model"],
        "model.d_ff": config["encoder_ffn_dim"],
        "model.num_layers": config["encoder_layers"],
        "model.num_decoder_layers": config["decoder_layers"],
        "model.num_heads": config["encoder_attention_heads"],
        "model.activation": ACTIVATIONS[config["activation_function"]],
        "model.attention_bias": True,
        "model.norm": "layer_norm(epsilon=1e-5)",
    }
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


def model_matrices(
    theirs: Weights, D: int, vocabularies: ForeignVocabularies
) -> dict[str, np.ndarray]:
    """Take the embeddings, the output and the bias of the logits."""
    shared, V = "model.shared.weight", vocabularies[1].size
    candidates = {
        "source_embedding": ("model.encoder.embed_tokens.weight", shared),
        "embedding": ("model.decoder.embed_tokens.weight", shared, "lm_head.weight"),
        "output": ("lm_head.weight", "model.decoder.embed_tokens.weight", shared),
    }
    names = {
        ours: next((name for name in candidates if name in theirs.tensors), shared)
        for ours, candidates in candidates.items()
    }
    taken = take_matrices(theirs, names, D, vocabularies)
    if shared in theirs.tensors:
        theirs.take(shared, V, D)  # the same matrix under one more name
    if "final_logits_bias" in theirs.tensors:
        taken["output_bias"] = theirs.take("final_logits_bias", 1, V)[0]
    theirs.ignore_sinusoids(D, paper_order(D))
    for name in theirs.tensors:
        if name.endswith("embed_positions.weights"):
            theirs.ignore(name, "M2M100's sinusoids, which are computed")
    return taken


def special_ids(config: dict[str, Any]) -> tuple[int, int, int]:
    """Return the ids that are PAD, BOS and EOS here."""
    return config["pad_token_id"], config["decoder_start_token_id"], config["eos_token_id"]


def marian_vocabularies(folder: Path, config: dict[str, Any]) -> ForeignVocabularies:
    """Return the vocabularies of source and target; the same object if they are equal."""
    ids_files = [folder / "vocab.json", folder / "target_vocab.json"]
    if not ids_files[1].is_file():
        ids_files[1] = ids_files[0]
    ids = [read_object(path, RESTORE) for path in ids_files]
    models = [folder / "source.spm", folder / "target.spm"]
    source, target = [
        renumbered(*pieces_of(*files), special_ids(config))
        for files in zip(models, ids, strict=True)
    ]
    if ids[0] == ids[1] and models[0].read_bytes() == models[1].read_bytes():
        source = target
    return source, target


def pieces_of(spm: Path, ids: dict[str, int]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a tokenizer.json that segments as a SentencePiece model does, and its ids."""
    if not spm.is_file():
        raise UserError(f"{spm}: no such file; {RESTORE}")
    try:
        document = json.loads(from_sentencepiece(spm).to_str())
    except ValueError as error:
        raise UserError(f"{spm}: must be a SentencePiece Unigram or BPE model ({error})") from error
    model = document["model"]
    # Marian models of several languages take the target language from the beginning of a source.
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    codes = [name for name in ids if name.startswith(">>") and name.endswith("<<")]
    document["added_tokens"] = [{"content": code, **flags} for code in codes]
    is_unigram = model["type"] == "Unigram"
    unknown = model["vocab"][model["unk_id"]][0] if is_unigram else model["unk_token"]
    return document, {unknown if name == "<unk>" else name: n for name, n in ids.items()}


def m2m100_vocabularies(
    folder: Path, config: dict[str, Any], languages: tuple[str, str]
) -> ForeignVocabularies:
    """Return the vocabularies of source and target, which differ in the language's token."""
    document, ids, tokens = read_tokenizer(folder)
    names = {number: name for name, number in ids.items()}
    # Rows without a token also count in the softmax.
    names |= {n: f" {n}" for n in range(config["vocab_size"]) if n not in names}
    vocabularies = []
    for language in languages:
        if language not in tokens:
            raise UserError(
                f"--from={folder}: has no language {language}; codes are as en in M2M100, and as "
                f"eng_Latn in NLLB"
            )
        renamed = {**names, ids[tokens[language]]: LANGUAGE}
        numbers = {name: number for number, name in renamed.items()}
        side = renumbered(with_language(document), numbers, special_ids(config))
        (ids_of_text,) = side.vocabulary.encode(["a"])
        is_marked = ids_of_text[0] == side.vocabulary.language_token
        if not is_marked or side.vocabulary.decode(ids_of_text) != "a":
            raise UserError(f"--from={folder}: its tokenizer is not like M2M100's or NLLB's")
        vocabularies.append(side)
    source, target = vocabularies
    return source, target


def read_tokenizer(folder: Path) -> tuple[dict[str, Any], dict[str, int], dict[str, str]]:
    """Return a tokenizer.json, the model's id of each token, and the token of each language."""
    path = folder / "tokenizer.json"
    if path.is_file():
        tokenizer = Vocabulary.load(path).tokenizer
        document = json.loads(tokenizer.to_str())
        codes = [token["content"] for token in document["added_tokens"]]
        ids = tokenizer.get_vocab(with_added_tokens=True)
        return document, ids, dict(zip(codes, codes, strict=True))
    ids = read_object(folder / "vocab.json", RESTORE)
    tokens = {code: f"__{code}__" for code in LANGUAGES.split()}
    ids |= {token: number for number, token in enumerate(tokens.values(), start=len(ids))}
    return *pieces_of(folder / "sentencepiece.bpe.model", ids), tokens


def with_language(document: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer that puts the entry LANGUAGE before texts, and decodes it to nothing.

    The pre-tokenizer Metaspace of a tokenizer.json would put a space before the entry. Its
    steps therefore become steps of the normalizer, before that of the language.
    """
    steps = [document["normalizer"]] if document["normalizer"] else []
    splits, decoder = [split(LANGUAGE, "Isolated")], document["decoder"]
    found = document["pre_tokenizer"]
    for part in found["pretokenizers"] if found["type"] == "Sequence" else [found]:
        if part["type"] == "WhitespaceSplit":
            steps += [replace(Regex=r"\s+", content=" "), replace(Regex=r"\A | \z", content="")]
        elif part["type"] == "Metaspace":
            steps.append(replace(Regex=rf"\A[ {SPACE}]", content=""))
            steps.append({"type": "Prepend", "prepend": SPACE})
            steps.append(replace(String=" ", content=SPACE))
            splits += [split(SPACE, "MergedWithNext")] if part["split"] else []
        else:
            splits.append(part)
    if decoder["type"] == "Metaspace":
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        decoder = sequence("decoders", replace(String=SPACE, content=" "), {"type": "Fuse"}, strip)
    return document | {
        "added_tokens": [],  # the code of a language in a text is plain text
        "normalizer": sequence("normalizers", *steps, {"type": "Prepend", "prepend": LANGUAGE}),
        "pre_tokenizer": sequence("pretokenizers", *splits),
        "decoder": sequence("decoders", replace(String=LANGUAGE, content=""), decoder),
    }


def sequence(key: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", key: parts}


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(pattern: str, behavior: str) -> dict[str, Any]:
    kind = {"type": "Split", "pattern": {"String": pattern}}
    return {**kind, "behavior": behavior, "invert": False}
