"""Texts in, texts out: whatever the batch, the order and the lines between."""

import dataclasses

import jax
import numpy as np
import pytest

from jformer.config import EOS, DecodeConfig, ModelConfig
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.decoding.pool import Decoder
from jformer.decoding.translate import hypotheses, warm_up
from jformer.errors import RunError
from jformer.model.transformer import Transformer
from tests.conftest import random_params

# Lengths and numbers of sentences are chosen so that few shapes are compiled.
CONFIG = DecodeConfig(beam_size=3, n_best=3, max_extra_length=4, batch_size=16)
SENTENCES = ["one two", "three", "", "four five six", "two", "  ", "ten one"]
MODEL = ModelConfig(num_layers=1, d_model=16, d_ff=24, num_heads=2)


class Translator:
    """An untrained model: its outputs are arbitrary, which is all that these tests need."""

    def __init__(self, sentences=SENTENCES, size=300, kind="byte_bpe"):
        vocabulary = Vocabulary.train(sentences, size, kind)
        self.vocabularies = Vocabularies(vocabulary, vocabulary)
        self.model = Transformer(MODEL, vocabulary.size)
        # Sharper than an untrained model's near ties, which rounding would decide.
        self.params = random_params(self.model, deviation=0.8)

    def __call__(self, texts, **options):
        return [best.text for best, *_ in self.find(texts, **options)]

    def find(self, texts, prefixes=None, max_length=100, params=None, **decode):
        config = dataclasses.replace(CONFIG, **decode)
        members = (self.model,), (params or self.params,)
        decoder = Decoder(*members, config, max_length)
        return hypotheses(decoder, self.vocabularies, texts, prefixes)

    def with_rows(self, rows, value):
        """The parameters with rows of the embedding set."""
        return {**self.params, "embedding": self.params["embedding"].at[rows].set(value)}

    def that_likes(self, token, how_much):
        """The parameters with a last norm that adds a direction, in which a token's row lies."""
        changed = jax.tree.map(lambda x: x, self.params)
        norm = changed["decoder_0"]["feed_forward_residual"]["norm"]
        row_D = changed["embedding"][token]
        norm["bias"] = norm["bias"] + how_much * row_D / np.sum(row_D**2)
        return changed

    def ids(self, text):
        return self.vocabularies.source.encode([text])[0]


@pytest.fixture(scope="module")
def translator():
    return Translator()


def test_output_does_not_depend_on_the_batch_size_or_the_order(translator):
    alone = [translator([s])[0] for s in SENTENCES]
    for batch_size in (3, 16):
        assert translator(SENTENCES, batch_size=batch_size) == alone
    assert translator(SENTENCES[::-1]) == alone[::-1]
    assert len(set(alone)) > 2  # different sentences, different outputs
    assert [not text for text in alone] == [not s.strip() for s in SENTENCES]


def test_a_source_that_is_too_long_is_cut_and_reported(translator, caplog):
    long = "one two three four five six seven eight nine ten " * 3
    cut = translator.vocabularies.source.decode(translator.ids(long)[:31])
    found = translator.find(["three", long, cut], max_length=32)
    assert found[1] == found[2]
    (warning,) = caplog.messages
    assert long[:40] in warning


def test_outputs_begin_with_their_prefixes_also_those_of_blank_lines(translator):
    prefixes = ["six", "", "two one", "five", "  ", "", "ten three"]
    found = [every[0] for every in translator.find(SENTENCES, prefixes)]
    assert all(one.text.startswith(p) for one, p in zip(found, prefixes, strict=True))
    assert [found[n].text for n in (2, 5)] == ["two one", ""]
    assert [found[n].text for n in (1,)] == translator(SENTENCES[1:2])
    for one, prefix in zip(found, prefixes, strict=True):
        if one.source:
            ids = translator.ids(prefix)[:-1]  # the last may be another token that begins with it
            assert one.output[: len(ids)] == ids
            assert len(one.output) > len(ids) or one.complete
    assert translator.find(SENTENCES, [""] * len(SENTENCES)) == translator.find(SENTENCES)


@pytest.mark.parametrize("search", ["beam", "sampling"])
def test_a_prefix_may_end_within_a_word_or_with_a_space(translator, search, caplog):
    prefixes = ["seven eig", "seven ", "sev", "one two three " * 5, "\u00fc", " "]
    found = translator.find(["two"] * 6, prefixes, search=search)
    for prefix, ones in zip(prefixes, found, strict=True):
        assert len(ones) > 1
        assert all(one.text.startswith(prefix) for one in ones)
    assert not caplog.records


def test_an_output_without_an_end_stops_at_its_limit_and_is_kept_whole(translator):
    endless = translator.that_likes(EOS, -100)
    found = translator.find(["one two", "four"], params=endless)
    for text, every in zip(["one two", "four"], found, strict=True):
        for one in every:
            assert not one.complete
            assert len(one.output) == len(translator.ids(text)) + 4
            assert one.text == translator.vocabularies.target.decode(one.output)
            assert np.isfinite(one.score)


def test_an_output_that_ends_at_once_is_an_empty_text(translator):
    ended = translator.that_likes(EOS, 100)
    for every in translator.find(["one two", "four"], params=ended):
        best = every[0]
        assert (best.text, best.complete, best.output) == ("", True, [])
        assert best.log_prob == pytest.approx(0, abs=1e-3)  # it is nearly certain


def test_samples_of_a_text_depend_on_it_alone(translator):
    def samples(texts):
        found = translator.find(texts, search="sampling")
        return [[one.text for one in every] for every in found]

    texts = ["five six", *SENTENCES, "five six"]
    found = samples(texts)
    assert [len(every) for every in found] == [3 if text.strip() else 1 for text in texts]
    assert found[0] == found[-1] == samples(texts[:1])[0]
    assert len({text for every in found for text in every}) > 5


def test_a_choice_selects_one_of_the_n_best_of_each_text(translator):
    drawn = {"search": "sampling", "n_best": 7}
    candidates = translator.find(SENTENCES, **drawn)
    chosen = translator.find(SENTENCES, choose="mbr", **drawn)
    assert all(one in every for [one], every in zip(chosen, candidates, strict=True))
    assert [one for [one] in chosen] != [every[0] for every in candidates]


@pytest.mark.parametrize("search", ["beam", "sampling"])
@pytest.mark.parametrize("rows", [slice(None), slice(7, 8)], ids=["all", "one"])
def test_logits_that_are_not_numbers_are_an_error_and_not_a_text(translator, search, rows):
    """NaN in all of the embedding, or in one word of it; in the text that is not blank."""
    for value in (np.nan, np.inf):
        params = translator.with_rows(rows, value)
        with pytest.raises(RunError, match=r"^'one two': "):
            translator.find(["", "one two"], search=search, params=params)


def test_after_a_warm_up_no_request_of_its_sizes_compiles_anything(translator):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    config = dataclasses.replace(CONFIG, beam_size=2, n_best=1)
    decoder = Decoder((translator.model,), (translator.params,), config, 100)
    warm_up(decoder, translator.vocabularies, lengths=[15, 20], batch=5)
    assert compiled
    compiled.clear()
    for number in (1, 2, 3, 5):
        for text in ("one", "four five six one two"):
            hypotheses(decoder, translator.vocabularies, [text] * number, ["se"] * number)
    assert compiled == []
