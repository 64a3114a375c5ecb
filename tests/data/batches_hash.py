"""Prints a hash of all that a config's data gives; run by test_tokens in processes of its own."""

import hashlib
import random
import sys

from jformer.config import Config, DataConfig, TrainConfig
from jformer.data.batches import iterate, make_batches
from jformer.data.datasets import open_corpora
from jformer.data.tokens import make_vocabularies, tokenize_corpora
from jformer.data.vocabulary import Vocabulary


def words_of_many_lengths() -> list[str]:
    """Text for which sums in another order would make another unigram."""
    draw = random.Random(1)
    syllables = [a + b for a in "bdfgklmnpr" for b in ("a", "e", "io", "ü")]
    words = ["".join(draw.choices(syllables, k=draw.randrange(1, 5))) for _ in range(2700)]
    return [" ".join(words[i : i + 9]) for i in range(0, 2700, 9)]


def everything(data: DataConfig, steps: int) -> str:
    """Vocabulary, every array of every batch, and what was reported."""
    config = Config(data=data, train=TrainConfig(batch_tokens=256))
    corpora = open_corpora(config)["train"]
    vocabularies = make_vocabularies(corpora, data)
    tokenized = tokenize_corpora(corpora, vocabularies, data)
    result = hashlib.sha256(vocabularies.hash.encode())
    result.update(Vocabulary.train(words_of_many_lengths(), 800, "unigram").hash.encode())
    batches = make_batches(config, tokenized.pairs, tokenized.rows, vocabularies)
    for batch, _ in iterate(batches, steps):
        for name in sorted(batch):
            result.update(batch[name].tobytes())
    result.update(str(tokenized.report).encode())
    return result.hexdigest()


if __name__ == "__main__":
    train, cache = sys.argv[1:]
    print(
        everything(
            DataConfig(
                name="files", train=train, validation=train, vocabulary_size=300, max_length=48,
                batching="packed", augment="bpe_dropout(p=0.1)", cache=cache, bad_lines="skip",
            ),
            steps=60,
        )
    )  # fmt: skip
