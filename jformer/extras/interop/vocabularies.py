"""Vocabularies of other programs: their special tokens become PAD, BOS and EOS, which come first.

The other entries follow in the order of their ids.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from jformer.data.vocabulary import Vocabulary
from jformer.errors import UserError

# How others write padding, the beginning of a target and the end of a text.
SPECIALS = {
    "padding": ("<pad>", "<blank>", "[pad]"),
    "beginning": ("<s>", "<bos>", "<sos>", "[bos]", "[cls]"),
    "end": ("</s>", "<eos>", "[eos]", "[sep]"),
}
UNKNOWN = ("<unk>", "[unk]")
LEAST_LIKELY = -1e6  # the score of a piece that the model knows, and its Unigram does not


@dataclasses.dataclass(frozen=True, eq=False)
class ForeignVocabulary:
    """A vocabulary with our ids, and the row of the other program's embedding of each entry."""

    vocabulary: Vocabulary
    rows: np.ndarray  # (V,) ids of theirs
    size: int  # the number of ids of theirs


ForeignVocabularies = tuple[ForeignVocabulary, ForeignVocabulary]  # source, target; may be one


def read_vocabulary(path: Path, specials: str) -> ForeignVocabulary:
    """Read a tokenizer.json, a SentencePiece .model, or a .txt with the token of an id per line.

    `specials` is PAD,BOS,EOS, the other program's ids of these; empty: found by their names.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; a vocabulary is required")
    tokenizer = word_list(path) if path.suffix == ".txt" else Vocabulary.load(path).tokenizer
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return renumbered(json.loads(tokenizer.to_str()), ids, special_ids(ids, specials, path))


def word_list(path: Path) -> Tokenizer:
    """Return a tokenizer of words between spaces; the token in line n, from 0, has the id n."""
    words = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    ids = {word: number for number, word in enumerate(words)}
    if len(ids) < len(words):
        repeated = next(word for number, word in enumerate(words) if ids[word] != number)
        raise UserError(f"{path}: repeats {repeated!r}; each line must be another token")
    unknown = next((word for word in words if word.lower() in UNKNOWN), None)
    if unknown is None:
        raise UserError(f"{path}: must contain {' or '.join(UNKNOWN)}")
    tokenizer = Tokenizer(models.WordLevel(ids, unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def special_ids(ids: Mapping[str, int], specials: str, path: Path) -> tuple[int, int, int]:
    """Return the other program's ids of PAD, BOS and EOS."""
    if specials:
        try:
            pad, bos, eos = map(int, specials.split(","))
        except ValueError:
            reason = "must be the ids PAD,BOS,EOS, such as 1,2,3"
            raise UserError(f"--specials={specials}: {reason}") from None
        if unknown := {pad, bos, eos} - {*ids.values()}:
            raise UserError(f"--specials={specials}: {path} has no entry of id {min(unknown)}")
        return pad, bos, eos
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
        scores, unknown = dict(model["vocab"]), model["unk_id"]
        if unknown is not None:
            model["unk_id"] = numbers[model["vocab"][unknown][0]]
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
