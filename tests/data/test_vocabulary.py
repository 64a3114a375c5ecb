"""Both kinds are lossless for any text, are the same from every training, and are saved whole."""

import functools
import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, processors

from jformer.config import EOS, DataConfig
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError

TEXTS = [
    "der Hund und die Katze",
    "ein Hund, 1234 Katzen",
    "the dog and the cat",
    "naïve … 日本",
] * 5
NORMALIZERS = {
    "none": None, "nfc": normalizers.NFC(), "nfkc": normalizers.NFKC(),
    "lower": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
}  # fmt: skip
both_kinds = pytest.mark.parametrize("kind", ["byte_bpe", "unigram"])

# What a tokenizer may take for something else, between any characters.
TRAPS = [
    "<s>", "</s>", "<pad>", "<unk>", "[UNK]", "<0x41>", "<0x", "0A>", "##", "…", "▁", "Ġ", "Ċ",
    "  ", " ", "\t", "\n", "\r", "\x00", "\u2028", "\u0085", "\u00a0", "e\u0301", "\ufb01", "😀",
    "日", "12", "'s", " der", "Hund",
]  # fmt: skip
characters = st.characters(exclude_categories=["Cs"])
any_text = st.lists(characters | st.sampled_from(TRAPS), max_size=12).map("".join)


@functools.cache
def trained(kind="byte_bpe", normalization="none"):
    return Vocabulary.train(iter(TEXTS), 620, f"{kind}(normalization='{normalization}')")


@pytest.mark.parametrize("normalization", NORMALIZERS)
@both_kinds
@settings(max_examples=60, deadline=None)
@given(text=any_text)
def test_any_unicode_text_survives_the_round_trip(kind, normalization, text):
    vocabulary, normalizer = trained(kind, normalization), NORMALIZERS[normalization]
    expected = normalizer.normalize_str(text) if normalizer else text
    assert vocabulary.decode(vocabulary.encode([text])[0]) == expected


def test_decoding_stops_at_the_first_eos_and_needs_none():
    ids = trained().encode(["der Hund", "die Katze"])
    assert trained().decode([1, *ids[0], EOS, *ids[1], 0]) == "der Hund"
    assert trained().decode([*ids[0], *ids[1], 0, 0]) == "der Hunddie Katze"


@pytest.mark.parametrize("normalization", NORMALIZERS)
@both_kinds
def test_a_saved_vocabulary_gives_the_same_ids_and_hash(kind, normalization, tmp_path):
    vocabulary = trained(kind, normalization)
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    texts = ["E\u0301 \ufb01 Ⅷ die Katze </s> 12 😀"]
    assert loaded.encode(texts) == vocabulary.encode(texts)
    assert loaded.hash == vocabulary.hash != Vocabulary.train(TEXTS[:1], 600, kind).hash


@both_kinds
def test_each_digit_is_a_token_and_no_entry_is_beyond_the_requested_size(kind):
    vocabulary = Vocabulary.train(["12 12 12"] * 9, 300, kind)
    assert len(vocabulary.encode(["1212"])[0]) == 4
    assert vocabulary.size == len(vocabulary.entries()) <= 300


def test_a_unigram_has_room_for_each_character_of_its_text():
    texts = ["".join(map(chr, range(0x4E00, 0x4E00 + 40)))] * 3
    with pytest.raises(UserError, match=r"config\.data\.vocabulary_size=290: "):
        Vocabulary.train(texts, 290, "unigram")
    assert Vocabulary.train(texts, 301, "unigram").size > 256 + 40


