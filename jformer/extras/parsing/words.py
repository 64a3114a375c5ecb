"""Words as tokens: the closed vocabulary of linearised trees, and classes of unknown words.

`words` has entries for the most frequent white-space words, and "<unk>" for all others.
`word_classes` is for the sources of a parser. Its entries are the words that occur at least twice,
and classes of the other words by shape and ending, such as "<unk>~ing". The scorer `trees` replaces
each word without an entry by its class before the model reads it, also in training.

A training word with an entry is never unknown, so only words that occur once would train the
classes, and rare words would be memorised. `word_dropout` therefore replaces random source words by
their classes, different words in each epoch (Iyyer et al. 2015, Kiperwasser and Goldberg 2016).
"""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from jformer.data.tokens import Ragged, TokenPairs
from jformer.data.vocabulary import FIRST, Vocabularies, Vocabulary
from jformer.errors import UserError

UNKNOWN = "<unk>"
MIN_WORDS = 4  # in a class with an entry


def words(texts: Iterable[str], size: int) -> Tokenizer:
    """Learn the most frequent words, a component."""
    counts = Counter(word for text in texts for word in text.split())
    frequent = sorted(counts, key=lambda word: (-counts[word], word))
    return word_level([UNKNOWN, *frequent][:size])


def word_classes(texts: Iterable[str], size: int) -> Tokenizer:
    """Learn the most frequent words and the classes of words that occur once, a component."""
    counts = Counter(word for text in texts for word in text.split())
    frequent = [word for word, count in counts.most_common() if count > 1]
    once = Counter(each for word, count in counts.items() if count == 1 for each in classes(word))
    common = [name for name, count in once.most_common(size // 4) if count >= MIN_WORDS]
    return word_level([*dict.fromkeys([UNKNOWN, *common, *frequent])][:size])


def word_level(entries: list[str]) -> Tokenizer:
    ids = {entry: i for i, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def classes(word: str) -> list[str]:
    """Return the classes of a word, the closest first.

    A class has marks for digits ("#"), an initial capital ("^") and hyphens ("-"), and up to four
    final letters.
    """
    digits, capital = any(map(str.isdigit, word)), word[0].isupper()
    shape = UNKNOWN + "#" * digits + "^" * capital + "-" * ("-" in word)
    return [f"{shape}~{word.lower()[-n:]}" for n in (4, 3, 2, 1)] + [shape]


def class_of(word: str, tokenizer: Tokenizer) -> str:
    """Return the closest class of a word that has an entry, or "<unk>"."""
    known = (name for name in classes(word) if tokenizer.token_to_id(name) is not None)
    return next(known, UNKNOWN)


def with_classes(sentence: str, vocabulary: Vocabulary) -> str:
    """Return the sentence, with words that a word vocabulary lacks replaced by their classes."""
    tokenizer = vocabulary.tokenizer
    if not isinstance(tokenizer.model, models.WordLevel):
        return sentence
    return " ".join(
        class_of(word, tokenizer) if tokenizer.token_to_id(word) is None else word
        for word in sentence.split()
    )


def word_dropout(
    vocabularies: Vocabularies, *, p: float
) -> Callable[[TokenPairs, np.random.Generator], TokenPairs]:
    """Replace each source word with probability `p` by its class, or by "<unk>", a component."""
    entries, tokenizer = vocabularies.source.entries(), vocabularies.source.tokenizer
    if UNKNOWN not in entries or not isinstance(tokenizer.model, models.WordLevel):
        raise UserError(
            f"config.data.augment=word_dropout(p={p}): requires a source vocabulary of words, "
            f"config.data.tokenizer=word_classes or words"
        )
    ids, class_ids_V = tokenizer.get_vocab(), np.arange(len(entries))
    for token, entry in enumerate(entries):
        if entry and not entry.startswith(UNKNOWN):
            class_ids_V[token] = FIRST + ids[class_of(entry, tokenizer)]

    def augment(pairs: TokenPairs, rng: np.random.Generator) -> TokenPairs:
        texts = pairs.sources
        dropped = rng.random(len(texts.flat), np.float32) < p
        ids = np.where(dropped, class_ids_V[texts.flat], texts.flat)
        return TokenPairs(Ragged(ids.astype(texts.flat.dtype), texts.lengths), pairs.targets)

    return augment
