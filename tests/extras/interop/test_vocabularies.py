"""Vocabularies of other programs: ids and rows."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from jformer.errors import UserError
from jformer.extras.interop.vocabularies import read_vocabulary

WORDS = [f"w{n}" for n in range(9)]


def write_words(path, *words):
    path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return path


def test_special_tokens_are_found_by_name_or_given_by_their_ids(tmp_path):
    named = write_words(tmp_path / "a.txt", "<s>", "</s>", "<blank>", "<unk>", *WORDS)
    other = write_words(tmp_path / "b.txt", "begin", "end", "fill", "<unk>", *WORDS)
    with pytest.raises(UserError, match="--specials="):
        read_vocabulary(other, None)
    for each in (read_vocabulary(named, None), read_vocabulary(other, (2, 0, 1))):
        assert each.vocabulary.encode(["w0 none w2"]) == [[4, 3, 6]]
        assert each.vocabulary.decode([4, 6, 2]) == "w0 w2"
        assert each.rows.tolist() == [2, 0, 1, *range(3, 13)]


def test_a_unigram_vocabulary_keeps_its_unknown_entry(tmp_path):
    """Its ids are indices of a list, which shift when the special tokens before it are removed."""
    names = ["<s>", "</s>", "<pad>", "<unk>", *WORDS]
    tokenizer = Tokenizer(models.Unigram([(name, -1.0) for name in names], 3))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    read = read_vocabulary(tmp_path / "tokenizer.json", None)
    assert read.vocabulary.encode(["w0 none w1"]) == [[4, 3, 5]]


def test_added_tokens_and_merges_keep_their_ids(tmp_path):
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "ab"]
    ids = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(ids, [("a", "b")], unk_token="<unk>"))
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    read = read_vocabulary(tmp_path / "tokenizer.json", None)
    assert read.rows.tolist() == [1, 0, 2, 3, 4, 5, 6, 7]
    assert read.rows[read.vocabulary.encode(["abba"])[0]].tolist() == [6, 5, 4]
    assert read.vocabulary.entries()[-1] == "<mask>"


def test_every_line_of_a_word_list_is_one_token(tmp_path):
    """With a space in it, or empty, too: the line's number is the row of the embedding."""
    specials = ["<s>", "</s>", "<blank>", "<unk>"]
    path = write_words(tmp_path / "a.txt", *specials, "new york", "w0", "", "w1")
    assert read_vocabulary(path, None).vocabulary.encode(["w0 w1"]) == [[5, 7]]
