"""Word dropout: random words of a source become their classes, such as "<unk>~ing", in training.

A word of the training text that has an entry is never unknown, so the entries of classes would be
trained by words seen once alone, and rare words would be learnt by heart. Replacing words at random
is how parsers are trained for unknown ones (Iyyer et al. 2015, Kiperwasser and Goldberg 2016).
"""

from collections.abc import Callable

import numpy as np

from jformer.data.ragged import Ragged, TokenPairs
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError


def word_dropout(
    vocabularies: Vocabularies, *, p: float
) -> Callable[[TokenPairs, np.random.Generator], TokenPairs]:
    """Replace each source word with probability `p` by its class, or by "<unk>"."""
    class_ids_V = vocabularies.source.class_ids
    if class_ids_V is None or not 0 <= p < 1:
        raise UserError(
            f"config.data.augment=word_dropout(p={p}): requires 0 <= p < 1 and a source vocabulary "
            f"of words, config.data.tokenizer=word_classes or words"
        )

    def augment(pairs: TokenPairs, rng: np.random.Generator) -> TokenPairs:
        texts = pairs.sources
        dropped = rng.random(len(texts.flat), np.float32) < p
        ids = np.where(dropped, class_ids_V[texts.flat], texts.flat)
        return TokenPairs(Ragged(ids.astype(texts.flat.dtype), texts.offsets), pairs.targets)

    return augment
