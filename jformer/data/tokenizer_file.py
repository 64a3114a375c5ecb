"""Loading of tokenizer files, made elsewhere or possibly damaged, with checks before use.

The library `tokenizers` loads files that it cannot work with: it panics at a merge of missing
entries, takes minutes and gigabytes to write a vocabulary with one id of 2^31, and reports a
missing unknown entry only at the first text that needs it.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from jformer.data.sentencepiece import from_sentencepiece

# Gaps allowed beyond the number of entries; each is a row of the embedding that nothing uses.
MOST_GAPS = 1000
# Characters with each first byte in UTF-8, also within a word, and a long word: one of them needs
# the unknown entry if any text does.
CHARACTERS = [
    chr(i) for i in (*range(0x800), *range(0x800, 0xD800, 0x400), *range(0xE000, 0x110000, 0x1000))
]
PROBES = [*CHARACTERS, *(f"a{character}" for character in CHARACTERS), "a" * 1000]


def bring_tokenizer(path: Path) -> Tokenizer:
    """Load a `tokenizer.json` or SentencePiece `.model`; raise if it cannot encode every text."""
    tokenizer = from_sentencepiece(path) if path.suffix == ".model" else read_tokenizer(path)
    # Otherwise the library would raise the same exception later, at the first such text.
    tokenizer.encode_batch_fast(PROBES, add_special_tokens=False)
    return tokenizer


def read_tokenizer(path: Path) -> Tokenizer:
    """Load a `tokenizer.json`; raise an exception that says what is wrong with it."""
    text = path.read_text(encoding="utf-8")
    try:
        check_model(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return Tokenizer.from_str(text)


def check_model(document: Any) -> None:
    """Raise `ValueError` for ids and merges that the library does not check before it uses them."""
    model = document.get("model") if isinstance(document, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if model is None or not isinstance(vocab, dict):
        return  # a Unigram, whose ids are list indices, or a file that the library rejects
    if not vocab:
        raise ValueError("its vocabulary is empty")
    ids = [i for i in vocab.values() if isinstance(i, int)]
    if len({*ids}) < len(vocab):
        raise ValueError("two entries have the same id, or one has none")
    if max(ids) >= 2 * len(vocab) + MOST_GAPS:
        raise ValueError(f"it has an id of {max(ids)}, and only {len(vocab):,} entries")
    prefix = len(model.get("continuing_subword_prefix") or "")
    for merge in model.get("merges") or []:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        for entry in (left, right, left + right[prefix:]):
            if entry not in vocab:
                raise ValueError(f"its merge of {left!r} and {right!r} needs {entry!r}, no entry")
