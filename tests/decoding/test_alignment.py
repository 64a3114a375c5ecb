"""From weights between tokens to links between words."""

import numpy as np
import pytest

from jformer.data.vocabulary import Vocabulary
from jformer.decoding.alignment import align, pharaoh, words_of

TEXTS = ["the old house", "das alte Haus", "überraschend 3.5"]


@pytest.fixture(scope="module", params=["byte_bpe", "unigram"])
def vocabulary(request):
    return Vocabulary.train(TEXTS, 300, request.param)


def test_each_token_belongs_to_the_word_in_which_it_ends(vocabulary):
    for text in TEXTS:
        (ids,) = vocabulary.encode([text])
        words = words_of(ids, vocabulary)
        assert sorted(set(words.tolist())) == list(range(len(text.split())))
        assert np.all(np.diff(words) >= 0)
        for number, word in enumerate(text.split()):
            own = [token for token, n in zip(ids, words, strict=True) if n == number]
            assert vocabulary.decode(own).strip() == word


def test_white_space_before_the_first_word_belongs_to_none():
    vocabulary = Vocabulary.train(TEXTS, 270)
    (ids,) = vocabulary.encode(["  old"])
    words = words_of(ids, vocabulary)
    assert words[0] == -1
    assert words[-1] == 0


def test_a_target_word_is_linked_to_the_source_word_that_its_tokens_attend_to_most():
    #  source words   0    1    1    2   EOS
    weights_TS = np.array(
        [
            [0.1, 0.2, 0.2, 0.4, 0.1],  # word 0: 1 with .4, 2 with .4 ...
            [0.1, 0.1, 0.3, 0.1, 0.4],  # ... and its second token decides for 1
            [0.6, 0.2, 0.0, 0.1, 0.1],  # word 1: 0
            [0.0, 0.0, 0.0, 0.1, 0.9],  # word 2: 2, as EOS is no word
            [0.9, 0.1, 0.0, 0.0, 0.0],  # the end
        ]
    )
    links = align(weights_TS, np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2]))
    assert links == [(0, 1), (1, 0), (2, 2)]
    assert pharaoh(links) == "0-1 1-0 2-2"


def test_tokens_of_no_word_link_nothing():
    weights_TS = np.array([[0.9, 0.1, 0.0], [0.7, 0.2, 0.1], [0.5, 0.5, 0.0]])
    assert align(weights_TS, np.array([-1, 0]), np.array([-1, 0])) == [(0, 0)]


@pytest.mark.parametrize(("target", "source"), [([], [0]), ([0], []), ([], []), ([-1], [0])])
def test_where_a_side_has_no_words_there_are_no_links(target, source):
    weights_TS = np.full((len(target) + 1, len(source) + 1), 0.5)
    links = align(weights_TS, np.array(target, int), np.array(source, int))
    assert links == []
    assert pharaoh(links) == ""
