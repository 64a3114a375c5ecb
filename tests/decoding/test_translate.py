"""Sentences in, sentences out: whatever the batch, the order and the lines between."""

import dataclasses

import jax
import numpy as np
import pytest

from jformer.config import DecodeConfig, ModelConfig
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.decoding.translate import source_batches, translate
from jformer.keys import RunError
from jformer.model.transformer import Transformer

CONFIG = DecodeConfig(beam_size=3, max_extra_length=4, batch_size=4)
SENTENCES = ["one two", "three", "", "four five six", "two", "  ", "ten one"]


@pytest.fixture(scope="module")
def translator():
    """An untrained model: its outputs are arbitrary, which is all that these tests need."""
    vocabulary = Vocabulary.train(SENTENCES, 300)
    vocabularies = Vocabularies(vocabulary, vocabulary)
    model = Transformer(
        ModelConfig(num_layers=1, d_model=16, d_ff=24, num_heads=2), vocabularies.target.size
    )
    tokens_11 = np.ones((1, 1), np.int32)
    params = jax.jit(model.init)(jax.random.key(0), tokens_11, tokens_11)["params"]
    # Sharper than an untrained model's near ties, which rounding would decide.
    params = jax.tree.map(lambda x: 3 * x, params)

    def run(sentences, max_length=100, change=lambda embedding: embedding, **overrides):
        config = dataclasses.replace(CONFIG, **overrides)
        changed = {**params, "embedding": change(params["embedding"])}
        return translate(model, changed, vocabularies, sentences, config, max_length)

    return run


def test_each_line_has_its_output_and_empty_stays_empty(translator):
    outputs = translator(SENTENCES)
    assert len(outputs) == len(SENTENCES)
    assert len(set(outputs)) > 2  # different sentences, different outputs
    assert [not text for text in outputs] == [not s.strip() for s in SENTENCES]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_output_does_not_depend_on_the_batch_size(translator, beam_size):
    alone = [translator([s], beam_size=beam_size)[0] for s in SENTENCES]
    for batch_size in (1, 3, 64):
        assert translator(SENTENCES, batch_size=batch_size, beam_size=beam_size) == alone


def test_output_does_not_depend_on_the_order(translator):
    assert translator(SENTENCES[::-1]) == translator(SENTENCES)[::-1]


def test_no_sentences_give_no_outputs(translator):
    assert translator([]) == []


def test_a_source_past_the_limit_is_cut_with_a_warning_that_names_it(translator, caplog):
    outputs = translator(["one", "two " * 40], max_length=12)
    assert len(outputs) == 2
    assert "sentence 2 has 41 tokens: only the first 11 are translated" in caplog.text
    assert translator(["one"], max_length=12)[0] == outputs[0]


def test_batches_hold_every_sentence_once_in_few_shapes():
    rng = np.random.default_rng(0)
    sources = {i: [7] * n for i, n in enumerate(rng.integers(1, 60, 100))}
    seen, shapes = [], set()
    for indices, source_BS in source_batches(sources, batch_size=8, max_length=60):
        seen += indices
        shapes.add(source_BS.shape)
        assert source_BS.shape[1] <= 60
        assert len(indices) <= source_BS.shape[0] <= 8
        for row, i in zip(source_BS, indices, strict=False):
            assert np.sum(row == 7) == len(sources[i])
    assert sorted(seen) == list(range(100))
    assert len(shapes) <= 9


def test_logits_that_are_not_numbers_are_an_error_and_not_a_text(translator):
    for rows in (slice(None), slice(7, 8)):  # all of the embedding, or one word of it
        with pytest.raises(RunError, match="sentence 1: the model's logits are not numbers"):
            translator(["one two"], change=lambda x, rows=rows: x.at[rows].set(np.nan))
