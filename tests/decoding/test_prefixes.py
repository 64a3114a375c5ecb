"""The tokens with which an output can begin with its prefix, whatever vocabulary it has."""

import functools
import io

import pytest

from jformer.data.vocabulary import Vocabulary
from jformer.decoding.prefixes import begins_with, encode_prefixes, ranking

DAYS = ["Montag", "Mittwoch", "Donnerstag", "Freitag", "Samstag"]
MONTHS = ["Januar", "März", "Mai", "Juli", "Dezember"]
TEXTS = [f"{day}, {n}. {month} 2041" for day in DAYS for month in MONTHS for n in (3, 17)]
SIZES = {"byte_bpe": 340, "unigram": 340, "words": 60}


@functools.cache
def vocabulary_of(kind, folder):
    if kind in SIZES:
        return Vocabulary.train(TEXTS, SIZES[kind], kind)
    pytest.importorskip("google.protobuf", reason="SentencePiece's models need it")
    module, output = pytest.importorskip("sentencepiece"), io.BytesIO()
    module.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXTS), model_writer=output, minloglevel=2, vocab_size=70,
        hard_vocab_limit=False,
    )  # fmt: skip
    path = folder / "sentencepiece.model"
    path.write_bytes(output.getvalue())
    return Vocabulary.load(path)


@pytest.fixture(scope="module", params=[*SIZES, "sentencepiece"])
def vocabulary(request, tmp_path_factory):
    return vocabulary_of(request.param, tmp_path_factory.getbasetemp())


def beginnings(text):
    return [text[:n] for n in range(1, len(text) + 1)]


def test_a_text_can_follow_each_of_its_beginnings(vocabulary):
    order = ranking(vocabulary)
    for text in TEXTS[::7]:
        (ids,) = vocabulary.encode([text])
        for prefix in encode_prefixes(beginnings(text), vocabulary):
            given = zip(ids, prefix.ids, prefix.spans, strict=False)
            other = [(token, span) for token, forced, span in given if token != forced]
            if other:
                token, (first, stop) = other[0]
                assert first <= order.ranks_V[token] < stop


def test_what_may_take_a_tokens_place_keeps_the_prefix(vocabulary):
    order = ranking(vocabulary)
    seen = 0
    for text in beginnings("Freitag, 3. März 2041"):
        (prefix,) = encode_prefixes([text], vocabulary)
        assert len(prefix.ids) == len(prefix.spans)
        for n, span in enumerate(prefix.spans):
            for token in order.ids[slice(*span)]:
                output = vocabulary.decode([*prefix.ids[:n], token])
                if "\ufffd" not in output:  # a part of a character
                    assert begins_with(output, text, vocabulary)
                    seen += 1
    assert seen > 20


def test_a_space_at_the_end_of_a_prefix_begins_another_word(vocabulary):
    order = ranking(vocabulary)
    (prefix,) = encode_prefixes(["Freitag, 3. Ma "], vocabulary)
    for token in order.ids[slice(*prefix.spans[-1])]:
        assert not vocabulary.decode([*prefix.ids[:-1], token]).startswith("Freitag, 3. Mai")
