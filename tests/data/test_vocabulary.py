"""Every kind is lossless for any text, is the same from every training, and is saved as it is."""

import functools
import io
import itertools
import json
import os
import random
import re
import subprocess
import sys
import types
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, processors

from jformer.config import EOS
from jformer.data import vocabulary as module
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError

TEXTS = [
    "der Hund und die Katze",
    "ein Hund, 1234 Katzen",
    "the dog and the cat",
    "naïve … 日本",
] * 5
KINDS = ("byte_bpe", "bpe", "wordpiece", "unigram")
NORMALIZERS = {
    "none": None, "nfc": normalizers.NFC(), "nfkc": normalizers.NFKC(),
    "lower": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)

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
    return Vocabulary.train(iter(TEXTS), 620, kind, normalization)


@pytest.mark.parametrize("normalization", NORMALIZERS)
@every_kind
@settings(max_examples=60, deadline=None)
@given(text=any_text)
def test_any_unicode_text_survives_the_round_trip(kind, normalization, text):
    vocabulary, normalizer = trained(kind, normalization), NORMALIZERS[normalization]
    expected = normalizer.normalize_str(text) if normalizer else text
    assert vocabulary.decode(vocabulary.encode([text])[0]) == expected


@pytest.mark.parametrize("text", [*TRAPS, "a</s>b", "  two  spaces ", "x<<0x41>>", ""])
@every_kind
def test_text_that_looks_special_survives_the_round_trip(kind, text):
    ids = trained(kind).encode([text])[0]
    assert trained(kind).decode(ids) == text
    assert not set(ids) & {0, 1, 2}


@every_kind
def test_a_word_of_thousands_of_letters_survives_the_round_trip(kind):
    word = "Hund" * 1500
    assert trained(kind).decode(trained(kind).encode([word])[0]) == word


@every_kind
@settings(max_examples=60, deadline=None)
@given(words=st.lists(any_text | st.sampled_from(["der", "Hund", "12", ",", "…"]), max_size=6))
def test_the_ids_are_those_of_tokenizers_three_further(kind, words):
    text = " ".join(words)
    whole = Tokenizer.from_str(as_json(trained(kind, "nfkc"))).encode(text)
    assert trained(kind, "nfkc").encode([text])[0] == [entry + 3 for entry in whole.ids]


def as_json(vocabulary):
    return vocabulary._tokenizer.to_str()


@pytest.mark.parametrize(
    ("normalization", "text", "expected"),
    [
        ("nfc", "e\u0301 \ufb01", "é \ufb01"),
        ("nfkc", "e\u0301 \ufb01 Ⅷ", "é fi VIII"),
        ("lower", "E\u0301 \ufb01 Ⅷ Äpfel", "é \ufb01 ⅷ äpfel"),
    ],
)
@every_kind
def test_the_normalization_is_kept_in_the_file(kind, normalization, text, expected, tmp_path):
    trained(kind, normalization).save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert loaded.decode(loaded.encode([text])[0]) == expected


def test_decoding_stops_at_the_first_eos_and_needs_none():
    ids = trained().encode(["der Hund", "die Katze"])
    assert trained().decode([1, *ids[0], EOS, *ids[1], 0]) == "der Hund"
    assert trained().decode([*ids[0], *ids[1], 0, 0]) == "der Hunddie Katze"


@every_kind
def test_a_loaded_vocabulary_gives_the_same_ids_and_hash(kind, tmp_path):
    vocabulary = trained(kind)
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    text = "die Katze </s> 12 😀"
    assert loaded.encode([text])[0] == vocabulary.encode([text])[0]
    assert loaded.decode(loaded.encode([text])[0]) == text
    assert loaded.hash == vocabulary.hash != Vocabulary.train(TEXTS[:1], 600, kind).hash


@every_kind
def test_digits_stand_alone(kind):
    vocabulary = Vocabulary.train(["12 12 12"] * 9, 900, kind)
    assert len(vocabulary.encode(["1212"])[0]) == 4


@every_kind
def test_size_is_at_most_what_was_asked(kind):
    assert Vocabulary.train(TEXTS, 522, kind).size <= 522
    assert trained("byte_bpe").size < 620
    assert Vocabulary.train(TEXTS, 270).size == 270


