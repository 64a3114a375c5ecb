"""Vocabularies of other programs: their special tokens become PAD, BOS and EOS, which come first.

The other entries follow in the order of their ids.

A source of M2M100 begins with the token of its language, and a target with </s> and the token of
its language. Here the tokenizer of each side puts the token of its language before every text.
Sources and targets therefore have two vocabularies, although the model has one matrix.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from jformer.config import EOS
from jformer.data.vocabulary import FIRST, LANGUAGE, Vocabulary
from jformer.errors import UserError
from jformer.files import read_object

# How others write padding, the beginning of a target and the end of a text.
SPECIALS = {
    "padding": ("<pad>", "<blank>", "[pad]"),
    "beginning": ("<s>", "<bos>", "<sos>", "[bos]", "[cls]"),
    "end": ("</s>", "<eos>", "[eos]", "[sep]"),
}
LEAST_LIKELY = -1e6  # the score of a piece that the model knows, and its Unigram does not
SpecialIds = tuple[int, int, int]  # the other program's ids of PAD, BOS and EOS
RESTORE = "copy the model's folder again"
# The languages of M2M100 in the order of their ids, which follow the pieces. No file has them.
LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
)


@dataclasses.dataclass(frozen=True, eq=False)
class ForeignVocabulary:
    """A vocabulary with our ids, and the row of the other program's embedding of each entry."""

    vocabulary: Vocabulary
    rows: np.ndarray  # (V,) ids of theirs
    size: int  # the number of ids of theirs


ForeignVocabularies = tuple[ForeignVocabulary, ForeignVocabulary]  # source, target; may be one


def read_vocabulary(path: Path, specials: SpecialIds | None) -> ForeignVocabulary:
    """Read a tokenizer.json, a SentencePiece .model, or a .txt with the token of an id per line.

    Without `specials`, the special tokens are found by their names.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; set --vocabulary=FILE")
    tokenizer = word_list(path) if path.suffix == ".txt" else Vocabulary.load(path).tokenizer
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return renumbered(json.loads(tokenizer.to_str()), ids, specials or found_by_name(ids, path))


def word_list(path: Path) -> Tokenizer:
    """Return a tokenizer of words between spaces; the token in line n, from 0, has the id n."""
    words = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def found_by_name(ids: Mapping[str, int], path: Path) -> SpecialIds:
    """Return the other program's ids of PAD, BOS and EOS."""
    found = []
    for role, names in SPECIALS.items():
        # SentencePiece's own have a space before them, see sentencepiece.py.
        matches = [number for name, number in ids.items() if name.strip().lower() in names]
        if len(matches) != 1:
            raise UserError(
                f"{path}: has {len(matches)} entries for {role} ({', '.join(names)}); set the ids "
                f"with --specials=PAD,BOS,EOS"
            )
        found += matches
    pad, bos, eos = found
    return pad, bos, eos


def renumbered(
    document: dict[str, Any], ids: Mapping[str, int], specials: tuple[int, ...]
) -> ForeignVocabulary:
    """Return a vocabulary with the entries `ids` that segments as a tokenizer.json does.

    The rows of PAD, BOS and EOS are `specials`, whose entries are removed.
    """
    kept = [entry for entry in sorted(ids, key=ids.__getitem__) if ids[entry] not in specials]
    numbers = {entry: number for number, entry in enumerate(kept)}
    model = {**document["model"]}
    if model["type"] == "Unigram":
        scores = dict(model["vocab"])
        model["unk_id"] = numbers[unknown_entry(model)]
        model["vocab"] = [[entry, scores.get(entry, LEAST_LIKELY)] for entry in kept]
    else:
        model["vocab"] = numbers
    if model["type"] == "BPE":
        prefix = len(model["continuing_subword_prefix"] or "")
        model["merges"] = [
            (left, right)
            for left, right in model["merges"]
            if {left, right, left + right[prefix:]} <= numbers.keys()
        ]
    added = [
        {**token, "id": numbers[token["content"]]}
        for token in document["added_tokens"]
        if token["content"] in numbers
    ]
    changes = {"model": model, "added_tokens": added, "post_processor": None}
    vocabulary = Vocabulary(Tokenizer.from_str(json.dumps({**document, **changes})))
    rows = np.array([*specials, *(ids[entry] for entry in kept)])
    return ForeignVocabulary(vocabulary, rows, 1 + max(ids.values()))


def unknown_entry(model: dict[str, Any]) -> str:
    is_unigram = model["type"] == "Unigram"
    return model["vocab"][model["unk_id"]][0] if is_unigram else model["unk_token"]


def read_marian(folder: Path, specials: SpecialIds) -> ForeignVocabularies:
    """Return the vocabularies of source and target; the same object if they are equal."""
    source_ids, target_ids = folder / "vocab.json", folder / "target_vocab.json"

    def read_side(name: str, ids: Path) -> ForeignVocabulary:
        pieces = folder / f"{name}.spm"
        return renumbered(*from_pieces(pieces, read_object(ids, RESTORE)), specials)

    source = read_side("source", source_ids)
    target = read_side("target", target_ids if target_ids.is_file() else source_ids)
    is_joint = source.vocabulary.hash == target.vocabulary.hash
    return target if is_joint else source, target


def from_pieces(path: Path, ids: dict[str, int]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a tokenizer.json that segments as a SentencePiece model does, and its ids."""
    document = json.loads(Vocabulary.load(path).tokenizer.to_str())
    model = document["model"]
    # Marian models of several languages take the target language from the beginning of a source.
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    codes = [name for name in ids if name.startswith(">>") and name.endswith("<<")]
    document["added_tokens"] = [{"content": code, **flags} for code in codes]
    return document, {
        unknown_entry(model) if name == "<unk>" else name: n for name, n in ids.items()
    }


def read_m2m100(
    folder: Path, languages: tuple[str, str], size: int, specials: SpecialIds
) -> ForeignVocabularies:
    """Return the vocabularies of source and target, which differ in the language's token.

    The model has `size` rows. Rows without a token also count in the softmax.
    """
    document, ids, tokens = read_m2m100_tokenizer(folder)
    document["added_tokens"] = []  # the code of a language in a text is plain text
    names = {n: f" {n}" for n in range(size)} | {n: name for name, n in ids.items()}
    sides = []
    for language in languages:
        if language not in tokens:
            raise UserError(
                f"--from={folder}: has no language {language}; codes are as en in M2M100, and as "
                f"eng_Latn in NLLB"
            )
        renamed = {**names, ids[tokens[language]]: LANGUAGE}
        side = renumbered(document, {name: n for n, name in renamed.items()}, specials)
        tokenizer = side.vocabulary.tokenizer
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[LANGUAGE, "$A"], special_tokens=[(LANGUAGE, tokenizer.token_to_id(LANGUAGE))]
        )
        sides.append(side)
    source, target = sides
    return source, target


def read_m2m100_tokenizer(
    folder: Path,
) -> tuple[dict[str, Any], dict[str, int], dict[str, str]]:
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
    return *from_pieces(folder / "sentencepiece.bpe.model", ids), tokens


def with_end(vocabulary: Vocabulary, names: list[str]) -> Tokenizer:
    """Return a tokenizer with the model's ids of `names`, which ends each text with EOS."""
    document = json.loads(vocabulary.tokenizer.to_str())
    ids = {name: token for token, name in enumerate(names)}
    tokenizer = renumbered(document, ids, ()).vocabulary.tokenizer
    tokenizer.add_special_tokens(names[:FIRST])
    eos = names[EOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", eos], pair=["$A", eos, "$B", eos], special_tokens=[(eos, EOS)]
    )
    return tokenizer
