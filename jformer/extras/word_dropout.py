"""Word dropout: random words of a source become their classes, such as "<unk>~ing", in training.

A word of the training text that has an entry is never unknown, so the entries of classes would be
trained by words seen once alone, and rare words would be learnt by heart. Replacing words at random
is how parsers are trained for unknown ones (Iyyer et al. 2015, Kiperwasser and Goldberg 2016).
"""

import numpy as np

from jformer.data.ragged import Ragged


class WordDropout:
    def __init__(self, class_ids: np.ndarray, probability: float):
        """Prepare `class_ids` (V,), what each id becomes, with a probability."""
        self._class_ids, self._probability = class_ids, probability

    def __call__(self, texts: Ragged, rng: np.random.Generator) -> Ragged:
        """Return the texts with other words dropped in each."""
        dropped = rng.random(len(texts.flat), np.float32) < self._probability
        ids = np.where(dropped, self._class_ids[texts.flat], texts.flat)
        return Ragged(ids.astype(texts.flat.dtype), texts.offsets)


def unchanged(texts: Ragged, rng: np.random.Generator) -> Ragged:
    """Return the texts of the other side as they are."""
    return texts
