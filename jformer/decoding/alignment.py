"""Word alignment by attention: pairs `i-j` of source and target word in Pharaoh's format.

Words are separated by white space and counted from 0.
"""

from collections.abc import Sequence

import numpy as np

from jformer.data.vocabulary import Vocabulary

Links = list[tuple[int, int]]


def words_of(ids: Sequence[int], vocabulary: Vocabulary) -> np.ndarray:
    """Return the index of the word in which each token ends; -1 before the first word."""
    ends = [len(vocabulary.decode(ids[: n + 1]).split()) for n in range(len(ids))]
    return np.array(ends, int) - 1


def align(
    weights_TS: np.ndarray | None, target_words_T: np.ndarray, source_words_S: np.ndarray
) -> Links:
    """Link each target word to the source word with the largest sum of weights over their tokens.

    The weights' last row and column belong to EOS and do not count.
    """
    assert weights_TS is not None, "forced decoding without a layer has no weights"
    weights_TS = weights_TS[: len(target_words_T), : len(source_words_S)]
    shape = (target_words_T.max(initial=-1) + 1, source_words_S.max(initial=-1) + 1)
    of_words = np.zeros(shape)
    known = np.ix_(target_words_T >= 0, source_words_S >= 0)
    targets, sources = target_words_T[target_words_T >= 0], source_words_S[source_words_S >= 0]
    np.add.at(of_words, (targets[:, None], sources[None, :]), weights_TS[known])
    return sorted((int(row.argmax()), j) for j, row in enumerate(of_words) if of_words.size)


def pharaoh(links: Links) -> str:
    return " ".join(f"{i}-{j}" for i, j in links)
