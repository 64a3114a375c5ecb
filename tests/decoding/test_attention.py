"""Attention weights of one pair."""

import numpy as np
import pytest

from jformer.config import ModelConfig
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.decoding.attention import Attention, attention_of
from jformer.errors import UserError
from jformer.model.transformer import Transformer
from tests.conftest import random_params


def test_layers_stand_in_the_order_of_their_numbers():
    weights = {f"decoder_{n}/cross_attention": np.full((1, 2, 3), n) for n in (10, *range(10))}
    weights["encoder_0/self_attention"] = np.zeros((1, 3, 3))
    attention = Attention(weights, ["a", "b", "#2"], ["#1", "c"])
    layers = attention.layers("decoder", "cross_attention")
    assert [layer[0, 0, 0] for layer in layers] == list(range(11))
    assert attention.layers("decoder", "self_attention") == []


def test_a_text_beyond_the_table_of_positions_is_one_line():
    config = ModelConfig(
        num_layers=1, d_model=6, d_ff=5, num_heads=2, positions="learned", max_positions=7
    )
    vocabulary = Vocabulary.train(["one two three"], 270)
    model = Transformer(config, vocabulary.size)
    both = Vocabularies(vocabulary, vocabulary)
    with pytest.raises(UserError, match=r"max_positions=7\b.*11") as caught:
        attention_of(model, random_params(model), both, "one", "0123456789")
    assert "\n" not in str(caught.value)
