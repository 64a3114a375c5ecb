"""Byte-level BPE, joint for both languages (Section 5.1) or one each, by `tokenizers`.

Every Unicode text is a sequence of bytes and every byte is in the vocabulary, so
`decode(encode(text)) == text` always holds and there is no unknown token. Digits stand alone:
numbers of any length are then copied digit by digit.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from jformer.config import BOS, EOS, PAD, UserError, replace_file
from jformer.data.corpora import Split

SOURCE_FILE = "source_vocabulary.json"
SPECIAL_TOKENS = ["<pad>", "<s>", "</s>"]
assert [PAD, BOS, EOS] == [0, 1, 2], "the trainer gives special tokens the first ids, in order"


class Vocabulary:
    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        # Text that happens to hold "<s>" is text; the library does not store this setting.
        tokenizer.encode_special_tokens = True

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> "Vocabulary":
        """Learn at most `size` entries; a small corpus has fewer."""
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        if not path.is_file():
            raise UserError(f"{path}: no such file; a run keeps its vocabulary there")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:
            raise UserError(f"{path}: is no vocabulary ({error}); restore the file") from error

    def save(self, path: Path) -> None:
        replace_file(path, self._tokenizer.to_str().encode())

    @property
    def size(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def hash(self) -> str:
        """Says whether two vocabularies give the same ids."""
        return hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without BOS and EOS."""
        if isinstance(texts, str):
            raise TypeError("encode takes a list of texts, got one string")
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first EOS, or all of it where there is none."""
        kept = itertools.takewhile(lambda token: token != EOS, map(int, ids))
        return self._tokenizer.decode(list(kept), skip_special_tokens=True)


@dataclasses.dataclass(frozen=True)
class Vocabularies:
    """The source's and the target's: one and the same where they are joint."""

    source: Vocabulary
    target: Vocabulary

    @classmethod
    def train(cls, split: Split, size: int, joint: bool) -> "Vocabularies":
        if joint:
            both = Vocabulary.train(itertools.chain(split.sources, split.targets), size)
            return cls(both, both)
        return cls(Vocabulary.train(split.sources, size), Vocabulary.train(split.targets, size))

    @classmethod
    def load(cls, workdir: Path, joint: bool) -> "Vocabularies":
        target = Vocabulary.load(workdir / "vocabulary.json")
        return cls(target if joint else Vocabulary.load(workdir / SOURCE_FILE), target)

    def save(self, workdir: Path) -> None:
        self.target.save(workdir / "vocabulary.json")
        if self.source is not self.target:
            self.source.save(workdir / SOURCE_FILE)

    @functools.cached_property  # each checkpoint asks for it
    def hash(self) -> str:
        both = dict.fromkeys((self.source, self.target))  # one, where they are joint
        return " ".join(vocabulary.hash for vocabulary in both)
