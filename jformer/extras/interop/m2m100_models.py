"""M2M100 and NLLB models in the format of Hugging Face (M2M100ForConditionalGeneration).

    config.json, model.safetensors or pytorch_model.bin    the model
    tokenizer.json                                         NLLB: pieces, merges and languages
    vocab.json, sentencepiece.bpe.model                    M2M100: pieces and how texts are cut

The model is Marian with pre-norm, other sinusoids and without a bias of the logits. A source
begins with the token of its language, and a target with </s> and the token of its own. Here a
vocabulary of each side has a tokenizer that puts the language's token before every text. Sources
and targets therefore have two vocabularies, although the model has one matrix.
"""

import json
from pathlib import Path
from typing import Any

from jformer.data.vocabulary import LANGUAGE, Vocabulary
from jformer.errors import UserError
from jformer.extras.interop.marian_models import RESTORE, SPECIALS, pieces_of, words_of_pieces
from jformer.extras.interop.words import Words
from jformer.files import read_object

# The languages of M2M100 in the order of their ids, which follow the pieces. No file has them.
LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
)
SPACE = "\u2581"


def m2m100_values(folder: Path, languages: tuple[str, str]) -> dict[str, Any]:
    """Return the config keys that differ from those of a Marian model."""
    path = folder / "config.json"
    theirs = read_object(path, RESTORE)
    if theirs.get("model_type") != "m2m_100":
        raise UserError(f"{path}: model_type={theirs.get('model_type')} must be m2m_100")
    source, target = languages
    return {
        "model.norm_position": "pre",
        # Positions count from the row after that of padding, as in fairseq.
        "model.positions": f"halves(first={theirs['pad_token_id'] + 1})",
        "data.source_language": source,
        "data.target_language": target,
    }


def m2m100_words(folder: Path, languages: tuple[str, str]) -> tuple[Words, Words]:
    """Return the vocabularies of source and target, which differ in the language's token."""
    config = read_object(folder / "config.json", RESTORE)
    pad, bos, eos = (config[name] for name in SPECIALS)
    document, ids, tokens = read_tokenizer(folder)
    names = {number: name for name, number in ids.items()}
    # Rows without a token count in the softmax, too.
    names |= {n: f" {n}" for n in range(config["vocab_size"]) if n not in names}
    words = []
    for language in languages:
        if language not in tokens:
            raise UserError(
                f"--from={folder}: has no language {language}; the codes are as en in M2M100, and "
                f"as eng_Latn in NLLB"
            )
        renamed = {**names, ids[tokens[language]]: LANGUAGE}
        numbers = {name: number for number, name in renamed.items()}
        words.append(words_of_pieces(with_language(document), numbers, (pad, bos, eos)))
        vocabulary = words[-1].vocabulary
        (ids_of_text,) = vocabulary.encode(["a"])
        if ids_of_text[0] != vocabulary.language_token or vocabulary.decode(ids_of_text) != "a":
            raise UserError(f"--from={folder}: has another tokenizer than M2M100 and NLLB")
    source, target = words
    return source, target


def read_tokenizer(folder: Path) -> tuple[dict[str, Any], dict[str, int], dict[str, str]]:
    """Return a tokenizer's document, the model's id of each token, and the token of a language."""
    path = folder / "tokenizer.json"
    if path.is_file():
        tokenizer = Vocabulary.load(path).tokenizer
        document = json.loads(tokenizer.to_str()) | {"truncation": None, "post_processor": None}
        codes = [token["content"] for token in document["added_tokens"]]
        ids = tokenizer.get_vocab(with_added_tokens=True)
        return document, ids, dict(zip(codes, codes, strict=True))
    path, vocabulary = folder / "sentencepiece.bpe.model", folder / "vocab.json"
    for each in (path, vocabulary):
        if not each.is_file():
            raise UserError(
                f"--from={folder}: has neither tokenizer.json nor both of {path.name} and "
                f"{vocabulary.name}; {RESTORE}"
            )
    ids = read_object(vocabulary, RESTORE)
    tokens = {code: f"__{code}__" for code in LANGUAGES.split()}
    ids |= {token: number for number, token in enumerate(tokens.values(), start=len(ids))}
    return pieces_of(path, ids), ids, tokens


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
        "normalizer": sequence("normalizers", *steps, {"type": "Prepend", "prepend": LANGUAGE}),
        "pre_tokenizer": sequence("pretokenizers", *splits),
        "decoder": sequence("decoders", replace(String=LANGUAGE, content=""), decoder),
    }


def sequence(key: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", key: parts}


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(pattern: str, behavior: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"String": pattern},
        "behavior": behavior,
        "invert": False,
    }
