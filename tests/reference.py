"""The Transformer's forward pass once more, in plain numpy loops: an independent twin.

One sentence, one head, one position at a time, in float64, from the papers' formulas. No JAX.
`config` has the names of the schema; what its keys choose is written out here once more.
"""

import math

import numpy as np

from jformer.components import arguments, name_of


def layer_norm(x_D, norm, config):
    centred_D, epsilon = x_D - np.mean(x_D), arguments("norm", config.norm)["epsilon"]
    if name_of(config.norm) == "sample_layer_norm":
        deviation = math.sqrt(sum(centred_D**2) / (len(x_D) - 1)) + epsilon
    else:
        deviation = math.sqrt(np.mean(centred_D**2) + epsilon)
    return centred_D / deviation * norm["scale"] + norm["bias"]


def softmax(logits):
    weights = [math.exp(z - max(logits)) for z in logits]
    return [w / sum(weights) for w in weights]


def turned(x_K, position):
    """As complex numbers: each pair of columns times e^(i angle)."""
    result = np.zeros(len(x_K))
    for i in range(len(x_K) // 2):
        angle = position / 10000 ** (2 * i / len(x_K))
        number = complex(x_K[2 * i], x_K[2 * i + 1]) * complex(math.cos(angle), math.sin(angle))
        result[2 * i], result[2 * i + 1] = number.real, number.imag
    return result


def attention(x_QD, memory_MD, may_see, params, config, positions="none"):
    """`may_see(q, m)` says whether query q may read memory m."""
    d_model, heads, d_k = params["query"]["kernel"].shape
    biased, scaled = config.attention_bias, arguments("attention", config.attention)["scaled"]
    result = np.zeros((len(x_QD), d_model))
    if config.out_projection and biased:
        result = result + params["out"]["bias"]

    def logit(query_K, key_K, h, q, m):
        if positions == "rotary":
            query_K, key_K = turned(query_K, q), turned(key_K, m)
        product = query_K @ key_K / (math.sqrt(d_k) if scaled else 1)
        if positions == "alibi":
            product -= 2 ** (-8 * (h + 1) / heads) * abs(m - q)
        return product

    for h in range(heads):
        w_q, w_k, w_v = (params[name]["kernel"][:, h] for name in ("query", "key", "value"))
        b_q, b_k, b_v = (
            params[name]["bias"][h] if biased else 0 for name in ("query", "key", "value")
        )
        for q in range(len(x_QD)):
            seen = [m for m in range(len(memory_MD)) if may_see(q, m)]
            query_K = x_QD[q] @ w_q + b_q
            logits = [logit(query_K, memory_MD[m] @ w_k + b_k, h, q, m) for m in seen]
            mixture = 0
            for weight, m in zip(softmax(logits), seen, strict=True):
                value = memory_MD[m] @ w_v + b_v
                mixture = mixture + weight * value
            if config.out_projection:
                result[q] += mixture @ params["out"]["kernel"][h]
            else:
                result[q, h * len(mixture) : (h + 1) * len(mixture)] = mixture
    return result


def feed_forward(x_LD, params, config):
    rows = []
    for x_D in x_LD:
        hidden = x_D @ params["ffn_in"]["kernel"] + params["ffn_in"]["bias"]
        if config.activation == "relu":
            hidden = np.maximum(hidden, 0)
        elif config.activation == "silu":
            hidden = np.array([z / (1 + math.exp(-z)) for z in hidden])
        else:
            hidden = np.array([z * (1 + math.erf(z / math.sqrt(2))) / 2 for z in hidden])
        rows.append(hidden @ params["ffn_out"]["kernel"] + params["ffn_out"]["bias"])
    return np.array(rows)


def normalized(x_LD, norm, config):
    return np.array([layer_norm(x_D, norm, config) for x_D in x_LD])


def residual(x_LD, sublayer, params, config):
    if config.norm_position == "pre":
        return x_LD + sublayer(normalized(x_LD, params["norm"], config))
    return normalized(x_LD + sublayer(x_LD), params["norm"], config)


def encoding(position, params, config):
    d_model, half, kind = config.d_model, config.d_model // 2, name_of(config.positions)
    result = np.zeros(d_model)
    for i in range(half):
        if kind == "sinusoidal":
            angle = position / 10000 ** (2 * i / d_model)
            result[2 * i], result[2 * i + 1] = math.sin(angle), math.cos(angle)
        if kind == "halves":
            angle = position * math.exp(-i * math.log(10000) / (half - 1))
            result[i], result[half + i] = math.sin(angle), math.cos(angle)
    if kind == "learned":
        result = params["position_embedding"][position] * math.sqrt(d_model)
    return result


def words(name, params, config):
    embedding_VD = np.array(params[name])
    if config.zero_padding:
        embedding_VD[0] = 0
    return embedding_VD


def embed(tokens_L, embedding_VD, params, config):
    return np.array(
        [
            embedding_VD[token] * math.sqrt(config.d_model) + encoding(position, params, config)
            for position, token in enumerate(tokens_L)
        ]
    )


def forward(params, config, source_S, target_T):
    """Logits (T, V) for one sentence pair; source padding is 0."""
    name = "embedding" if config.tying == "all" else "source_embedding"
    source_embedding = words(name, params, config)
    x = embed(source_S, source_embedding, params, config)
    not_padding = [token != 0 for token in source_S]
    positions, between = name_of(config.positions), "none"
    if positions == "rotary" and arguments("positions", config.positions)["cross_attention"]:
        between = "rotary"

    def self_attention(layer, may_see):
        return lambda x: attention(x, x, may_see, layer["self_attention"], config, positions)

    def cross_attention(layer):
        return lambda x: attention(
            x, memory, lambda q, m: not_padding[m], layer["cross_attention"], config, between
        )

    def network(layer):
        return lambda x: feed_forward(x, layer["feed_forward"], config)

    for n in range(config.num_layers):
        layer = params[f"encoder_{n}"]
        sublayer = self_attention(layer, lambda q, m: not_padding[m])
        x = residual(x, sublayer, layer["self_attention_residual"], config)
        x = residual(x, network(layer), layer["feed_forward_residual"], config)
    final = {"auto": config.norm_position == "pre", "on": True, "off": False}[config.final_norm]
    memory = normalized(x, params["encoder_norm"], config) if final else x
    embedding = words("embedding", params, config)
    x = embed(target_T, embedding, params, config)
    for n in range(config.decoder_layers):
        layer = params[f"decoder_{n}"]
        sublayer = self_attention(layer, lambda q, m: m <= q)
        x = residual(x, sublayer, layer["self_attention_residual"], config)
        x = residual(x, cross_attention(layer), layer["cross_attention_residual"], config)
        x = residual(x, network(layer), layer["feed_forward_residual"], config)
    if final:
        x = normalized(x, params["decoder_norm"], config)
    logits = x @ (params["output"] if config.tying == "none" else embedding).T
    return logits + params["output_bias"] if config.output_bias else logits
