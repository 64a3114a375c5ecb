"""The Transformer's forward pass once more, in plain numpy loops: an independent twin.

One sentence, one head, one position at a time, in float64, from the paper's formulas. No JAX.
"""

import math

import numpy as np


def layer_norm(x_D, norm):
    deviation = math.sqrt(np.mean((x_D - np.mean(x_D)) ** 2) + 1e-6)
    return (x_D - np.mean(x_D)) / deviation * norm["scale"] + norm["bias"]


def softmax(logits):
    weights = [math.exp(z - max(logits)) for z in logits]
    return [w / sum(weights) for w in weights]


def attention(x_QD, memory_MD, may_see, params):
    """`may_see(q, m)` says whether query q may read memory m."""
    d_model, heads, d_k = params["query"]["kernel"].shape
    result = np.zeros((len(x_QD), d_model))
    for h in range(heads):
        w_q, w_k, w_v = (params[name]["kernel"][:, h] for name in ("query", "key", "value"))
        for q in range(len(x_QD)):
            seen = [m for m in range(len(memory_MD)) if may_see(q, m)]
            logits = [(x_QD[q] @ w_q) @ (memory_MD[m] @ w_k) / math.sqrt(d_k) for m in seen]
            mixture = sum(
                w * (memory_MD[m] @ w_v) for w, m in zip(softmax(logits), seen, strict=True)
            )
            result[q] += mixture @ params["out"]["kernel"][h]
    return result


def feed_forward(x_LD, params):
    rows = []
    for x_D in x_LD:
        hidden = np.maximum(x_D @ params["ffn_in"]["kernel"] + params["ffn_in"]["bias"], 0)
        rows.append(hidden @ params["ffn_out"]["kernel"] + params["ffn_out"]["bias"])
    return np.array(rows)


def residual(x_LD, sublayer_LD, params):
    return np.array(
        [layer_norm(x + y, params["norm"]) for x, y in zip(x_LD, sublayer_LD, strict=True)]
    )


def embed(tokens_L, embedding_VD):
    d_model = embedding_VD.shape[1]
    rows = []
    for position, token in enumerate(tokens_L):
        encoding = np.zeros(d_model)
        for i in range(d_model // 2):
            angle = position / 10000 ** (2 * i / d_model)
            encoding[2 * i], encoding[2 * i + 1] = math.sin(angle), math.cos(angle)
        rows.append(embedding_VD[token] * math.sqrt(d_model) + encoding)
    return np.array(rows)


def forward(params, num_layers, source_S, target_T):
    """Logits (T, V) for one sentence pair; source padding is 0."""
    x = embed(source_S, params["embedding"])
    not_padding = [token != 0 for token in source_S]
    for n in range(num_layers):
        layer = params[f"encoder_{n}"]
        y = attention(x, x, lambda q, m: not_padding[m], layer["self_attention"])
        x = residual(x, y, layer["self_attention_residual"])
        x = residual(x, feed_forward(x, layer["feed_forward"]), layer["feed_forward_residual"])
    memory = x
    x = embed(target_T, params["embedding"])
    for n in range(num_layers):
        layer = params[f"decoder_{n}"]
        y = attention(x, x, lambda q, m: m <= q, layer["self_attention"])
        x = residual(x, y, layer["self_attention_residual"])
        y = attention(x, memory, lambda q, m: not_padding[m], layer["cross_attention"])
        x = residual(x, y, layer["cross_attention_residual"])
        x = residual(x, feed_forward(x, layer["feed_forward"]), layer["feed_forward_residual"])
    return x @ params["embedding"].T
