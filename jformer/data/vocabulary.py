"""Sub-words by `tokenizers`, joint for both languages (Section 5.1) or one vocabulary each.

Entry i of a tokenizer has our id i + 3, after PAD, BOS and EOS. Special tokens of the tokenizer's
own are never looked for, so "<s>" in a text is only text.

The kinds trained here lose nothing: `decode(encode(text))` is the normalised text, whatever its
characters. `byte_bpe` and `wordpiece` run over the 256 characters that stand for bytes; WordPiece
knows no other way for a character that training never saw. `bpe` and `unigram` run over
characters, and one that training never saw becomes its UTF-8 bytes, the entries "<0x00>" to
"<0xFF>". Text is not taken for these: digits stand alone, so "<0" is never in one entry. Numbers
of any length are then copied digit by digit, too. What is brought along has ways of its own.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, islice, pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from jformer.config import BOS, EOS, PAD, DataConfig
from jformer.data.ragged import Ragged
from jformer.data.tokenizer_file import bring_tokenizer, read_tokenizer
from jformer.errors import UserError
from jformer.files import replace_file
from jformer.rundir import SOURCE_VOCABULARY, VOCABULARY

FIRST = 3  # our id of a tokenizer's entry 0
assert sorted([PAD, BOS, EOS]) == list(range(FIRST))
PART = 50_000  # texts encoded together; meanwhile the library takes kilobytes for each
WORDS_KEPT = 200_000  # whose entries are remembered, in about 70 MB

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]
MARK = "…"  # before a WordPiece entry within a word: unlike "##", this stands for no bytes
# What any text needs, before all that is learned.
BASES = {"byte_bpe": BYTES, "wordpiece": BYTES + [MARK + byte for byte in BYTES]}
BASES |= {"bpe": FALLBACK, "unigram": FALLBACK}

NORMALIZERS: dict[str, normalizers.Normalizer | None] = {
    "none": None,
    "nfc": normalizers.NFC(),
    "nfkc": normalizers.NFKC(),
    "lower": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
}
TO_BYTES: list[Any] = [
    pre_tokenizers.Digits(individual_digits=True),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
]
# WordPiece takes the square of a word's length in time, and knows no word beyond 100 characters.
CHOP = pre_tokenizers.Split(Regex(".{1,100}"), "isolated")
# GPT-2's words, but for digits alone, and accents and vowel signs at their letters.
WORDS = Regex(r"'(?:[sdmt]|ll|re|ve)| ?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+")
CUTS = {
    "byte_bpe": pre_tokenizers.Sequence(TO_BYTES),
    "wordpiece": pre_tokenizers.Sequence([*TO_BYTES, CHOP]),
    "bpe": pre_tokenizers.Split(WORDS, "isolated"),
    "unigram": pre_tokenizers.Split(WORDS, "isolated"),
}
# They all cut before a space, whatever else there is: the words of a text can be encoded alone.
BY_WORDS = [(str(cut), str(how)) for cut in CUTS.values() for how in NORMALIZERS.values()]
NO_IDS = Ragged.from_rows([])


class Numbers(dict[str, int]):
    """Numbers words in the order in which they are asked for."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


