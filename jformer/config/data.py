"""config.data: the corpus, its vocabulary and its batches."""

import dataclasses

from jformer.components import NAMED_DATASETS, name_of, parse
from jformer.schema import Section, choice, component, key, paths


@dataclasses.dataclass(frozen=True)
class DataConfig(Section):
    path = "config.data"

    name: str = component("phrases", "dataset", "data set; given: the pairs of jformer.train")
    source_language: str = key("en", "suffix of the source files; for phrases en or de")
    target_language: str = key("de", "suffix of the target files; for phrases de or en")
    directory: str = paths(
        "folder with the files of the data set; empty: download from the Hugging Face hub",
        only_if=("name", "hub", *NAMED_DATASETS, "parsing"),
    )
    train: str = paths("training pairs: PREFIX, FILE.tsv or FILE.parquet, comma-separated")
    weights: str = key("", "repeats of each training corpus per epoch, such as 1,4; empty: once")
    validation: str = paths("validation pairs", only_if=("name", "files", "parsing"))
    test: str = paths("test pairs; empty: no test scores", only_if=("name", "files", "parsing"))
    scorer: str = component("translation", "scorer", "scores of a test set")
    bad_lines: str = choice(
        "training lines with invalid UTF-8 or a wrong number of columns", "error", "skip"
    )
    max_length: int = key(256, "maximum tokens of a source, a target or a packed row", ">= 2")
    tokenizer: str = component("byte_bpe", "tokenizer", "sub-word algorithm; Section 5.1")
    target_tokenizer: str = component(
        "", "tokenizer", "target tokenizer, if different", only_if=("joint_vocabulary", "False")
    )
    vocabulary_size: int = key(37_000, "maximum number of entries; Section 5.1", ">= 260")
    joint_vocabulary: bool = key(True, "one vocabulary for both languages; Section 5.1")
    vocabulary: str = paths(
        "tokenizer.json or SentencePiece .model to use; SOURCE,TARGET if they are not joint"
    )
    augment: str = component("", "augmentation", "changes to the training pairs in each epoch")
    batching: str = choice("one pair per row by length, or several per row", "buckets", "packed")
    num_buckets: int = key(10, "batch shapes, each compiled once", ">= 1")
    length_multiple: int = key(4, "batch shape lengths are multiples of this", ">= 1")
    cache: str = paths("folder for tokenized text; empty: ~/.cache/jformer")

    @property
    def vocabulary_files(self) -> list[str]:
        """The files of `vocabulary`: one, or one per language; empty if not given."""
        files = self.vocabulary.split(",")
        return files if self.joint_vocabulary or len(files) == 2 else ["", *files]

    @property
    def is_lowercase(self) -> bool:
        """Whether the target tokenizer converts all text to lower case."""
        target = self.target_tokenizer or self.tokenizer
        return parse(target).options.get("normalization") == "lower"

    @property
    def languages(self) -> str:
        return f"{self.source_language}-{self.target_language}"

    def corpus_weights(self, number: int) -> list[int]:
        """Return how often an epoch repeats each of `number` training corpora."""
        if not self.weights:
            return [1] * number
        weights = self.weights.split(",")
        if len(weights) != number or not all(map(str.isdecimal, weights)):
            raise self.wrong("weights", f"must be {number} whole numbers, one per training corpus")
        return [*map(int, weights)]

    def check(self) -> None:
        super().check()
        if name_of(self.name) == "files" and not (self.train and self.validation):
            raise self.wrong("name", "requires config.data.train and config.data.validation")
        if self.source_language == self.target_language:
            raise self.wrong("target_language", "must differ from config.data.source_language")
        if len(self.vocabulary.split(",")) > 2 - self.joint_vocabulary:
            raise self.wrong("vocabulary", "must be one file, or SOURCE,TARGET if not joint")
