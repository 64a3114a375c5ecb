"""The tokens with which an output can begin with its prefix, for each kind of vocabulary."""

import io

import numpy as np
import pytest

from jformer.data.vocabulary import Vocabulary
from jformer.decoding.constraints import encode_prefix, ranking

DAYS = ["Montag", "Mittwoch", "Donnerstag", "Freitag", "Samstag"]
MONTHS = ["Januar", "März", "Mai", "Juli", "Dezember"]
TEXTS = [f"{day}, {n}. {month} 2041" for day in DAYS for month in MONTHS for n in (3, 17)]


@pytest.fixture(scope="module", params=["byte_bpe", "unigram", "sentencepiece"])
def vocabulary(request, tmp_path_factory):
    if request.param != "sentencepiece":
        return Vocabulary.train(TEXTS, 340, request.param)
    pytest.importorskip("google.protobuf", reason="SentencePiece's models need it")
    module, output = pytest.importorskip("sentencepiece"), io.BytesIO()
    module.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXTS), model_writer=output, minloglevel=2, vocab_size=70,
        hard_vocab_limit=False,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("vocabulary") / "sentencepiece.model"
    path.write_bytes(output.getvalue())
    return Vocabulary.load(path)


def beginnings(prefix, vocabulary):
    """The outputs that end with a token that may replace one of a prefix."""
    ids, spans = encode_prefix(prefix, vocabulary)
    ranks_V = ranking(vocabulary).ranks_V
    for n, (first, stop) in enumerate(spans):
        for token in np.flatnonzero((first <= ranks_V) & (ranks_V < stop)):
            yield vocabulary.decode([*ids[:n], token])


def test_all_tokens_that_may_replace_one_of_a_prefix_keep_the_prefix(vocabulary):
    text, seen = "Freitag, 3. März 2041", 0
    for end in range(1, len(text) + 1):
        for output in beginnings(text[:end], vocabulary):
            if "\ufffd" not in output:  # a part of a character
                assert output.startswith(text[:end].rstrip())
                seen += 1
    assert seen > len(text)


def test_a_text_can_follow_each_of_its_beginnings(vocabulary):
    ranks_V = ranking(vocabulary).ranks_V
    for text in TEXTS[::7]:
        (ids,) = vocabulary.encode([text])
        for end in range(1, len(text) + 1):
            prefix = zip(ids, *encode_prefix(text[:end], vocabulary), strict=False)
            others = [(token, span) for token, forced, span in prefix if token != forced]
            for token, (first, stop) in others[:1]:
                assert first <= ranks_V[token] < stop


def test_a_space_at_the_end_of_a_prefix_begins_another_word(vocabulary):
    outputs = [*beginnings("Freitag, 3. Ma ", vocabulary)]
    assert len(outputs) > 2
    assert all(output.split()[2] == "Ma" for output in outputs)


def test_an_empty_prefix_forces_nothing(vocabulary):
    assert encode_prefix("", vocabulary) == ([], [])
