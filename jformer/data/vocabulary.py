"""Sub-word vocabularies by `tokenizers`, joint for both languages (Section 5.1) or one each.

Entry i of a tokenizer has the id i + 3, after PAD, BOS and EOS. The tokenizer's own special tokens
are not matched, so "<s>" in a text is plain text.

The kinds of tokenizers that are trained here are those of subwords.py.
"""

import functools
import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count, islice, pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, models

from jformer.components import find
from jformer.config import BOS, EOS, PAD, DataConfig
from jformer.data.ragged import Ragged
from jformer.data.subwords import CUTS, NORMALIZERS, SPECIAL, UNKNOWN, classes
from jformer.data.tokenizer_file import bring_tokenizer, read_tokenizer
from jformer.errors import UserError
from jformer.files import replace_file
from jformer.rundir import SOURCE_VOCABULARY, VOCABULARY

FIRST = SPECIAL  # the id of a tokenizer's entry 0
assert sorted([PAD, BOS, EOS]) == list(range(FIRST))
PART = 50_000  # texts encoded together; the library takes kilobytes for each meanwhile
WORDS_KEPT = 200_000  # maximum number of words whose ids are cached, in about 70 MB

# All of these split before a space, so the words of a text can be encoded separately.
BY_WORDS = [(str(cut), str(how)) for cut in CUTS.values() for how in NORMALIZERS.values()]


