"""The input pipelines of other projects that `data` measures, written as their users would.

Each pipeline learns a vocabulary from two lists of texts, tokenizes them, and returns a function
that makes an epoch of padded batches. DataLoader's batches have at most BATCH_TOKENS positions on
each side. The other batches have a fixed number of rows, chosen to average BATCH_TOKENS tokens.
Functions import their packages locally, because a process runs only one pipeline.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks import bpe
from experiments.benchmarks.data import (
    BATCH_TOKENS,
    MAX_LENGTH,
    VOCABULARY_SAMPLE,
    VOCABULARY_SIZE,
    Laps,
)
from jformer.config import EOS, PAD


class Pipeline(NamedTuple):
    """A function that makes an epoch of padded source and target batches, and its size."""

    epoch: Callable[[], Iterable[tuple[Any, Any]]]
    pairs: int
    tokens: Callable[[], int]


def measure(contender: str, lap: Laps, prefix: str, languages: list[str]) -> dict[str, Any]:
    """Time the parts of a pipeline, up to the end of an epoch."""
    prepare = {
        "torch": with_torch,
        "torch workers": with_torch_workers,
        "datasets": with_datasets,
        "grain": with_grain,
    }[contender]
    paths = [Path(f"{prefix}.{language}") for language in languages]
    texts = [path.read_text(encoding="utf-8").removesuffix("\n").split("\n") for path in paths]
    lap("read")
    pipeline = prepare(lap, *texts)
    next(iter(pipeline.epoch()))
    lap("plan and first batch")
    batches = positions = 0
    for source, target in pipeline.epoch():
        batches += 1
        positions += source.shape[0] * (source.shape[1] + target.shape[1])
    lap("epoch")
    return {
        "rows": pipeline.pairs,
        "token_utilization": pipeline.tokens() / positions,
        "batches": batches,
    }


def sample(*sides: Sequence[str]) -> list[str]:
    """Return the texts of evenly spaced pairs, for learning the vocabulary."""
    every = max(1, -(-len(sides[0]) // VOCABULARY_SAMPLE))
    return [text for texts in sides for text in texts[::every]]


def with_torch_workers(lap: Laps, sources: list[str], targets: list[str]) -> Pipeline:
    return with_torch(lap, sources, targets, workers=2)


def with_torch(lap: Laps, sources: list[str], targets: list[str], workers: int = 0) -> Pipeline:
    """PyTorch's DataLoader over tensors in memory, with batches of similar lengths."""
    from experiments.benchmarks import pytorch_data

    lap("import")
    tokenizer = bpe.train_tokenizer(sample(sources, targets), VOCABULARY_SIZE)
    lap("vocabulary")
    ids = [pytorch_data.encode(tokenizer, texts) for texts in (sources, targets)]
    lap("tokenize")
    pairs = pytorch_data.no_longer_than(MAX_LENGTH, *ids)
    loader = pytorch_data.make_loader(pairs, BATCH_TOKENS, workers)

    def epoch() -> Iterator[tuple]:
        return ((source, labels) for source, _, labels in loader)

    return Pipeline(epoch, len(pairs), lambda: tokens_of(pairs))


def with_datasets(lap: Laps, sources: list[str], targets: list[str]) -> Pipeline:
    """Hugging Face's `datasets`, with the collator and the length grouping of its Trainer."""
    from datasets import Dataset, disable_progress_bars
    from tokenizers.processors import TemplateProcessing
    from torch.utils.data import DataLoader
    from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast
    from transformers.trainer_pt_utils import LengthGroupedSampler

    disable_progress_bars()
    lap("import")
    bare = bpe.train_tokenizer(sample(sources, targets), VOCABULARY_SIZE)
    eos = bpe.SPECIAL[EOS]
    bare.post_processor = TemplateProcessing(single=f"$A {eos}", special_tokens=[(eos, EOS)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token=bpe.SPECIAL[PAD], eos_token=eos
    )
    lap("vocabulary")

    def tokenize(texts: dict[str, list[str]]) -> dict[str, list]:
        options = {"truncation": True, "max_length": MAX_LENGTH, "return_attention_mask": False}
        ids = tokenizer(texts["source"], **options)["input_ids"]
        labels = tokenizer(text_target=texts["target"], **options)["input_ids"]
        lengths = [max(map(len, pair)) for pair in zip(ids, labels, strict=True)]
        return {"input_ids": ids, "labels": labels, "length": lengths}

    texts = Dataset.from_dict({"source": sources, "target": targets})
    pairs = texts.map(tokenize, batched=True, remove_columns=["source", "target"])
    lap("tokenize")
    lengths = pairs["length"][:]
    rows = BATCH_TOKENS * len(lengths) // sum(lengths)
    pairs = pairs.remove_columns("length")
    loader = DataLoader(
        pairs,
        batch_size=rows,
        sampler=LengthGroupedSampler(rows, lengths=lengths),
        collate_fn=DataCollatorForSeq2Seq(tokenizer),
    )

    def epoch() -> Iterator[tuple]:
        return ((batch["input_ids"], batch["labels"]) for batch in loader)

    both = zip(pairs["input_ids"], pairs["labels"], strict=True)
    return Pipeline(epoch, len(pairs), lambda: tokens_of(both))


def with_grain(lap: Laps, sources: list[str], targets: list[str]) -> Pipeline:
    """Grain reads pairs one at a time in random order; numpy pads the batches."""
    import grain
    import numpy as np

    lap("import")
    tokenizer = bpe.train_tokenizer(sample(sources, targets), VOCABULARY_SIZE)
    lap("vocabulary")
    sides = [
        [
            np.array([*encoding.ids, EOS], np.int32)
            for encoding in tokenizer.encode_batch_fast(texts)
        ]
        for texts in (sources, targets)
    ]
    lap("tokenize")
    pairs = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= MAX_LENGTH]
    rows = BATCH_TOKENS * len(pairs) // sum(max(map(len, pair)) for pair in pairs)

    def pad(batch: Sequence[tuple]) -> tuple:
        padded = []
        for texts in zip(*batch, strict=True):
            ids_BL = np.full((len(texts), max(map(len, texts))), PAD, np.int32)
            for row, text in zip(ids_BL, texts, strict=True):
                row[: len(text)] = text
            padded.append(ids_BL)
        return tuple(padded)

    # Data in memory is read fastest in the caller's thread.
    alone = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    data = grain.MapDataset.source(pairs).shuffle(seed=0).to_iter_dataset(alone)
    data = data.batch(rows, batch_fn=pad)
    return Pipeline(lambda: data, len(pairs), lambda: tokens_of(pairs))


def tokens_of(pairs: Iterable[tuple]) -> int:
    return sum(len(text) for pair in pairs for text in pair)
