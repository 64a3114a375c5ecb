"""The tokenizers that are trained here: components that learn at most `size` entries from texts.

All but `words` and `word_classes` are lossless: `decode(encode(text))` is the normalised text,
whatever its characters. `byte_bpe` and `wordpiece` work on 256 characters that stand for bytes,
since WordPiece has no byte fallback. `bpe` and `unigram` work on characters; unseen ones become
UTF-8 bytes, the entries "<0x00>" to "<0xFF>". Text never matches these, since digits are split off:
numbers of any length are thus copied digit by digit, too. Vocabularies loaded from other files may
be lossy.

`words` has an entry for each word between white space, and one for all that it does not know: it is
for targets of a small closed vocabulary, as linearised trees. `word_classes` is for their sources:
words that were seen once or never are entries such as "<unk>~ing", by their shape and ending.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from jformer.errors import UserError

SPECIAL = 3  # ids before those of the tokenizer: PAD, BOS and EOS
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]
MARK = "…"  # prefix of WordPiece entries within a word; unlike "##", it stands for no bytes
# The entries that suffice for any text, before all learned ones.
BASES = {"byte_bpe": BYTES, "wordpiece": BYTES + [MARK + byte for byte in BYTES]}
UNKNOWN = "<unk>"
BASES |= {"bpe": FALLBACK, "unigram": FALLBACK, "words": [UNKNOWN], "word_classes": [UNKNOWN]}
CLASS_AT_LEAST = 4  # words of which a class has an entry

Normalization = Literal["none", "nfc", "nfkc", "lower"]
NORMALIZERS: dict[str, normalizers.Normalizer | None] = {
    "none": None,
    "nfc": normalizers.NFC(),
    "nfkc": normalizers.NFKC(),
    "lower": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
}
TO_BYTES: list[Any] = [
    pre_tokenizers.Digits(individual_digits=True),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
]
# WordPiece takes time quadratic in a word's length, and fails on words over 100 characters.
CHOP = pre_tokenizers.Split(Regex(".{1,100}"), "isolated")
# GPT-2's pattern, except that digits are single and accents and vowel signs stay with letters.
WORDS = Regex(r"'(?:[sdmt]|ll|re|ve)| ?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+")
CUTS = {
    "byte_bpe": pre_tokenizers.Sequence(TO_BYTES),
    "wordpiece": pre_tokenizers.Sequence([*TO_BYTES, CHOP]),
    "bpe": pre_tokenizers.Split(WORDS, "isolated"),
    "unigram": pre_tokenizers.Split(WORDS, "isolated"),
    "words": pre_tokenizers.WhitespaceSplit(),
    "word_classes": pre_tokenizers.WhitespaceSplit(),
}


def byte_bpe(
    texts: Iterable[str], size: int, *, normalization: Normalization = "none"
) -> Tokenizer:
    return trained("byte_bpe", texts, size, normalization)


def bpe(texts: Iterable[str], size: int, *, normalization: Normalization = "none") -> Tokenizer:
    return trained("bpe", texts, size, normalization)


def wordpiece(
    texts: Iterable[str], size: int, *, normalization: Normalization = "none"
) -> Tokenizer:
    return trained("wordpiece", texts, size, normalization)


def unigram(texts: Iterable[str], size: int, *, normalization: Normalization = "none") -> Tokenizer:
    return trained("unigram", texts, size, normalization)


def words(texts: Iterable[str], size: int, *, normalization: Normalization = "none") -> Tokenizer:
    return trained("words", texts, size, normalization)


def word_classes(
    texts: Iterable[str], size: int, *, normalization: Normalization = "none"
) -> Tokenizer:
    normalizer = NORMALIZERS[normalization]
    normal = (normalizer.normalize_str(text) if normalizer else text for text in texts)
    tokenizer = with_classes(normal, size)
    tokenizer.normalizer = normalizer
    return tokenizer


def trained(kind: str, texts: Iterable[str], size: int, normalization: str) -> Tokenizer:
    """Learn at most `size` entries from the texts."""
    needed = set(BASES[kind])
    first = int(kind == "unigram")  # its trainer learns at least one entry
    tokenizer, trainer = untrained(kind, max(size, first + len(needed)))
    tokenizer.normalizer = normalizer = NORMALIZERS[normalization]

    def fitting() -> Iterator[str]:
        for text in texts:
            if BASES[kind] is FALLBACK:
                needed.update(normalizer.normalize_str(text) if normalizer else text)
            if first + len(needed) <= size:  # otherwise Unigram's trainer would not terminate
                yield text

    tokenizer.train_from_iterator(fitting(), trainer)
    if size < first + len(needed):
        raise UserError(
            f"config.data.vocabulary_size={size + SPECIAL}: must be >= "
            f"{first + len(needed) + SPECIAL}, for the alphabet of {kind} on this text"
        )
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = []  # the trainer's special tokens become ordinary entries
    if kind == "unigram":
        # An unk_id is required; entry 0 is never matched in text.
        vocab = settle(document["model"]["vocab"])
        document["model"] |= {"byte_fallback": True, "unk_id": 0, "vocab": vocab}
    return Tokenizer.from_str(json.dumps(document))


def untrained(kind: str, size: int) -> tuple[Tokenizer, Any]:
    """Return an empty tokenizer, and the trainer that gives it at most `size` entries."""
    model: Any = models.BPE(byte_fallback=kind == "bpe")
    decoder: Any = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    train: Any = trainers.BpeTrainer
    if kind == "byte_bpe":
        decoder = decoders.ByteLevel()
    elif kind == "wordpiece":
        model = models.WordPiece(continuing_subword_prefix=MARK)
        train = partial(trainers.WordPieceTrainer, continuing_subword_prefix=MARK)
        decoder = decoders.Sequence([decoders.Replace(MARK, ""), decoders.ByteLevel()])
    elif kind == "unigram":
        model, train = models.Unigram(), trainers.UnigramTrainer
    elif kind == "words":
        model, train = models.WordLevel(unk_token=UNKNOWN), trainers.WordLevelTrainer
        decoder = None  # with spaces between
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = CUTS[kind], decoder
    return tokenizer, train(vocab_size=size, special_tokens=BASES[kind], show_progress=False)


def with_classes(texts: Iterable[str], size: int) -> Tokenizer:
    """Learn at most `size` entries: words that were seen twice, and classes of those seen once."""
    counts = Counter(word for text in texts for word in text.split())
    words = [word for word, n in counts.most_common() if n > 1]
    once = Counter(kind for word, n in counts.items() if n == 1 for kind in classes(word))
    kinds = [kind for kind, n in once.most_common(size // 4) if n >= CLASS_AT_LEAST]
    entries = [*dict.fromkeys([UNKNOWN, *kinds, *words])][:size]
    ids = {entry: number for number, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = CUTS["word_classes"]
    return tokenizer


def classes(word: str) -> list[str]:
    """Return the classes of a word without an entry, the closest first.

    A class is of digits ("#"), a capital first ("^"), hyphens ("-") and up to four last letters.
    """
    digits, capital = any(map(str.isdigit, word)), word[0].isupper()
    shape = UNKNOWN + "#" * digits + "^" * capital + "-" * ("-" in word)
    return [f"{shape}~{word.lower()[-n:]}" for n in (4, 3, 2, 1)] + [shape]


def settle(vocab: list[list]) -> list[list]:
    """Make a Unigram's entries and scores the same after every training on the same texts.

    Its trainer sums floats in the order of a hash table, so the last digits of a score are random.
    So is the order in which characters unused by EM get the scores floor, floor + 0.0001 and so on,
    where floor is the least score. Here all of these characters get the floor.
    """
    pieces = vocab[len(FALLBACK) :]
    floor = min((score for _, score in pieces), default=0.0)
    unused = floor + 0.0001 * sum(len(piece) == 1 for piece, _ in pieces)
    settled = [
        [piece, round(floor if len(piece) == 1 and score < unused else score, 6)]
        for piece, score in pieces
    ]
    return vocab[: len(FALLBACK)] + sorted(settled, key=lambda entry: (-entry[1], entry[0]))
