"""Loading of tokenizer files, made elsewhere or possibly damaged, with checks before use.

The library `tokenizers` loads files that it cannot work with: it panics at a merge of missing
entries, takes minutes and gigabytes to write a vocabulary with one id of 2^31, and reports a
missing unknown entry only at the first text that needs it. SentencePiece models are converted to
the library's format, in which a run saves its vocabulary.
"""

import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from jformer.errors import import_extra

# Gaps allowed beyond the number of entries; each is a row of the embedding that nothing uses.
MOST_GAPS = 1000
# Characters with each first byte in UTF-8, also within a word, and a long word: one of them needs
# the unknown entry if any text does.
CHARACTERS = [
    chr(i) for i in (*range(0x800), *range(0x800, 0xD800, 0x400), *range(0xE000, 0x110000, 0x1000))
]
PROBES = [*CHARACTERS, *(f"a{character}" for character in CHARACTERS), "a" * 1000]
# "<0x41>" in a text must not become the byte fallback's entry of that name.
SPLIT_FALLBACK = pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "isolated")


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


def from_sentencepiece(path: Path) -> Tokenizer:
    """Return a tokenizer that segments as `sentencepiece` does with this model, to the same ids.

    The two may differ where two segmentations have the same score, since sentencepiece's floats
    have 32 bits, and where the model's normaliser changes a character of a user-defined symbol.
    """
    module, packages = "sentencepiece.sentencepiece_model_pb2", "sentencepiece protobuf"
    proto = import_extra(module, f"{path}: a SentencePiece model", packages).ModelProto
    model, types = proto.FromString(path.read_bytes()), proto.SentencePiece
    spec, is_bpe = model.trainer_spec, model.trainer_spec.model_type == model.trainer_spec.BPE
    of_type = {piece.type: i for i, piece in enumerate(model.pieces)}
    if types.UNKNOWN not in of_type or not (is_bpe or spec.model_type == spec.UNIGRAM):
        raise ValueError("neither Unigram nor BPE")
    if is_bpe and types.UNUSED in of_type:
        raise ValueError("a BPE with unused pieces")
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == types.NORMAL}
    symbols = [piece.piece for piece in model.pieces if piece.type == types.USER_DEFINED]
    # Text never matches an entry with a space in its name: spaces of text are escaped.
    hidden, unknown = {types.CONTROL, types.UNUSED}, of_type[types.UNKNOWN]
    names = [f" {piece.piece}" if piece.type in hidden else piece.piece for piece in model.pieces]
    names[unknown] = f" {spec.unk_surface.strip()} "  # the text that sentencepiece decodes it to
    core: Any
    if is_bpe:
        merges = [
            (piece[:cut], piece[cut:])
            for piece in sorted(scores, key=lambda piece: -scores[piece])
            for cut in range(1, len(piece))
            if piece[:cut] in scores and piece[cut:] in scores
        ]
        core = models.BPE({name: i for i, name in enumerate(names)}, merges)
        core.unk_token, core.fuse_unk, core.byte_fallback = names[unknown], True, spec.byte_fallback
        core.ignore_merges = bool(symbols)  # they stand alone, and no merge produces them
    else:
        scores |= dict.fromkeys(symbols, -0.1)  # sentencepiece's bonus for them
        entries = [(name, scores.get(name, 0.0)) for name in names]
        core = models.Unigram(entries, unknown, spec.byte_fallback)
    tokenizer = Tokenizer(core)
    tokenizer.normalizer, tokenizer.decoder = spaces(model.normalizer_spec, spec)
    cuts = [SPLIT_FALLBACK] if spec.byte_fallback else []
    if symbols and is_bpe:
        longest_first = "|".join(sorted(map(re.escape, symbols), key=len, reverse=True))
        cuts.insert(0, pre_tokenizers.Split(Regex(longest_first), "isolated"))
    if not any("▁" in piece[1:] for piece in [*scores, *symbols]):
        cuts.append(pre_tokenizers.Split("▁", "merged_with_next"))  # the library caches words
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    return tokenizer


def spaces(rules: Any, spec: Any) -> tuple[Any, Any]:
    """Return the normalizer and the decoder that treat spaces as SentencePiece does."""
    if spec.treat_whitespace_as_suffix or not rules.escape_whitespaces:
        raise ValueError("whitespace that is no escaped prefix")
    steps: list[Any] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        outer, inner = Regex(r"\A +| +\z"), Regex(" {2,}")
        steps += [normalizers.Replace(outer, ""), normalizers.Replace(inner, " ")]
    if rules.add_dummy_prefix:  # Metaspace would add none to text that begins with a space
        steps.append(normalizers.Prepend("▁"))
    steps.append(normalizers.Replace(" ", "▁"))
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if rules.add_dummy_prefix or rules.remove_extra_whitespaces:
        undo.append(decoders.Strip(" ", 1, 0))
    return normalizers.Sequence(steps), decoders.Sequence(undo)
