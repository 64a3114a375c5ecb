"""SentencePiece models as vocabularies: conversion to the format of `tokenizers`.

A run saves its vocabulary in that format, so only its first start requires the packages
`sentencepiece` and `protobuf`.
"""

import re
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from jformer.errors import import_extra

# "<0x41>" in a text must not become the byte fallback's entry of that name.
SPLIT_FALLBACK = pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "isolated")


def from_sentencepiece(path: Path) -> Tokenizer:
    """Return a tokenizer that segments as `sentencepiece` does with this model, to the same ids.

    The two may differ if two segmentations have the same score, because sentencepiece's floats have
    32 bits, and if the model's normaliser changes a character of a user-defined symbol. Raises
    `ValueError` unless the model's type is Unigram or BPE.
    """
    module, packages = "sentencepiece.sentencepiece_model_pb2", "sentencepiece protobuf"
    proto = import_extra(module, f"{path}: a SentencePiece model", packages).ModelProto
    model, types = proto.FromString(path.read_bytes()), proto.SentencePiece
    spec, is_bpe = model.trainer_spec, model.trainer_spec.model_type == model.trainer_spec.BPE
    id_of_type = {piece.type: i for i, piece in enumerate(model.pieces)}
    if not (is_bpe or spec.model_type == spec.UNIGRAM):
        raise ValueError("neither Unigram nor BPE")
    if is_bpe and types.UNUSED in id_of_type:
        raise ValueError("a BPE with unused pieces")
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == types.NORMAL}
    symbols = [piece.piece for piece in model.pieces if piece.type == types.USER_DEFINED]
    # Text never matches an entry with a space in its name: spaces of text are escaped.
    hidden, unknown = {types.CONTROL, types.UNUSED}, id_of_type[types.UNKNOWN]
    names = [f" {piece.piece}" if piece.type in hidden else piece.piece for piece in model.pieces]
    names[unknown] = f" {spec.unk_surface.strip()} "  # sentencepiece decodes it to this text
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
        core.ignore_merges = bool(symbols)  # each is a separate word, which no merge produces
    else:
        scores |= dict.fromkeys(symbols, -0.1)  # sentencepiece's bonus for them
        entries = [(name, scores.get(name, 0.0)) for name in names]
        core = models.Unigram(entries, unknown, spec.byte_fallback)
    tokenizer = Tokenizer(core)
    tokenizer.normalizer, tokenizer.decoder = spaces(model.normalizer_spec, spec)
    splits = [SPLIT_FALLBACK] if spec.byte_fallback else []
    if symbols and is_bpe:
        longest_first = "|".join(sorted(map(re.escape, symbols), key=len, reverse=True))
        splits.insert(0, pre_tokenizers.Split(Regex(longest_first), "isolated"))
    if not any("▁" in piece[1:] for piece in [*scores, *symbols]):
        splits.append(pre_tokenizers.Split("▁", "merged_with_next"))  # the library caches words
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    return tokenizer


def spaces(rules: Any, spec: Any) -> tuple[Any, Any]:
    """Return the normalizer and the decoder that treat spaces as SentencePiece does."""
    if spec.treat_whitespace_as_suffix or not rules.escape_whitespaces:
        raise ValueError("whitespace that is not an escaped prefix")
    steps: list[Any] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        outer, inner = Regex(r"\A +| +\z"), Regex(" {2,}")
        steps += [normalizers.Replace(outer, ""), normalizers.Replace(inner, " ")]
    if rules.add_dummy_prefix:  # Metaspace would not add one to text that begins with a space
        steps.append(normalizers.Prepend("▁"))
    steps.append(normalizers.Replace(" ", "▁"))
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if rules.add_dummy_prefix or rules.remove_extra_whitespaces:
        undo.append(decoders.Strip(" ", 1, 0))
    return normalizers.Sequence(steps), decoders.Sequence(undo)
