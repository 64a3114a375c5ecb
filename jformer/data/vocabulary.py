"""Sub-word vocabularies of `tokenizers`, joint for both languages (Section 5.1) or one per side.

Entry i of a tokenizer has the id i + 3, after PAD, BOS and EOS. The tokenizer's own special tokens
are not matched, so "<s>" in a text is plain text.

Two kinds are trained here, and both are lossless: `decode(encode(text))` is the normalised text.
`byte_bpe` works on 256 characters that represent bytes. `unigram` works on characters, and unseen
ones become UTF-8 bytes, the entries "<0x00>" to "<0xFF>". Text never matches these entries, because
digits are split off. Vocabularies loaded from other files may be lossy.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from jformer.components import find
from jformer.config import EOS, DataConfig
from jformer.errors import UserError
from jformer.files import replace_file
from jformer.rundir import SOURCE_VOCABULARY, VOCABULARY

FIRST = 3  # the id of a tokenizer's entry 0

Normalization = Literal["none", "nfc", "nfkc", "lower"]
NORMALIZERS: dict[str, normalizers.Normalizer | None] = {
    "none": None,
    "nfc": normalizers.NFC(),
    "nfkc": normalizers.NFKC(),
    "lower": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
}
BYTE_FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]  # the first entries of a unigram
# GPT-2's pattern, but digits are single, and accents and vowel signs belong to their letters.
WORDS = Regex(r"'(?:[sdmt]|ll|re|ve)| ?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+")
# The entry of a language token: a noncharacter of Unicode, which no text contains. The tokenizer's
# post-processor puts it before every text, and decoded text does not contain it.
LANGUAGE = "\ufdd0"


class Vocabulary:
    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        # "<s>" in a text is plain text; the library does not store this setting.
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if isinstance(tokenizer.model, models.BPE):
            tokenizer.model.dropout = None  # some published files set it, which makes ids random

    @classmethod
    def train(cls, texts: Iterable[str], size: int, tokenizer: str = "byte_bpe") -> Self:
        """Learn at most `size` entries, PAD, BOS and EOS included."""
        return cls(find("config.data.tokenizer", "tokenizer", tokenizer)(texts, size - FIRST))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a `tokenizer.json`, or a SentencePiece `.model` of type Unigram or BPE."""
        try:
            if path.suffix in (".model", ".spm"):
                return cls(find("config.data.vocabulary", "vocabulary_file", "sentencepiece")(path))
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:
            needed = "must be a tokenizer.json or a SentencePiece .model, Unigram or BPE"
            raise UserError(f"{path}: {needed} ({error})") from error

    def save(self, path: Path) -> None:
        replace_file(path, self.tokenizer.to_str().encode())

    @functools.cached_property
    def size(self) -> int:
        """Return the number of ids from PAD to the last, including gaps."""
        return FIRST + 1 + max(self.tokenizer.get_vocab().values(), default=-1)

    @functools.cached_property
    def language_token(self) -> int | None:
        """Return the id with which the ids of every text begin, or None."""
        entry = self.tokenizer.token_to_id(LANGUAGE)
        return None if entry is None else entry + FIRST

    @functools.cached_property
    def hash(self) -> str:
        """Return a hash; vocabularies with the same hash produce the same ids."""
        return hashlib.sha256(f"{FIRST} {self.tokenizer.to_str()}".encode()).hexdigest()

    @functools.cached_property
    def merges(self) -> np.ndarray | None:
        """Return the ids (n, 3) of left, right and result of a BPE's merges, by rank, or None."""
        model = json.loads(self.tokenizer.to_str())["model"]
        if model["type"] != "BPE":
            return None
        entries, prefix = model["vocab"], len(model["continuing_subword_prefix"] or "")
        rows = [(entries[a], entries[b], entries[a + b[prefix:]]) for a, b in model["merges"]]
        return np.array(rows, np.int32).reshape(-1, 3) + np.int32(FIRST)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without BOS and EOS."""
        has_language = self.language_token is not None
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=has_language)
        return [[entry + FIRST for entry in encoding.ids] for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text up to the first EOS, or all of it without an EOS."""
        kept = takewhile(lambda token: token != EOS, map(int, ids))
        language = self.language_token
        entries = [token - FIRST for token in kept if token >= FIRST and token != language]
        return self.tokenizer.decode(entries, skip_special_tokens=False)

    def entries(self) -> list[str | None]:
        """Return the tokenizer's entry of each id; None for PAD, BOS, EOS and gaps."""
        entries = (self.tokenizer.id_to_token(token) for token in range(self.size - FIRST))
        return [None] * FIRST + list(entries)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each token, or its number ("#2") without a text, such as EOS."""
        return [self.decode([token]) or f"#{token}" for token in ids]


class Vocabularies(NamedTuple):
    """The vocabularies of source and target; the same object if they are joint."""

    source: Vocabulary
    target: Vocabulary

    @classmethod
    def train(cls, pairs: Callable[[], Iterable[tuple[str, str]]], data: DataConfig) -> Self:
        """Learn from the pairs, read again for each side, or load the files that `data` names."""

        def make(texts: Iterable[str], path: str, kind: str) -> Vocabulary:
            size = data.vocabulary_size
            return Vocabulary.load(Path(path)) if path else Vocabulary.train(texts, size, kind)

        if data.joint_vocabulary:
            both = make(chain.from_iterable(pairs()), data.vocabulary, data.tokenizer)
            return cls(both, both)
        source_file, target_file = data.vocabulary_files
        of_target = data.target_tokenizer or data.tokenizer
        source = make((source for source, _ in pairs()), source_file, data.tokenizer)
        return cls(source, make((target for _, target in pairs()), target_file, of_target))

    @classmethod
    def load(cls, workdir: Path, joint: bool) -> Self:
        target = Vocabulary.load(workdir / VOCABULARY)
        return cls(target if joint else Vocabulary.load(workdir / SOURCE_VOCABULARY), target)

    def save(self, workdir: Path) -> None:
        self.target.save(workdir / VOCABULARY)
        if self.source is not self.target:
            self.source.save(workdir / SOURCE_VOCABULARY)

    @property
    def hash(self) -> str:
        return " ".join(each.hash for each in dict.fromkeys(self))  # a joint vocabulary counts once


def byte_bpe(
    texts: Iterable[str], size: int, *, normalization: Normalization = "none"
) -> Tokenizer:
    """Train byte-level BPE with at most `size` entries, a component."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = NORMALIZERS[normalization]
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def unigram(texts: Iterable[str], size: int, *, normalization: Normalization = "none") -> Tokenizer:
    """Train a unigram model (Kudo 2018) with at most `size` entries, a component."""
    tokenizer = Tokenizer(models.Unigram())
    normalizer = NORMALIZERS[normalization]  # the tokenizer's own is locked during training
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(WORDS, "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=BYTE_FALLBACK, show_progress=False
    )
    alphabet: set[str] = set()

    def checked() -> Iterator[str]:
        """Yield the texts; raise if their alphabet does not fit: training would not terminate."""
        for text in texts:
            alphabet.update(normalizer.normalize_str(text) if normalizer else text)
            if len(BYTE_FALLBACK) + len(alphabet) >= size:
                raise UserError(
                    f"config.data.vocabulary_size={size + FIRST}: too small for the characters of "
                    f"this text; raise it, or set config.data.tokenizer=byte_bpe"
                )
            yield text

    tokenizer.train_from_iterator(checked(), trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = []  # the bytes are ordinary entries, not special tokens
    # An unk_id is required; entry 0 is never matched in text.
    settings = {"byte_fallback": True, "unk_id": 0}
    document["model"] |= {**settings, "vocab": make_deterministic(document["model"]["vocab"])}
    return Tokenizer.from_str(json.dumps(document))


def make_deterministic(vocab: list[list]) -> list[list]:
    """Make a unigram's entries and scores reproducible for the same texts.

    Its trainer sums floats in random order, which changes the last digits of a score. Characters
    that EM does not use get scores from the lowest, in steps of 0.0001, in random order. Here they
    all get the lowest.
    """
    pieces = vocab[len(BYTE_FALLBACK) :]
    floor = min((score for _, score in pieces), default=0.0)
    unused = floor + 0.0001 * sum(len(piece) == 1 for piece, _ in pieces)
    settled = [
        [piece, round(floor if len(piece) == 1 and score < unused else score, 6)]
        for piece, score in pieces
    ]
    by_score = sorted(settled, key=lambda entry: (-entry[1], entry[0]))
    return vocab[: len(BYTE_FALLBACK)] + by_score