@settings(max_examples=60, deadline=None)
@given(word=st.text("aceghiHKnotu", min_size=1, max_size=12))
def test_the_merges_by_rank_give_the_ids(word):
    vocabulary = learned_from_random_words()
    merges = vocabulary.merges
    assert (merges.shape, merges.dtype) == ((90, 3), np.int32)
    ranks = {(a, b): (rank, c) for rank, (a, b, c) in enumerate(merges.tolist())}
    ids = [vocabulary.encode([character])[0][0] for character in word]
    while found := [
        (*ranks[pair], i) for i, pair in enumerate(itertools.pairwise(ids)) if pair in ranks
    ]:
        _, merged, i = min(found)
        ids[i : i + 2] = [merged]
    assert ids == vocabulary.encode([word])[0]


@functools.cache
def learned_from_random_words():
    """The order of merges matters for most of these words."""
    generator = random.Random(2)
    words = ["".join(generator.choices("aceghiHKnotu", k=5)) for _ in range(400)]
    return Vocabulary.train(words, 3 + 256 + 90)


def foreign():
    """A tokenizer like published ones: special tokens, padding, truncation and dropout are on."""
    entries = ["a", "b", "ab", "<s>", "</s>", "<", "s", ">", "[UNK]"]
    model = models.BPE(
        {entry: i for i, entry in enumerate(entries)}, [("a", "b")], unk_token="[UNK]"
    )
    model.dropout = 0.9
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("mask")])
    tokenizer.post_processor = processors.BertProcessing(("</s>", 4), ("<s>", 3))
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=20)
    return tokenizer


@pytest.fixture
def external(tmp_path):
    foreign().save(str(tmp_path / "tokenizer.json"))
    return Vocabulary.load(tmp_path / "tokenizer.json")


def test_special_tokens_of_an_external_tokenizer_are_text_and_its_settings_have_no_effect(external):
    assert external.encode(["<s>", "b</s>"]) == [[8, 9, 10], [4, 8, 11, 9, 10]]
    assert external.decode([6, 7]) == "<s> </s>"
    assert external.encode(["ababababababab", "mask"]) == [[5] * 7, [12]]


def test_an_external_tokenizer_is_saved_whole(external, tmp_path):
    external.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert loaded.encode(["ab<s>"] * 9) == external.encode(["ab<s>"] * 9)
    assert (loaded.size, loaded.hash) == (external.size, external.hash) == (13, external.hash)
    assert external.merges.tolist() == [[3, 4, 5]]


@pytest.mark.parametrize("content", [None, "", '{"model_type": "bert"}'])
def test_a_file_that_is_not_a_tokenizer_is_named_with_what_is_needed(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=r"tokenizer\.json: .*tokenizer\.json\b.*SentencePiece"):
        Vocabulary.load(path)


def settings_of(**changes):
    return DataConfig(**{"vocabulary_size": 600, **changes})


def pairs():
    return (("the dog barks", "der Hund bellt") for _ in range(9))


def test_a_joint_vocabulary_learns_from_both_sides():
    both = Vocabularies.train(pairs, settings_of())
    assert both.source is both.target
    assert [len(ids) for ids in both.source.encode(["the barks", "der bellt"])] == [2, 2]


def test_two_vocabularies_learn_from_one_side_each(tmp_path):
    both = Vocabularies.train(pairs, settings_of(joint_vocabulary=False))
    assert [len(both.source.encode([text])[0]) for text in ("the dog", "der Hund")] == [2, 8]
    assert [len(both.target.encode([text])[0]) for text in ("the dog", "der Hund")] == [7, 2]
    both.save(tmp_path)
    loaded = Vocabularies.load(tmp_path, joint=False)
    assert loaded.hash == both.hash == f"{both.source.hash} {both.target.hash}"


def test_the_target_has_its_own_tokenizer_if_the_config_names_one():
    data = settings_of(
        joint_vocabulary=False, tokenizer="byte_bpe(normalization='lower')",
        target_tokenizer="unigram(normalization='nfkc')",
    )  # fmt: skip
    both = Vocabularies.train(pairs, data)
    assert both.source.decode(both.source.encode(["THE dog"])[0]) == "the dog"
    assert both.target.decode(both.target.encode(["der \ufb01 HUND"])[0]) == "der fi HUND"
