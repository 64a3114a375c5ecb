"""SentencePiece models give the ids and the text of `sentencepiece` itself."""

import functools
import io
import random
import sys

import pytest

from jformer.data.vocabulary import Vocabulary
from jformer.errors import UserError

pytest.importorskip("google.protobuf", reason="SentencePiece's models need it")
sentencepiece = pytest.importorskip("sentencepiece")


def made_lines(number):
    random.seed(3)
    syllables = [a + b for a in ("b", "d", "g", "sch", "K") for b in ("a", "e", "io", "ü")]
    words = ["".join(random.choices(syllables, k=random.randrange(1, 5))) for _ in range(150)]
    words += ["Ka be"] * 30  # for a piece across a space
    return [" ".join(random.choices(words, k=7)) + random.choice(".!?") for _ in range(number)]


@functools.cache
def trained(**options):
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(made_lines(300)), model_writer=output, minloglevel=2, **options
    )
    return output.getvalue()


PLAIN = {
    "byte_fallback": True, "normalization_rule_name": "identity",
    "add_dummy_prefix": False, "remove_extra_whitespaces": False,
}  # fmt: skip


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "options",
    [{}, {"remove_extra_whitespaces": False}, PLAIN, {"split_by_whitespace": False},
     {"user_defined_symbols": "<sep>,Ka"}, {"byte_fallback": True},
     {"normalization_rule_name": "identity"}],
    ids=["default", "all_spaces", "plain", "across_spaces", "user_symbols", "byte_fallback",
         "identity"],
)  # fmt: skip
def test_a_model_gives_its_own_ids_and_text(model_type, options, tmp_path, monkeypatch):
    content = trained(
        model_type=model_type, vocab_size=390 if "byte_fallback" in options else 130, **options
    )
    (tmp_path / "spm.model").write_bytes(content)
    vocabulary = Vocabulary.load(tmp_path / "spm.model")
    twin = sentencepiece.SentencePieceProcessor(model_proto=content)
    odd = [
        "", " a", "  Ka  be ", "Ka\n  be\n", "▁ba", "a<sep>Kaba <sep> be", "<s></s> <unk>",
        "<0x41>", "😀😀 日 😀", "ﬁ①½", "e\u0301", "\t", "bQQQa",
    ]  # fmt: skip
    for text in odd + made_lines(200):
        ids = twin.encode(text)
        assert vocabulary.encode([text])[0] == [i + 3 for i in ids], text
        if not text.startswith("▁"):  # sentencepiece drops this as if it were a space
            assert vocabulary.decode([i + 3 for i in ids]) == twin.decode(ids)
    assert vocabulary.size == twin.get_piece_size() + 3
    assert (vocabulary.merges is None) == (model_type == "unigram")
    vocabulary.save(tmp_path / "vocabulary.json")  # loading it does not need the package
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sentencepiece", None)
        loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert loaded.encode(odd) == vocabulary.encode(odd)


@pytest.mark.parametrize("options", [{"model_type": "char"}, {"treat_whitespace_as_suffix": True}])
def test_a_model_that_cannot_be_converted_is_refused(options, tmp_path):
    content = trained(hard_vocab_limit=False, vocab_size=100, **options)
    (tmp_path / "spm.model").write_bytes(content)
    with pytest.raises(UserError, match=r"spm\.model: .*Unigram\b.*BPE\b"):
        Vocabulary.load(tmp_path / "spm.model")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe"])
def test_a_file_that_is_not_a_model_is_named_with_what_is_needed(content, tmp_path):
    (tmp_path / "spm.model").write_bytes(content)
    with pytest.raises(UserError, match=r"spm\.model: .*tokenizer\.json\b.*SentencePiece"):
        Vocabulary.load(tmp_path / "spm.model")


def test_without_sentencepiece_its_packages_are_named(tmp_path, monkeypatch):
    (tmp_path / "spm.model").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    message = rf"^{tmp_path}/spm\.model: .*pip install sentencepiece protobuf"
    with pytest.raises(UserError, match=message):
        Vocabulary.load(tmp_path / "spm.model")
