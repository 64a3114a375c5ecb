"""Batches of pairs as PyTorch users make them: tensors, batching by length, and padding."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from jformer.config import BOS, EOS, PAD
from jformer.data.vocabulary import FIRST, Vocabulary

TEXTS = 10_000  # texts to encode at a time

Pair = tuple[torch.Tensor, torch.Tensor]


def encode(vocabulary: Vocabulary, texts: Sequence[str]) -> list[torch.Tensor]:
    """Return the ids of each text, with EOS at the end."""
    ids = []
    for first in range(0, len(texts), TEXTS):
        part = texts[first : first + TEXTS]
        for encoding in vocabulary.tokenizer.encode_batch_fast(part, add_special_tokens=False):
            # numpy converts a list twice as fast as torch does.
            entries = np.array([*encoding.ids, EOS - FIRST], np.int32)
            ids.append(torch.from_numpy(entries + FIRST))
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
        self.batches = self.cut(np.arange(len(pairs)))

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        self.batches = self.cut(self.rng.permutation(len(self.S)))
        for number in self.rng.permutation(len(self.batches)):
            yield self.batches[number]

    def cut(self, order: np.ndarray) -> list[list[int]]:
        """Sort pairs by length, and cut them into batches, each as large as possible."""
        longer = np.maximum(self.S, self.T)
        # By the longer side, then by the source: four other orders gave more padding.
        order = order[np.lexsort((self.S[order], longer[order]))]
        batches, first = [], 0
        for end, width in enumerate(longer[order].tolist()):
            if width * (end + 1 - first) > self.tokens and end > first:
                batches.append(order[first:end].tolist())
                first = end
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