class Vocabulary:
    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        # Text that happens to hold "<s>" is text; the library does not store this setting.
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if isinstance(tokenizer.model, models.BPE):
            tokenizer.model.dropout = None  # published with it, some never give the same ids twice
        cuts = str(tokenizer.pre_tokenizer), str(tokenizer.normalizer)
        self._by_words = cuts in BY_WORDS and not tokenizer.get_added_tokens_decoder()
        # The words met so far, or the whole texts; their ids, and which of these begin a word.
        self._numbers, self._ids, self._starts = Numbers(), NO_IDS, NO_IDS

    def __reduce__(self) -> tuple:
        return Vocabulary, (self._tokenizer,)  # the settings above are not pickled

    @classmethod
    def train(
        cls, texts: Iterable[str], size: int, kind: str = "byte_bpe", normalization: str = "none"
    ) -> "Vocabulary":
        """Learn at most `size` entries, the first three among them; a small corpus has fewer."""
        needed = set(BASES[kind])
        first = FIRST + (kind == "unigram")  # its trainer learns one entry at least
        tokenizer, trainer = untrained(kind, max(size, first + len(needed)) - FIRST)
        tokenizer.normalizer = normalizer = NORMALIZERS[normalization]

        def fitting() -> Iterator[str]:
            for text in texts:
                if BASES[kind] is FALLBACK:
                    needed.update(normalizer.normalize_str(text) if normalizer else text)
                if first + len(needed) <= size:  # else Unigram's trainer would not come to an end
                    yield text

        tokenizer.train_from_iterator(fitting(), trainer)
        if size < first + len(needed):
            raise UserError(
                f"config.data.vocabulary_size={size}: must be >= {first + len(needed)}, for the "
                f"alphabet of data.tokenizer={kind} on this text"
            )
        document = json.loads(tokenizer.to_str())
        document["added_tokens"] = []  # what the trainer called special are entries like any other
        if kind == "unigram":
            # It must have an unk_id, of an entry that no text has.
            vocab = settle(document["model"]["vocab"])
            document["model"] |= {"byte_fallback": True, "unk_id": 0, "vocab": vocab}
        return cls(Tokenizer.from_str(json.dumps(document)))

    @classmethod
    def bring(cls, path: Path) -> "Vocabulary":
        """Somebody else's `tokenizer.json`, or a SentencePiece model of type Unigram or BPE."""
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
        """Ids, from PAD to the last; a tokenizer brought along may have gaps."""
        return FIRST + 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    @functools.cached_property
    def hash(self) -> str:
        """Says whether two vocabularies give the same ids."""
        return hashlib.sha256(f"{FIRST} {self._tokenizer.to_str()}".encode()).hexdigest()

    @functools.cached_property
    def merges(self) -> np.ndarray | None:
        """Ids of left, right and result of each merge of a BPE, by rank; None if it is no BPE."""
        model = json.loads(self._tokenizer.to_str())["model"]
        if model["type"] != "BPE":
            return None
        entries, prefix = model["vocab"], len(model["continuing_subword_prefix"] or "")
        rows = [(entries[a], entries[b], entries[a + b[prefix:]]) for a, b in model["merges"]]
        return np.array(rows, np.int32).reshape(-1, 3) + np.int32(FIRST)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without BOS and EOS."""
        ids, lengths, _ = (array.tolist() for array in self.encode_flat(texts))
        return [ids[end - n : end] for end, n in zip(accumulate(lengths), lengths, strict=True)]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All ids one after another, how many each text has, and which begin a word of the
        pre-tokenizer; without BOS and EOS."""
        if isinstance(texts, str):
            raise TypeError("encode takes a list of texts, got one string")
        starts = range(0, max(len(texts), 1), PART)
        parts = [self._encode_part(texts[start : start + PART]) for start in starts]
        ids, lengths, word_starts = map(np.concatenate, zip(*parts, strict=True))
        return ids, lengths, word_starts

    def _encode_part(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        units = [self._units(text) for text in texts]
        numbers = np.fromiter(map(self._numbers.__getitem__, chain.from_iterable(units)), np.int64)
        missing = list(islice(self._numbers, len(self._ids), None))
        encodings = self._tokenizer.encode_batch(
            [unit[1:] if unit[0] == "\n" else f" {unit}" for unit in missing],
            add_special_tokens=False,
        )
        self._ids = self._ids.followed_by(Ragged.from_rows([part.ids for part in encodings]))
        starts = [[a != b for a, b in pairwise([None, *part.word_ids])] for part in encodings]
        self._starts = self._starts.followed_by(Ragged.from_rows(starts))
        ids, lengths = self._ids.tokens(numbers)
        word_starts, _ = self._starts.tokens(numbers)
        unit_ends, text_ends = (np.cumsum([0, *parts]) for parts in (lengths, map(len, units)))
        if len(self._numbers) > WORDS_KEPT or not self._by_words:
            self._numbers, self._ids, self._starts = Numbers(), NO_IDS, NO_IDS
        lengths = np.diff(unit_ends[text_ends]).astype(np.int32)
        return ids + np.int32(FIRST), lengths, word_starts.astype(bool)

    def _units(self, text: str) -> list[str]:
        """What is encoded alone, and once: words, or the whole text; "\\n" stands before the first.

        29,000 sentences have 345,000 words, and 16,000 of them are different.
        """
        words = (self._by_words and text.split()) or [text]
        if " ".join(words) != text:
            words = [text]
        words[0] = "\n" + words[0]
        return words

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first EOS, or all of it where there is none."""
        kept = takewhile(lambda token: token != EOS, map(int, ids))
        entries = [token - FIRST for token in kept if token >= FIRST]
        return self._tokenizer.decode(entries, skip_special_tokens=False)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The text of each token; of one that has none, such as EOS, its number, as in "#2"."""
        return [self.decode([token]) or f"#{token}" for token in ids]


def untrained(kind: str, size: int) -> tuple[Tokenizer, Any]:
    """An empty tokenizer, and the trainer that gives it at most `size` entries."""
    model: Any = models.BPE(byte_fallback=kind == "bpe")
    decoder: Any = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    train: Any = trainers.BpeTrainer
    if kind == "byte_bpe":
        decoder = decoders.ByteLevel()
    elif kind == "wordpiece":
        model = models.WordPiece(continuing_subword_prefix=MARK)
        train = partial(trainers.WordPieceTrainer, continuing_subword_prefix=MARK)
        decoder = decoders.Sequence([decoders.Replace(MARK, ""), decoders.ByteLevel()])
    elif kind == "unigram":
        model, train = models.Unigram(), trainers.UnigramTrainer
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = CUTS[kind], decoder
    return tokenizer, train(vocab_size=size, special_tokens=BASES[kind], show_progress=False)


def settle(vocab: list[list]) -> list[list]:
    """The same entries and scores from every training of a Unigram on the same texts.

    Its trainer sums floats in the order of a hash table, so the last digits of a score are chance.
    By that order, too, the characters for which EM found no use get the scores floor,
    floor + 0.0001, floor + 0.0002 and so on, with the least score of all as the floor.
    """
    pieces = vocab[len(FALLBACK) :]
    floor = min((score for _, score in pieces), default=0.0)
    unused = floor + 0.0001 * sum(len(piece) == 1 for piece, _ in pieces)
    settled = [
        [piece, round(floor if len(piece) == 1 and score < unused else score, 6)]
        for piece, score in pieces
    ]
    return vocab[: len(FALLBACK)] + sorted(settled, key=lambda entry: (-entry[1], entry[0]))


@dataclasses.dataclass(frozen=True)
class Vocabularies:
    """The source's and the target's: one and the same where they are joint."""

    source: Vocabulary
    target: Vocabulary

    @classmethod
    def train(
        cls, pairs: Callable[[], Iterable[tuple[str, str]]], data: DataConfig
    ) -> "Vocabularies":
        """Learn from the pairs, read anew for each side, or bring along the files `data` names."""

        def make(texts: Iterable[str], path: str) -> Vocabulary:
            if path:
                return Vocabulary.bring(Path(path))
            size, kind, normalization = data.vocabulary_size, data.tokenizer, data.normalization
            return Vocabulary.train(texts, size, kind, normalization)

        if data.joint_vocabulary:
            both = make(chain.from_iterable(pairs()), data.vocabulary)
            return cls(both, both)
        return cls(
            make((source for source, _ in pairs()), data.source_vocabulary),
            make((target for _, target in pairs()), data.vocabulary),
        )

    @classmethod
    def load(cls, workdir: Path, joint: bool) -> "Vocabularies":
        target = Vocabulary.load(workdir / VOCABULARY)
        return cls(target if joint else Vocabulary.load(workdir / SOURCE_VOCABULARY), target)

    def save(self, workdir: Path) -> None:
        self.target.save(workdir / VOCABULARY)
        if self.source is not self.target:
            self.source.save(workdir / SOURCE_VOCABULARY)

    @functools.cached_property  # each checkpoint asks for it
    def hash(self) -> str:
        both = dict.fromkeys((self.source, self.target))  # one, where they are joint
        return " ".join(vocabulary.hash for vocabulary in both)
