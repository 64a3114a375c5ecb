"""Batches of pairs as PyTorch users make them: tensors, batching by length, and padding."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from jformer.config import BOS, EOS, PAD

TEXTS = 10_000  # texts to encode at a time

Pair = tuple[torch.Tensor, torch.Tensor]


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[torch.Tensor]:
    """Return the ids of each text, with EOS at the end."""
    ids = []
    for first in range(0, len(texts), TEXTS):
        for encoding in tokenizer.encode_batch_fast(texts[first : first + TEXTS]):
            # numpy converts a list twice as fast as torch does.
            ids.append(torch.from_numpy(np.array([*encoding.ids, EOS], np.int32)))
    return ids


def no_longer_than(
    length: int, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
) -> list[Pair]:
    pairs = zip(sources, targets, strict=True)
    return [pair for pair in pairs if max(map(len, pair)) <= length]


class TokenBatches:
    """Batches of pair numbers with similar lengths, each with up to `tokens` positions per side.

    Each iteration is a new random epoch.
    """

    def __init__(self, pairs: Sequence[Pair], tokens: int, seed: int = 0):
        self.S, self.T = np.array([[len(text) for text in pair] for pair in pairs]).T
        self.tokens, self.rng = tokens, np.random.default_rng(seed)
        self.batches = self.cut(self.by_length(np.arange(len(pairs))))

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        self.batches = self.cut(self.by_length(self.rng.permutation(len(self.S))))
        for number in self.rng.permutation(len(self.batches)):
            yield self.batches[number]

    def by_length(self, order: np.ndarray) -> np.ndarray:
        """Sort by the longer side, then by the source. Four other orders gave more padding."""
        S, T = self.S[order], self.T[order]
        return order[np.lexsort((S, np.maximum(S, T)))]

    def cut(self, order: np.ndarray) -> list[list[int]]:
        """Cut sorted pairs into batches, each as large as possible."""
        longest = np.maximum(self.S, self.T)[order].tolist()
        batches, first, width = [], 0, 0
        for end, length in enumerate(longest):
            if max(width, length) * (end + 1 - first) > self.tokens and end > first:
                batches.append(order[first:end].tolist())
                first, width = end, 0
            width = max(width, length)
        return [*batches, order[first:].tolist()]


def collate(pairs: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the padded sources, the targets after BOS, and the labels, which end with EOS."""
    sources, targets = zip(*pairs, strict=True)
    source_BS = pad_sequence(sources, batch_first=True, padding_value=PAD)
    labels_BT = pad_sequence(targets, batch_first=True, padding_value=PAD)
    target_BT = labels_BT.roll(1, 1)
    target_BT[:, 0] = BOS
    target_BT.masked_fill_(target_BT == EOS, PAD)
    return source_BS, target_BT, labels_BT


def make_loader(
    pairs: Sequence[Pair], tokens: int, workers: int = 0, pin_memory: bool = False
) -> DataLoader:
    return DataLoader(
        pairs,
        batch_sampler=TokenBatches(pairs, tokens),
        collate_fn=collate,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=pin_memory,
    )