class Vocabulary:
    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        # "<s>" in a text is plain text; the library does not store this setting.
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if isinstance(tokenizer.model, models.BPE):
            tokenizer.model.dropout = None  # some published files set it, which makes ids random
        cuts = str(tokenizer.pre_tokenizer), str(tokenizer.normalizer)
        self._by_words = cuts in BY_WORDS and not tokenizer.get_added_tokens_decoder()
        entries = tokenizer.get_vocab() if isinstance(tokenizer.model, models.WordLevel) else {}
        self._has_classes = any(entry.startswith(UNKNOWN) and entry != UNKNOWN for entry in entries)
        self._remembering = threading.Lock()  # threads that encode at the same time share the words
        self._forget()

    def _forget(self) -> None:
        """Empty the cache of words or whole texts: their ids, and which ids begin a word."""
        self._numbers: dict[str, int] = defaultdict(count().__next__)  # in order of first look-up
        self._words = Ragged.from_rows([], np.array([], bool))

    @classmethod
    def train(cls, texts: Iterable[str], size: int, tokenizer: str = "byte_bpe") -> "Vocabulary":
        """Learn at most `size` entries, PAD, BOS and EOS included; a small corpus yields fewer."""
        return cls(find("config.data.tokenizer", "tokenizer", tokenizer)(texts, size - FIRST))

    @classmethod
    def bring(cls, path: Path) -> "Vocabulary":
        """Load an existing `tokenizer.json`, or a SentencePiece model of type Unigram or BPE."""
        needed = "a tokenizer.json or a SentencePiece .model, Unigram or BPE, is needed"
        if not path.is_file():
            raise UserError(f"{path}: no such file; {needed}")
        try:
            return cls(bring_tokenizer(path))
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{path}: {needed}, not this ({error})") from error

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        if not path.is_file():
            raise UserError(f"{path}: no such file; a run keeps its vocabulary there")
        try:
            return cls(read_tokenizer(path))
        except Exception as error:
            raise UserError(f"{path}: is no vocabulary ({error}); restore the file") from error

    def save(self, path: Path) -> None:
        replace_file(path, self._tokenizer.to_str().encode())

    @functools.cached_property
    def size(self) -> int:
        """Return the number of ids from PAD to the last; one loaded by `bring` may have gaps."""
        return FIRST + 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    @functools.cached_property
    def hash(self) -> str:
        """Return a hash; vocabularies with the same hash give the same ids."""
        return hashlib.sha256(f"{FIRST} {self._tokenizer.to_str()}".encode()).hexdigest()

    @functools.cached_property
    def merges(self) -> np.ndarray | None:
        """Return the ids (n, 3) of left, right and result of a BPE's merges, by rank, or None."""
        model = json.loads(self._tokenizer.to_str())["model"]
        if model["type"] != "BPE":
            return None
        entries, prefix = model["vocab"], len(model["continuing_subword_prefix"] or "")
        rows = [(entries[a], entries[b], entries[a + b[prefix:]]) for a, b in model["merges"]]
        return np.array(rows, np.int32).reshape(-1, 3) + np.int32(FIRST)

    @functools.cached_property
    def within_words(self) -> str | None:
        """Return what marks an entry that continues a word, often ""; None if entries are words."""
        if isinstance(self._tokenizer.model, models.WordLevel):
            return None
        return getattr(self._tokenizer.model, "continuing_subword_prefix", None) or ""

    def normalized(self, text: str) -> str:
        """Return the words of a text as the tokenizer normalizes them, with single spaces."""
        normalizer = self._tokenizer.normalizer
        text = normalizer.normalize_str(text) if normalizer else text
        return " ".join(text.replace("\u2581", " ").split())  # SentencePiece's space

    @functools.cached_property
    def class_ids(self) -> np.ndarray | None:
        """Return the id of each word's class, or that of "<unk>", other ids as they are (V,).

        None if the entries are no words.
        """
        entries = self._tokenizer.get_vocab()
        if not isinstance(self._tokenizer.model, models.WordLevel) or UNKNOWN not in entries:
            return None
        ids = np.arange(self.size, dtype=np.int32)
        for entry, number in entries.items():
            if not entry.startswith(UNKNOWN):
                ids[FIRST + number] = FIRST + entries[self._class(entry)]
        return ids

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without BOS and EOS."""
        return self.encode_flat(texts).rows()

    def encode_flat(self, texts: Sequence[str]) -> Ragged:
        """Return the ids of `encode` in one array, with the starts of pre-tokenizer words."""
        if isinstance(texts, str):
            raise TypeError("encode takes a list of texts, got one string")
        starts = range(0, max(len(texts), 1), PART)
        parts = (self._encode_part(texts[start : start + PART]) for start in starts)
        return functools.reduce(Ragged.followed_by, parts)

    def _encode_part(self, texts: Sequence[str]) -> Ragged:
        units = [self._units(text) for text in texts]
        with self._remembering:
            found = self._encode_words(chain.from_iterable(units))
        text_ends = np.cumsum([0, *map(len, units)])
        return Ragged(found.flat + np.int32(FIRST), found.offsets[text_ends], found.word_starts)

    def _encode_words(self, words: Iterable[str]) -> Ragged:
        """Return the tokenizer's own ids of each word, and remember them."""
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64)
        missing = list(islice(self._numbers, len(self._words), None))
        texts = [unit[1:] if unit[0] == "\n" else f" {unit}" for unit in missing]
        if self._has_classes:
            texts = [" ".join(map(self._entry, text.split())) for text in texts]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        starts = [a != b for part in encodings for a, b in pairwise([None, *part.word_ids])]
        new = Ragged.from_rows([part.ids for part in encodings], np.array(starts, bool))
        self._words = self._words.followed_by(new)
        found = self._words.take(numbers)
        if len(self._numbers) > WORDS_KEPT or not self._by_words:
            self._forget()
        return found

    def _entry(self, word: str) -> str:
        """Return a word if it has an entry, else its class."""
        normalizer = self._tokenizer.normalizer
        word = normalizer.normalize_str(word) if normalizer else word
        return word if self._tokenizer.token_to_id(word) is not None else self._class(word)

    def _class(self, word: str) -> str:
        """Return the closest class of a word that has an entry."""
        known = (one for one in classes(word) if self._tokenizer.token_to_id(one) is not None)
        return next(known, UNKNOWN)

    def _units(self, text: str) -> list[str]:
        """Return the words, or the whole text, to encode once; the first begins with "\\n"."""
        # 29,000 sentences have 345,000 words, 16,000 of them distinct.
        words = (self._by_words and text.split()) or [text]
        if " ".join(words) != text:
            words = [text]
        words[0] = "\n" + words[0]
        return words

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text up to the first EOS, or all of it if there is none."""
        kept = takewhile(lambda token: token != EOS, map(int, ids))
        entries = [token - FIRST for token in kept if token >= FIRST]
        return self._tokenizer.decode(entries, skip_special_tokens=False)

    def entries(self) -> list[str | None]:
        """Return the tokenizer's entry of each id; None for PAD, BOS, EOS and gaps."""
        entries = (self._tokenizer.id_to_token(token) for token in range(self.size - FIRST))
        return [None] * FIRST + list(entries)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each token, or its number as in "#2" if it has none, such as EOS."""
        return [self.decode([token]) or f"#{token}" for token in ids]


class Vocabularies(NamedTuple):
    """The vocabularies of source and target; the same object if they are joint."""

    source: Vocabulary
    target: Vocabulary

    @classmethod
    def train(
        cls, pairs: Callable[[], Iterable[tuple[str, str]]], data: DataConfig
    ) -> "Vocabularies":
        """Learn from the pairs, read again for each side, or load the files that `data` names."""

        def make(texts: Iterable[str], path: str, tokenizer: str) -> Vocabulary:
            if path:
                return Vocabulary.bring(Path(path))
            return Vocabulary.train(texts, data.vocabulary_size, tokenizer)

        if data.joint_vocabulary:
            both = make(chain.from_iterable(pairs()), data.vocabulary, data.tokenizer)
            return cls(both, both)
        source, target = data.vocabulary_files
        return cls(
            make((source for source, _ in pairs()), source, data.tokenizer),
            make(
                (target for _, target in pairs()), target, data.target_tokenizer or data.tokenizer
            ),
        )

    @classmethod
    def load(cls, workdir: Path, joint: bool) -> "Vocabularies":
        target = Vocabulary.load(workdir / VOCABULARY)
        return cls(target if joint else Vocabulary.load(workdir / SOURCE_VOCABULARY), target)

    def save(self, workdir: Path) -> None:
        self.target.save(workdir / VOCABULARY)
        if self.source is not self.target:
            self.source.save(workdir / SOURCE_VOCABULARY)

    @property
    def hash(self) -> str:
        return " ".join(each.hash for each in dict.fromkeys(self))  # one entry if they are joint
