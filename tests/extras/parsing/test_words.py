"""Words as tokens, classes of unknown words, and word dropout that trains the classes."""

import dataclasses

import numpy as np
import pytest

from jformer.components import find
from jformer.config import Config, DataConfig
from jformer.data.batches import make_batches
from jformer.data.corpora import Split
from jformer.data.tokens import tokenize
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError

# Words that occur once and end alike make classes; the other words occur more than once.
ONCE = "walking jumping singing talking reading flying"
SOURCES = [f"the cat likes {ONCE} .", "the dog likes the cat .", "a dog .", *["a cat ."] * 300]
TARGETS = ["(S 1 2 )S"] * len(SOURCES)
CLASSES = DataConfig(scorer="trees", tokenizer="word_classes", joint_vocabulary=False)


def read(sentence, vocabulary):
    """The source's tokens as the model reads them."""
    vocabularies = Vocabularies(vocabulary, vocabulary)
    source = find("", "scorer", "trees").source(sentence, vocabularies)
    return vocabulary.decode(vocabulary.encode([source])[0])


def test_rare_words_are_classes_by_shape_and_ending(tmp_path):
    once = ["walking", "talking", "singing", "1-Hour", "2-Hour", "3-Hour", "4-Hour", "bringing"]
    once += ["Anna", "Berta", "Clara", "Emma"]
    trained = Vocabulary.train([f"the dog {word}  the dog" for word in once], 260, "word_classes")
    trained.save(tmp_path / "vocabulary.json")
    vocabulary = Vocabulary.load(tmp_path / "vocabulary.json")
    assert read("the dog smoking", vocabulary) == "the dog <unk>~ing"
    assert read("smoking  9-hour walking", vocabulary) == "<unk>~ing <unk>#-~hour <unk>~ing"
    assert read("Paula Xyz", vocabulary) == "<unk>^~a <unk>^"
    assert read("smoking", Vocabulary.train(["a"], 260)) == "smoking"  # sub-words need no classes


def batches(p, **changes):
    data = dataclasses.replace(CLASSES, augment=f"word_dropout(p={p})", max_length=64, **changes)
    source = Vocabulary.train(SOURCES, 300, data.tokenizer)
    vocabularies = Vocabularies(source, Vocabulary.train(TARGETS, 100, "words"))
    pairs, config = tokenize(Split(SOURCES, TARGETS), vocabularies, data), Config(data=data)
    rows = np.arange(len(SOURCES), dtype=np.int32)
    return vocabularies, make_batches(config, pairs, rows, vocabularies)


def test_each_source_word_is_replaced_by_its_class_with_the_probability():
    vocabularies, made = batches(0.25)
    plain, drawn = made.pairs.sources, made.epoch(0).pairs.sources
    changed = drawn.flat != plain.flat
    entries = vocabularies.source.entries()
    assert "<unk>~ing" in {entries[token] for token in plain.flat}
    pairs = zip(plain.flat[changed], drawn.flat[changed], strict=True)
    replaced = {(entries[word], entries[other]) for word, other in pairs}
    same = ("the", "a", "cat", "likes", ".")  # no class of a rare word is like these
    assert replaced == {(word, "<unk>") for word in same} | {("dog", "<unk>~g")}
    words = plain.flat >= 4
    assert 0.2 < changed[words].mean() < 0.3
    assert not changed[~words].any()  # EOS, and the classes of rare words
    np.testing.assert_array_equal(drawn.offsets, plain.offsets)
    np.testing.assert_array_equal(made.epoch(0).pairs.targets.flat, made.pairs.targets.flat)
    assert (made.epoch(1).pairs.sources.flat != drawn.flat).any()


def test_without_classes_a_dropped_word_becomes_unknown():
    vocabularies, made = batches(0.9, tokenizer="words")
    plain, drawn = made.pairs.sources.flat, made.epoch(0).pairs.sources.flat
    assert {vocabularies.source.entries()[i] for i in drawn[drawn != plain]} == {"<unk>"}


def test_subwords_are_refused():
    with pytest.raises(UserError, match=r"config\.data\.augment=word_dropout\(p=0\.1\): .*words"):
        batches(0.1, tokenizer="byte_bpe")
