"""The same weights in PyTorch, with a search over lists: the same outputs and the same scores."""

import dataclasses

import numpy as np
import pytest

from jformer.config import BOS, EOS, PAD, DecodeConfig, ModelConfig
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.decoding.pool import Decoder, Request
from jformer.model.transformer import Transformer
from tests.conftest import random_params

torch = pytest.importorskip(
    "torch", reason="the extra `parity` has PyTorch: pip install -e '.[parity]'"
)
from tests.model.test_torch_twin import torch_twin, with_weights  # noqa: E402  it needs torch


def sinusoids(length, D):
    """Section 3.5 by its formula."""
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, D, 2) / D)
    table = np.empty((length, D))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return torch.tensor(table)


class Peer:
    """`torch.nn.Transformer` in float64, without a cache."""

    def __init__(self, config, params):
        self.twin, self.embedding = with_weights(torch_twin(config).double(), params, config)
        self.twin.eval()
        self.D = config.d_model

    def embed(self, rows):
        tokens = torch.tensor(rows)
        return self.embedding[tokens] * self.D**0.5 + sinusoids(tokens.shape[1], self.D)

    @torch.no_grad()
    def log_probs(self, source, histories):
        """Of the next token (W, V), of histories of the same length."""
        memory = self.twin.encoder(self.embed([[*source, EOS]] * len(histories)))
        target = self.embed([[BOS, *tokens] for tokens in histories])
        future = torch.triu(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool), 1)
        hidden = self.twin.decoder(target, memory, tgt_mask=future)[:, -1]
        return torch.log_softmax(hidden @ self.embedding.T, -1).numpy()


def greedy(peer, source, limit):
    tokens = []
    while len(tokens) < limit and tokens[-1:] != [EOS]:
        row = peer.log_probs(source, [tokens])[0]
        row[[PAD, BOS]] = -np.inf
        tokens.append(int(row.argmax()))
    return tokens


def beam_search(peer, source, limit, W, alpha):
    """The best score, by Equation 14 of Wu et al. (2016)."""
    opened, ended = [(0.0, [])], []
    for length in range(1, limit + 1):
        rows = peer.log_probs(source, [tokens for _, tokens in opened])
        rows[:, [PAD, BOS]] = -np.inf
        grown = sorted(
            (
                (total + row[token], [*tokens, int(token)])
                for (total, tokens), row in zip(opened, rows, strict=True)
                for token in np.argsort(-row)[: 2 * W]
            ),
            key=lambda item: -item[0],
        )[: 2 * W]
        penalty = ((5 + length) / 6) ** alpha
        ended += [total / penalty for total, tokens in grown[:W] if tokens[-1] == EOS]
        opened = [item for item in grown if item[1][-1] != EOS][:W]
        if ended and max(ended) >= opened[0][0] / ((5 + limit) / 6) ** alpha:
            break
    return max(ended) if ended else opened[0][0] / ((5 + limit) / 6) ** alpha


def assert_peers_agree(model, params, sources, extra, max_length):
    """The same greedy output, and the same beam-4 score within 1e-3: float32 against float64."""
    config = dataclasses.replace(model.config, dtype="float32")
    peer = Peer(config, params)
    requests = [Request(source, [], 0) for source in sources]

    def ours(beam_size):
        decode = DecodeConfig(beam_size=beam_size, max_extra_length=extra)
        decoder = Decoder((model,), (params,), decode, max_length)
        found = decoder.find(requests)
        return [found[i] for i in range(len(requests))]

    for source, found in zip(sources, ours(1), strict=True):
        tokens = found.tokens_WT[0]
        assert tokens[tokens != PAD].tolist() == greedy(peer, source, len(source) + extra)
    for source, found in zip(sources, ours(4), strict=True):
        expected = beam_search(peer, source, len(source) + extra, 4, 0.6)
        assert found.scores_W[0] == pytest.approx(expected, abs=1e-3)


def test_outputs_and_scores_are_those_of_torch():
    texts = [f"{a} {b} {c}" for a, b, c in zip("adbe", "xyzx", "mnop", strict=True)]
    vocabulary = Vocabulary.train(texts, 300)
    vocabularies = Vocabularies(vocabulary, vocabulary)
    config = ModelConfig(num_layers=1, d_model=16, d_ff=24, num_heads=2)
    model = Transformer(config, vocabulary.size)
    # Sharper than an untrained model's near ties, which rounding would decide.
    params = random_params(model, deviation=0.6)
    assert_peers_agree(model, params, vocabularies.source.encode(texts), extra=6, max_length=32)
