"""Attention weights of one pair."""

import numpy as np

from jformer.decoding.attention import Attention


def test_layers_stand_in_the_order_of_their_numbers():
    weights = {f"decoder_{n}/cross_attention": np.full((1, 2, 3), n) for n in (10, *range(10))}
    weights["encoder_0/self_attention"] = np.zeros((1, 3, 3))
    attention = Attention(weights, ["a", "b", "#2"], ["#1", "c"])
    layers = attention.layers("decoder", "cross_attention")
    assert [layer[0, 0, 0] for layer in layers] == list(range(11))
    assert attention.layers("decoder", "self_attention") == []
