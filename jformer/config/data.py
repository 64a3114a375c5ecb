"""config.data: the corpus, its vocabulary and its batches."""

import dataclasses
import re

from jformer.errors import UserError
from jformer.schema import RATE, Section, choice, key, part, paths

NAMED = ("multi30k", "iwslt14", "iwslt17", "wmt14", "wmt16", "tatoeba")
DATASETS = ("phrases", *NAMED, "hub", "files", "parsing", "given")
NORMALIZATIONS = ("none", "nfc", "nfkc", "lower")
TOKENIZERS = ("byte_bpe", "bpe", "wordpiece", "unigram", "words", "word_classes")


@dataclasses.dataclass(frozen=True)
class DataConfig(Section):
    path = "config.data"

    name: str = part("corpus (given: by the pairs of `jformer.train`)", *DATASETS)
    source_language: str = key("en", "suffix of the source files; for phrases a CLDR locale")
    target_language: str = key("de", "suffix of the target files; for phrases a CLDR locale")
    directory: str = paths(
        "folder with the files of a named corpus; empty: from the hub; for parsing with .mrg files",
        only_if=("name", *NAMED, "parsing"),
    )
    hub: str = paths(
        "REPOSITORY[@REVISION] of the Hugging Face hub, or a folder of Parquet files",
        only_if=("name", "hub", *NAMED),
    )
    train: str = paths(
        "training pairs: PREFIX, FILE.tsv or FILE.parquet, several by commas; for parsing, as for "
        "validation and test, patterns of .mrg files by commas",
    )
    weights: str = key(
        "", "how often an epoch repeats each training corpus, as 1,4; empty: once each"
    )
    validation: str = paths(
        "validation pairs: PREFIX, FILE.tsv or FILE.parquet",
        only_if=("name", "files", "parsing"),
    )
    test: str = paths("test pairs; empty: no test scores", only_if=("name", "files", "parsing"))
    tags: str = key(
        "XX",
        "what stands for a word in a linearised tree: XX, its tag (keep), or its number",
        "XX",
        "keep",
        "number",
        only_if=("name", "parsing"),
    )
    phrases: int = key(
        40_000, "number of pairs made for the corpus phrases", ">= 1000", "<= 10000000"
    )
    bad_lines: str = choice(
        "lines with invalid UTF-8 or a wrong number of columns", "error", "replace", "skip"
    )
    long_pairs: str = choice("training pairs with more than max_length tokens", "skip", "truncate")
    max_length: int = key(
        256,
        "maximum number of tokens of a source, a target (EOS counted) and a packed row",
        ">= 2",
        "<= 32768",
    )
    tokenizer: str = choice("sub-word algorithm, or words between spaces; Section 5.1", *TOKENIZERS)
    target_tokenizer: str = key(
        "same",
        f"the same for the target: same, {', '.join(TOKENIZERS)}",
        "same",
        *TOKENIZERS,
        only_if=("joint_vocabulary", "False"),
    )
    vocabulary_size: int = key(
        37_000, "maximum number of entries; Section 5.1", ">= 260", "<= 10000000"
    )
    vocabulary_sample: int = key(
        2_000_000, "maximum number of pairs to learn the vocabulary from", ">= 1"
    )
    joint_vocabulary: bool = key(True, "one vocabulary for both languages; Section 5.1")
    vocabulary: str = paths(
        "tokenizer.json or SentencePiece .model to use instead of learning a vocabulary"
    )
    source_vocabulary: str = paths(
        "the same for the source language", only_if=("joint_vocabulary", "False")
    )
    normalization: str = choice(
        "Unicode normalization of all text; lower: NFC and lower case", *NORMALIZATIONS
    )
    bpe_dropout: float = key(
        0.0,
        "probability of skipping a merge in training (Provilkov et al. 2020)",
        *RATE,
        only_if=("tokenizer", "byte_bpe", "bpe"),
    )
    word_dropout: float = key(
        0.0,
        "probability of replacing a source word by <unk>, or its class of unknown words, in "
        "training (Iyyer et al. 2015)",
        *RATE,
        only_if=("tokenizer", "words", "word_classes"),
    )
    batching: str = choice(
        "one pair a row by length, or several pairs packed into a row", "buckets", "packed"
    )
    num_buckets: int = key(
        10, "maximum number of batch shapes, each compiled once", ">= 1", "<= 255"
    )
    length_multiple: int = key(
        4, "lengths of batch shapes are multiples of this", ">= 1", "<= 1024"
    )
    cache: str = paths("folder for tokenized text; empty: ~/.cache/jformer")

    @property
    def languages(self) -> str:
        return f"{self.source_language}-{self.target_language}"

    def corpus_weights(self, number: int) -> list[int]:
        """Return how often an epoch repeats each of `number` training corpora."""
        weights = [int(weight) for weight in self.weights.split(",") if self.weights]
        if weights and len(weights) != number:
            reason = f"has {len(weights)} numbers, and the training corpora are {number}"
            raise self.wrong("weights", reason)
        return weights or [1] * number

    def check(self) -> None:
        """Raise `UserError` for the first value that cannot work."""
        needed = {"files": ("train", "validation"), "hub": ("hub",)}
        if not self.directory:
            needed["parsing"] = ("train", "validation")
        for name in needed.get(self.name, ()):
            if not getattr(self, name):
                directory = "config.data.directory=FOLDER, or " if self.name == "parsing" else ""
                raise UserError(
                    f"config.data.{name} is empty: set {directory}config.data.{name}=PATH"
                )
        if self.name == "given" and self.train:
            raise self.wrong("train", "all pairs are those given to jformer.train; leave it empty")
        if self.directory and self.hub:
            raise self.wrong(
                "hub",
                f"{self.assignment('directory')} is set too, and the text can come from one of "
                f"them; leave one empty",
            )
        if self.name == "parsing" and self.directory and (self.validation or self.test):
            reason = "trees are named by config.data.validation or test, too; set one"
            raise self.wrong("directory", reason)
        if not (self.source_language and self.target_language):
            which = "target" if self.source_language else "source"
            raise UserError(f"config.data.{which}_language is empty: set it to a language as in de")
        if self.source_language == self.target_language:
            reason = "is config.data.source_language, too; the two sides must differ in name"
            raise self.wrong("target_language", reason)
        if not re.fullmatch(r"([1-9]\d{0,5}(,[1-9]\d{0,5})*)?", self.weights):
            raise self.wrong("weights", "must be numbers from 1 to 999999 as in 1,4")
