"""Vocabularies of other programs: their special tokens become PAD, BOS and EOS, which come first.

The other entries follow in the order of their ids. `rows` says which row of the other program's
embedding each of ours is.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from jformer.data.vocabulary import FIRST, Vocabulary
from jformer.errors import UserError

# How others write padding, the beginning of a target and the end of a text.
SPECIALS = {
    "padding": ("<pad>", "<blank>", "[pad]"),
    "beginning": ("<s>", "<bos>", "<sos>", "[bos]", "[cls]"),
    "end": ("</s>", "<eos>", "[eos]", "[sep]"),
}
UNKNOWN = ("<unk>", "[unk]")


@dataclasses.dataclass(frozen=True, eq=False)
class Words:
    """A vocabulary of ours, and the row of the other program's embedding of each entry."""

    vocabulary: Vocabulary
    rows: np.ndarray  # (V,) ids of theirs
    size: int  # the number of ids of theirs


def read_words(path: Path, specials: str) -> Words:
    """Read a tokenizer.json, a SentencePiece .model, or a .txt with the token of an id a line.

    `specials` is PAD,BOS,EOS, the other program's ids of these; empty: found by their names.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; a vocabulary is needed there")
    is_list = path.suffix == ".txt"
    tokenizer = word_list(path) if is_list else Vocabulary.load(path).tokenizer
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return renumbered(tokenizer, special_ids(ids, specials, path), path)


def word_list(path: Path) -> Tokenizer:
    """Return a tokenizer of words between spaces; the token in line n, from 0, has the id n."""
    words = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    ids = {word: number for number, word in enumerate(words)}
    if len(ids) < len(words):
        twice = next(word for number, word in enumerate(words) if ids[word] != number)
        raise UserError(f"{path}: {twice!r} is there twice; a line must be one token")
    unknown = next((word for word in words if word.lower() in UNKNOWN), None)
    if unknown is None:
        raise UserError(f"{path}: none of its tokens is {' or '.join(UNKNOWN)}")
    tokenizer = Tokenizer(models.WordLevel(ids, unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def special_ids(ids: Mapping[str, int], specials: str, path: Path) -> tuple[int, int, int]:
    """Return the other program's ids of PAD, BOS and EOS."""
    if specials:
        try:
            pad, bos, eos = map(int, specials.split(","))
        except ValueError:
            raise UserError(
                f"--specials={specials}: must be PAD,BOS,EOS, ids as in 1,2,3"
            ) from None
        if outside := {pad, bos, eos} - {*ids.values()}:
            raise UserError(f"--specials={specials}: {path} has no entry of id {min(outside)}")
        if eos in (pad, bos):
            raise UserError(f"--specials={specials}: the end of a text needs an id of its own")
        return pad, bos, eos
    found = []
    for what, names in SPECIALS.items():
        # SentencePiece's own have a space before them, see sentencepiece.py.
        here = [number for name, number in ids.items() if name.strip().lower() in names]
        if len(here) != 1:
            known = ", ".join(names)
            raise UserError(
                f"{path}: has {len(here)} entries for {what} ({known}); name the ids by "
                f"--specials=PAD,BOS,EOS"
            )
        found += here
    pad, bos, eos = found
    return pad, bos, eos


def renumbered(tokenizer: Tokenizer, specials: Sequence[int], path: Path) -> Words:
    """Return the vocabulary without its special tokens; PAD, BOS and EOS have their rows."""
    names = {number: name for name, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    kept = [number for number in sorted(names) if number not in specials]
    document = json.loads(tokenizer.to_str())
    document |= {"truncation": None, "padding": None, "post_processor": None}
    new_ids = {old: new for new, old in enumerate(kept)}
    renumber(document, new_ids)
    vocabulary = Vocabulary(made := Tokenizer.from_str(json.dumps(document)))
    ours = made.get_vocab(with_added_tokens=True)
    if ours != {names[old]: new for old, new in new_ids.items()}:
        raise UserError(f"{path}: its added tokens cannot be renumbered; give a vocabulary without")
    rows = np.array([*specials, *kept])
    assert len(rows) == FIRST + len(kept) == vocabulary.size
    return Words(vocabulary, rows, max(names) + 1)


def renumber(document: dict[str, Any], new_ids: Mapping[int, int]) -> None:
    """Give the entries of a tokenizer.json new ids, and drop those that have none."""
    model = document["model"]
    if isinstance(model["vocab"], list):  # a Unigram, whose ids are list indices
        size = len(model["vocab"])
        model["vocab"] = [model["vocab"][old] for old in new_ids if old < size]
        if model.get("unk_id") is not None:
            model["unk_id"] = new_ids[model["unk_id"]]
    else:
        model["vocab"] = {
            name: new_ids[old] for name, old in model["vocab"].items() if old in new_ids
        }
    document["added_tokens"] = [
        {**token, "id": new_ids[token["id"]]}
        for token in document["added_tokens"]
        if token["id"] in new_ids
    ]