@every_kind
def test_every_id_is_below_the_size_and_the_last_one_is_used(kind):
    vocabulary = trained(kind)
    assert json.loads(as_json(vocabulary))["added_tokens"] == []
    assert vocabulary.size == len(json.loads(as_json(vocabulary))["model"]["vocab"]) + 3


@every_kind
def test_a_size_below_the_alphabet_names_the_least_that_works(kind):
    texts = [*TEXTS, "½ 😀."]
    alphabet = len(set(unicodedata.normalize("NFKC", "".join(texts))))
    least = 3 + {"byte_bpe": 256, "wordpiece": 512, "bpe": 256 + alphabet}.get(kind, 257 + alphabet)
    message = rf"config\.data\.vocabulary_size={least - 1}: .*\b{least}\b"
    with pytest.raises(UserError, match=message):
        Vocabulary.train(iter(texts), least - 1, kind, "nfkc")
    with pytest.raises(UserError, match=rf"vocabulary_size=2: .*\b{least}\b"):
        Vocabulary.train(iter(texts), 2, kind, "nfkc")
    vocabulary = Vocabulary.train(iter(texts), least, kind, "nfkc")
    assert vocabulary.size == least
    assert vocabulary.decode(vocabulary.encode(["Ärger ☃"])[0]) == "Ärger ☃"


@every_kind
def test_an_alphabet_far_beyond_the_size_is_refused_without_training_on_it(kind):
    """Unigram's trainer would never end: it cannot prune single characters."""
    texts = ["".join(map(chr, range(start, start + 40))) for start in range(0x4E00, 0x5800, 40)]
    with pytest.raises(UserError, match=r"config\.data\.vocabulary_size=258: .*\b\d{3,}\b"):
        Vocabulary.train(iter(texts), 258, kind)


@every_kind
def test_without_texts_there_is_the_alphabet_of_bytes(kind):
    vocabulary = Vocabulary.train([], 600, kind)
    assert vocabulary.size == (515 if kind == "wordpiece" else 259)
    assert vocabulary.decode(vocabulary.encode(["Ä 1"])[0]) == "Ä 1"


