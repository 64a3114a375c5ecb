import dataclasses

import numpy as np
import pytest

from jformer.config import Config, DataConfig, UserError
from jformer.data import batches as data_batches
from jformer.data.corpora import Split
from jformer.data.tokenize import tokenize
from jformer.data.vocabulary import Vocabularies, Vocabulary

# Words that stand once and end alike make classes; the other words stand more than once.
ONCE = "walking jumping singing talking reading flying"
SOURCES = [f"the cat likes {ONCE} .", "the dog likes the cat .", "a dog .", *["a cat ."] * 300]
TARGETS = ["(S 1 2 )S"] * len(SOURCES)


def batches(probability: float) -> tuple[Vocabularies, data_batches.Batches]:
    source = Vocabulary.train(SOURCES, 100, "word_classes")
    vocabularies = Vocabularies(source, Vocabulary.train(TARGETS, 100, "words"))
    data = DataConfig(
        tokenizer="word_classes", joint_vocabulary=False, max_length=64,
        augment=f"word_dropout(p={probability})",
    )  # fmt: skip
    config = dataclasses.replace(Config(), data=data)
    pairs = tokenize(Split(SOURCES, TARGETS), vocabularies)
    return vocabularies, data_batches.make_batches(
        config, pairs, np.arange(len(SOURCES), dtype=np.int32), vocabularies
    )


def test_each_source_word_is_replaced_by_its_class_with_the_probability():
    vocabularies, made = batches(0.25)
    plain, drawn = made.pairs.sources, made.epoch(0).pairs.sources
    changed = drawn.flat != plain.flat
    entries = vocabularies.source.entries()
    pairs = zip(plain.flat[changed], drawn.flat[changed], strict=True)
    replaced = {(entries[word], entries[other]) for word, other in pairs}
    same = ("the", "a", "cat", "likes", ".")  # no class of a word seen once is like these
    assert replaced == {(word, "<unk>") for word in same} | {("dog", "<unk>~g")}
    words = plain.flat >= 4
    assert 0.2 < changed[words].mean() < 0.3
    assert not changed[~words].any()  # EOS, and the classes of words seen once
    np.testing.assert_array_equal(drawn.offsets, plain.offsets)


def test_each_epoch_drops_other_words_and_the_same_ones_again_after_a_resume():
    _, made = batches(0.25)
    _, again = batches(0.25)
    first, second = (made.epoch(number).pairs.sources.flat for number in (0, 1))
    assert (first != second).any()
    np.testing.assert_array_equal(again.epoch(1).pairs.sources.flat, second)


def test_targets_are_kept():
    _, made = batches(0.9)
    np.testing.assert_array_equal(made.epoch(0).pairs.targets.flat, made.pairs.targets.flat)


def test_a_word_becomes_its_closest_class_that_has_an_entry():
    vocabulary = Vocabulary.train([f"{ONCE} swing swing Ping Ping cat cat"], 100, "word_classes")
    entries, ids = vocabulary.entries(), vocabulary.class_ids
    becomes = {entries[a]: entries[b] for a, b in enumerate(ids)}
    assert becomes["swing"] == "<unk>~ing"
    assert becomes["cat"] == "<unk>"
    assert becomes["<unk>~ing"] == "<unk>~ing"
    assert ids[:3].tolist() == [0, 1, 2]


def test_without_classes_every_word_becomes_unknown():
    for tokenizer, texts in (("words", SOURCES), ("word_classes", ["a cat ."] * 3)):
        vocabulary = Vocabulary.train(texts, 100, tokenizer)
        entries, ids = vocabulary.entries(), vocabulary.class_ids
        becomes = {entries[a]: entries[b] for a, b in enumerate(ids) if a > 2}
        assert becomes == dict.fromkeys((entry for entry in entries if entry), "<unk>")


def test_a_vocabulary_that_is_none_of_words_is_refused():
    sub_words = Vocabulary.train(SOURCES, 300, "bpe")
    data = DataConfig(augment="word_dropout(p=0.1)")
    with pytest.raises(UserError, match=r"config\.data\.augment=word_dropout\(p=0\.1\): .*words"):
        data_batches.make_augment(data, Vocabularies(sub_words, sub_words))


@pytest.mark.parametrize("p", [-0.1, 1, 1.5])
def test_a_probability_outside_0_to_1_is_refused(p):
    with pytest.raises(UserError, match=rf"config\.data\.augment=word_dropout\(p={p}\): "):
        batches(p)
