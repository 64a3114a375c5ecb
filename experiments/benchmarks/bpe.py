"""The tokenizer that the benchmarks give to other projects; it needs only `tokenizers`."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from jformer.config import BOS, EOS, PAD

SPECIAL = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}


def train_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer with the same pre-tokenization as `data.tokenizer`."""
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
        special_tokens=[SPECIAL[token] for token in sorted(SPECIAL)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
