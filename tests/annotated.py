"""A twin of The Annotated Transformer in PyTorch, written from its description.

Its parameters have the names and shapes that a state dict of that model has.
"""

import math

import torch
from torch import nn


class SampleNorm(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        deviation = (centred.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)).sqrt()
        return self.a_2 * centred / (deviation + 1e-6) + self.b_2


class Attention(nn.Module):
    def __init__(self, D, heads):
        super().__init__()
        self.heads = heads
        self.linears = nn.ModuleList(nn.Linear(D, D) for _ in range(4))

    def forward(self, x, memory, mask):
        """Attend where `mask`, of (B, Q or 1, M), is True."""
        query, key, value, out = self.linears

        def split(y):
            return y.unflatten(-1, (self.heads, -1)).movedim(-2, 1)

        q, k, v = split(query(x)), split(key(memory)), split(value(memory))
        logits = torch.einsum("bhqk,bhmk->bhqm", q, k) / math.sqrt(q.shape[-1])
        weights = logits.masked_fill(~mask[:, None], -1e9).softmax(-1)
        return out(torch.einsum("bhqm,bhmk->bqhk", weights, v).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, D, F):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(D, F), nn.Linear(F, D)

    def forward(self, x):
        return self.w_2(self.w_1(x).clamp(min=0))


class Sublayer(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.norm = SampleNorm(D)

    def forward(self, x, branch):
        return x + branch(self.norm(x))


class Layer(nn.Module):
    def __init__(self, D, F, heads, decoder):
        super().__init__()
        self.self_attn = Attention(D, heads)
        if decoder:
            self.src_attn = Attention(D, heads)
        self.feed_forward = FeedForward(D, F)
        self.sublayer = nn.ModuleList(Sublayer(D) for _ in range(3 if decoder else 2))

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, mask))
        if memory is not None:
            x = self.sublayer[1](x, lambda y: self.src_attn(y, memory, memory_mask))
        return self.sublayer[-1](x, self.feed_forward)


class Stack(nn.Module):
    def __init__(self, D, F, heads, layers, decoder):
        super().__init__()
        self.layers = nn.ModuleList(Layer(D, F, heads, decoder) for _ in range(layers))
        self.norm = SampleNorm(D)

    def forward(self, x, *others):
        for layer in self.layers:
            x = layer(x, *others)
        return self.norm(x)


class Table(nn.Module):
    def __init__(self, V, D):
        super().__init__()
        self.lut = nn.Embedding(V, D)

    def forward(self, tokens):
        return self.lut(tokens) * math.sqrt(self.lut.weight.shape[1])


class Positions(nn.Module):
    def __init__(self, D, longest=50):
        super().__init__()
        angles = [[p / 10000 ** (2 * (i // 2) / D) for i in range(D)] for p in range(longest)]
        table = torch.tensor(angles, dtype=torch.float64)
        table[:, 0::2], table[:, 1::2] = table[:, 0::2].sin(), table[:, 1::2].cos()
        self.register_buffer("pe", table[None].float())

    def forward(self, x):
        return x + self.pe[:, : x.shape[1]]


class Generator(nn.Module):
    def __init__(self, D, V):
        super().__init__()
        self.proj = nn.Linear(D, V)


class AnnotatedTransformer(nn.Module):
    def __init__(self, V_source, V_target, layers, D, F, heads, pad):
        super().__init__()
        self.pad = pad
        self.encoder = Stack(D, F, heads, layers, decoder=False)
        self.decoder = Stack(D, F, heads, layers, decoder=True)
        self.src_embed = nn.Sequential(Table(V_source, D), Positions(D))
        self.tgt_embed = nn.Sequential(Table(V_target, D), Positions(D))
        self.generator = Generator(D, V_target)

    def forward(self, source, target):
        """Return the logits, before the softmax of their generator."""
        seen = (source != self.pad)[:, None]
        memory = self.encoder(self.src_embed(source), seen)
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
        mask = (target != self.pad)[:, None] & causal
        return self.generator.proj(self.decoder(self.tgt_embed(target), mask, memory, seen))


def with_random_weights(model, seed=0):
    """Draw all parameters: zeros and ones of the initializers would hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_scale = name.endswith("a_2") or ("norm" in name and name.endswith("weight"))
            parameter.copy_(1 + 0.1 * noise if is_scale else 0.25 * noise)
    return model.eval()