@pytest.mark.process
def test_two_processes_train_the_same_vocabularies():
    """Hash seeds and thread counts differ; the words are of many lengths, so that sums differ."""
    program = f"""
import random
from jformer.data.vocabulary import Vocabulary
random.seed(1)
syllables = [a + b for a in "bdfgklmnpr" for b in ("a", "e", "io", "ü")]
texts = [
    " ".join("".join(random.choices(syllables, k=random.randrange(1, 5))) for _ in range(9))
    for _ in range(300)
] + ["x q"]
print([Vocabulary.train(texts, 800, kind).hash for kind in {KINDS}])
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": number, "RAYON_NUM_THREADS": number},
        ).stdout
        for number in ("1", "3")
    ]  # fmt: skip
    assert outputs[0] == outputs[1]
    assert len(set(re.findall("[0-9a-f]{64}", outputs[0]))) == len(KINDS)


@every_kind
def test_flat_ids_are_the_ids_of_each_text_in_order(kind, monkeypatch):
    texts = ["der Hund", "", "  die  Katze ", "der Hund", "12\n3", "der Hund"]
    monkeypatch.setattr(module, "PART", 4)
    monkeypatch.setattr(module, "WORDS_KEPT", 2)
    encoded = trained(kind).encode_flat(texts)
    ids, lengths = encoded.flat, encoded.lengths
    assert ids.dtype == lengths.dtype == np.int32
    singly = [trained(kind).encode([text])[0] for text in texts]
    assert ids.tolist() == [*itertools.chain(*singly)]
    assert lengths.tolist() == [len(one) for one in singly]
    assert trained(kind).encode(texts) == singly


def test_words_begin_where_the_pre_tokenizer_cuts():
    encoded = trained().encode_flat(["der Hund's 12", "", "un!"])
    entries = [trained().decode([token]) for token in encoded.flat]
    words = "".join(
        f"|{text}" if first else text
        for text, first in zip(entries, encoded.word_starts, strict=True)
    )
    assert words == "|der| Hund|'s| |1|2|un|!"


def test_what_is_remembered_of_words_is_bounded(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "WORDS_KEPT", 3)
    trained().save(tmp_path / "vocabulary.json")
    vocabulary = Vocabulary.load(tmp_path / "vocabulary.json")
    vocabulary.encode(["der Hund und"])
    assert len(vocabulary._numbers) == 3
    vocabulary.encode(["die Katze"])
    assert len(vocabulary._numbers) == 0


def test_threads_that_encode_at_the_same_time_get_the_ids_that_each_gets_alone(monkeypatch):
    """As in a server that translates each request in a thread of its own."""
    monkeypatch.setattr(module, "PART", 20)
    vocabulary = Vocabulary.train(["a lot of words"], 300)
    texts = [[f"word{thread}x{number} of {number}" for number in range(400)] for thread in range(4)]
    alone = [Vocabulary.train(["a lot of words"], 300).encode(each) for each in texts]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(vocabulary.encode, texts)) == alone
    assert vocabulary.encode(texts[0]) == alone[0]


def test_no_texts_have_no_ids():
    encoded = trained().encode_flat([])
    ids, lengths = encoded.flat, encoded.lengths
    assert (ids.shape, lengths.shape, trained().encode([])) == ((0,), (0,), [])
    assert (ids.dtype, lengths.dtype) == (np.int32, np.int32)


@pytest.mark.parametrize("kind", ["byte_bpe", "bpe"])
@settings(max_examples=60, deadline=None)
@given(word=st.text("aceghiHKnotu", min_size=1, max_size=12))
def test_the_merges_by_rank_give_the_ids(kind, word):
    vocabulary = learned_of_letters(kind)
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
def learned_of_letters(kind):
    """Words at random, so that which merge comes first matters for most of them."""
    generator = random.Random(2)
    words = ["".join(generator.choices("aceghiHKnotu", k=5)) for _ in range(400)]
    base = 256 if kind == "byte_bpe" else 256 + 12
    return Vocabulary.train(words, 3 + base + 90, kind)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_what_is_no_bpe_has_no_merges(kind):
    assert trained(kind).merges is None


def test_a_missing_vocabulary_is_named(tmp_path):
    with pytest.raises(UserError, match=r"vocabulary\.json: "):
        Vocabulary.load(tmp_path / "vocabulary.json")


def test_one_string_is_not_taken_for_a_list_of_letters():
    with pytest.raises(TypeError):
        trained().encode("ab")


def foreign():
    """Such as published ones are: special tokens, padding, truncation and dropout are on."""
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
def brought(tmp_path):
    foreign().save(str(tmp_path / "tokenizer.json"))
    return Vocabulary.bring(tmp_path / "tokenizer.json")


def test_special_tokens_of_a_tokenizer_brought_along_are_text(brought):
    assert brought.encode(["<s>", "b</s>"]) == [[8, 9, 10], [4, 8, 11, 9, 10]]
    assert brought.decode([6, 7]) == "<s> </s>"


def test_a_tokenizer_brought_along_neither_pads_nor_truncates_nor_drops_merges(brought):
    assert brought.encode(["ababababababab", "mask"]) == [[5] * 7, [12]]


def test_a_tokenizer_brought_along_is_saved_with_what_it_needs(brought, tmp_path):
    brought.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert loaded.encode(["ab<s>"] * 9) == brought.encode(["ab<s>"] * 9)
    assert (loaded.size, loaded.hash) == (brought.size, brought.hash) == (13, brought.hash)
    assert brought.merges.tolist() == [[3, 4, 5]]


def test_the_size_of_a_tokenizer_with_gaps_covers_its_last_id(tmp_path):
    Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a")).save(str(tmp_path / "gaps.json"))
    vocabulary = Vocabulary.bring(tmp_path / "gaps.json")
    assert vocabulary.encode(["b"])[0][0] == 10 < vocabulary.size == 11


def test_a_tokenizer_that_cuts_as_ours_but_adds_tokens_sees_whole_texts(tmp_path):
    tokenizer = Tokenizer.from_str(as_json(trained()))
    tokenizer.add_tokens(["der Hund"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary.bring(tmp_path / "tokenizer.json")
    assert vocabulary.encode(["der Hund"]) == [[vocabulary.size - 1]]


@pytest.mark.parametrize("name", ["tokenizer.json", "spm.model"])
def test_a_missing_file_to_bring_along_is_named(name, tmp_path):
    with pytest.raises(UserError, match=rf"{name}: .*tokenizer\.json\b.*SentencePiece"):
        Vocabulary.bring(tmp_path / name)


@pytest.mark.parametrize("name", ["tokenizer.json", "spm.model"])
@pytest.mark.parametrize("content", [b"", b'{"a": 0}', b"\x0a\x03\x0a\x01a", b"\xff\xfe"])
def test_a_file_that_is_no_tokenizer_says_what_is_needed(name, content, tmp_path):
    if name.endswith(".model"):
        sentencepiece_or_skip()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}: .*tokenizer\.json\b.*SentencePiece"):
        Vocabulary.bring(tmp_path / name)


def sentencepiece_or_skip():
    pytest.importorskip("google.protobuf", reason="the protobuf that sentencepiece's models need")
    return pytest.importorskip("sentencepiece", reason="the twin of what is brought along")


def made_lines(number):
    random.seed(3)
    syllables = [a + b for a in ("b", "d", "g", "sch", "K") for b in ("a", "e", "io", "ü")]
    words = ["".join(random.choices(syllables, k=random.randrange(1, 5))) for _ in range(150)]
    words += ["Ka be"] * 30  # for a piece across a space
    return [" ".join(random.choices(words, k=7)) + random.choice(".!?") for _ in range(number)]


@functools.cache
def sentencepiece_model(**options):
    output = io.BytesIO()
    sentencepiece_or_skip().SentencePieceTrainer.Train(
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
def test_a_sentencepiece_model_gives_its_own_ids_and_text(model_type, options, tmp_path):
    content = sentencepiece_model(
        model_type=model_type, vocab_size=390 if "byte_fallback" in options else 130, **options
    )
    (tmp_path / "spm.model").write_bytes(content)
    brought = Vocabulary.bring(tmp_path / "spm.model")
    twin = sentencepiece_or_skip().SentencePieceProcessor(model_proto=content)
    odd = [
        "", " a", "  Ka  be ", "Ka\n  be\n", "▁ba", "a<sep>Kaba <sep> be", "<s></s> <unk>",
        "<0x41>", "😀😀 日 😀", "ﬁ①½", "e\u0301", "\t", "bQQQa",
    ]  # fmt: skip
    for text in odd + made_lines(400):
        ids = twin.encode(text)
        assert brought.encode([text])[0] == [i + 3 for i in ids], text
        if not text.startswith("▁"):  # sentencepiece drops this as if it were a space
            assert brought.decode([i + 3 for i in ids]) == twin.decode(ids)
    assert brought.size == twin.get_piece_size() + 3
    assert (brought.merges is None) == (model_type == "unigram")


def test_a_run_needs_no_sentencepiece(tmp_path, monkeypatch):
    (tmp_path / "spm.model").write_bytes(sentencepiece_model(model_type="bpe", vocab_size=150))
    brought = Vocabulary.bring(tmp_path / "spm.model")
    brought.save(tmp_path / "vocabulary.json")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert loaded.encode(made_lines(9)) == brought.encode(made_lines(9))


@pytest.mark.parametrize("options", [{"model_type": "char"}, {"treat_whitespace_as_suffix": True}])
def test_a_sentencepiece_model_that_cannot_be_rebuilt_is_refused(options, tmp_path):
    content = sentencepiece_model(hard_vocab_limit=False, vocab_size=100, **options)
    (tmp_path / "spm.model").write_bytes(content)
    with pytest.raises(UserError, match=r"spm\.model: .*Unigram\b.*BPE\b"):
        Vocabulary.bring(tmp_path / "spm.model")


def test_without_sentencepiece_its_packages_are_named(tmp_path, monkeypatch):
    (tmp_path / "spm.model").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    message = rf"^{tmp_path}/spm\.model: .*pip install sentencepiece protobuf"
    with pytest.raises(UserError, match=message):
        Vocabulary.bring(tmp_path / "spm.model")


def settings_of(**changes):
    defaults = {
        "vocabulary_size": 600, "joint_vocabulary": True, "tokenizer": "byte_bpe",
        "normalization": "none", "vocabulary": "", "source_vocabulary": "",
        "target_tokenizer": "same",
    }  # fmt: skip
    return types.SimpleNamespace(**{**defaults, **changes})


def pairs():
    return (("the dog barks", "der Hund bellt") for _ in range(9))


def test_a_joint_vocabulary_knows_both_sides_and_is_one():
    both = Vocabularies.train(pairs, settings_of())
    assert both.source is both.target
    assert [len(ids) for ids in both.source.encode(["the barks", "der bellt"])] == [2, 2]


def test_two_vocabularies_know_one_side_each(tmp_path):
    both = Vocabularies.train(pairs, settings_of(joint_vocabulary=False))
    assert [len(both.source.encode([text])[0]) for text in ("the dog", "der Hund")] == [2, 8]
    assert [len(both.target.encode([text])[0]) for text in ("the dog", "der Hund")] == [7, 2]
    both.save(tmp_path)
    loaded = Vocabularies.load(tmp_path, joint=False)
    assert loaded.hash == both.hash == f"{both.source.hash} {both.target.hash}"


def test_vocabularies_are_of_the_kind_and_the_normalization_asked_for():
    both = Vocabularies.train(pairs, settings_of(tokenizer="unigram", normalization="nfkc"))
    assert both.target.merges is None
    assert both.target.decode(both.target.encode(["\ufb01"])[0]) == "fi"


def test_vocabularies_brought_along_are_not_trained(tmp_path):
    foreign().save(str(tmp_path / "tokenizer.json"))
    trained("bpe").save(tmp_path / "source.json")
    given_files = {"vocabulary": f"{tmp_path}/tokenizer.json"}
    joint = Vocabularies.train(pairs, settings_of(**given_files))
    assert joint.source is joint.target
    assert joint.target.encode(["ab"]) == [[5]]
    given_files["source_vocabulary"] = f"{tmp_path}/source.json"
    both = Vocabularies.train(pairs, settings_of(joint_vocabulary=False, **given_files))
    assert (both.source.hash, both.target.hash) == (trained("bpe").hash, joint.target.hash)


def test_words_are_entries_and_all_others_one():
    vocabulary = Vocabulary.train(["(S 1 (NP 2 )NP )S"], 260, "words")
    assert vocabulary.decode(vocabulary.encode(["(NP 1 2 3 )NP"])[0]) == "(NP 1 2 <unk> )NP"


@pytest.mark.parametrize("normalization", ["none", "lower"])
def test_rare_words_are_classes_by_shape_and_ending(normalization, tmp_path):
    once = ["walking", "talking", "singing", "1-Hour", "2-Hour", "3-Hour", "4-Hour", "bringing"]
    texts = [f"the dog {word}  the dog" for word in once]
    vocabulary = Vocabulary.train(texts, 260, "word_classes", normalization)
    vocabulary.save(tmp_path / "vocabulary.json")
    for each in (vocabulary, Vocabulary.load(tmp_path / "vocabulary.json")):
        ids = each.encode(["the dog smoking", "smoking  9-hour walking", "Xyz"])
        found = [each.decode(row) for row in ids]
        assert found[0] == "the dog <unk>~ing"
        assert found[1] == "<unk>~ing <unk>#-~hour <unk>~ing"  # two spaces, and words seen once
        assert found[2] == "<unk>"  # no class of words seen is its own
    capitals = {"none": "<unk>", "lower": "the"}[normalization]
    assert vocabulary.decode(vocabulary.encode(["THE dog"])[0]) == f"{capitals} dog"


def test_classes_of_capitals_alone_serve_unknown_words():
    once = "Anna Berta Clara Emma Hanna the the"
    vocabulary = Vocabulary.train([once], 260, "word_classes")
    assert vocabulary.decode(vocabulary.encode(["Paula"])[0]) == "<unk>^~a"


def test_the_entry_of_unknown_words_stands_once_and_no_id_is_left_out():
    vocabulary = Vocabulary.train(["wa wb wc wd the the"], 260, "word_classes")
    assert vocabulary.entries() == [None, None, None, "<unk>", "the"]
