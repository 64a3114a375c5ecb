"""torch.nn.Transformer with the same weights: the same logits and the same gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.config import ModelConfig
from jformer.model.transformer import Transformer
from jformer.training.loss import loss_sums
from tests.conftest import random_params

torch = pytest.importorskip(
    "torch", reason="the extra `parity` has PyTorch: pip install -e '.[parity]'"
)

B, S, T, V, D, H = 3, 7, 11, 29, 20, 5
SOURCE_BS = np.random.default_rng(1).integers(3, V, (B, S)).astype(np.int32)
SOURCE_BS[0, 5:] = 0
TARGET_BT1 = np.random.default_rng(2).integers(3, V, (B, T + 1)).astype(np.int32)
TARGET_BT1[1, 9:] = 0


def attention_names(ours, theirs):
    """Their query, key and value are one matrix (3 D, D), and every matrix is transposed."""

    def matrix(kernel):
        return np.asarray(kernel).reshape(int(np.sqrt(kernel.size)), -1).T

    yield (
        f"{theirs}.in_proj_weight",
        lambda p: np.concatenate(
            [matrix(p[ours][name]["kernel"]) for name in ("query", "key", "value")]
        ),
    )
    yield f"{theirs}.out_proj.weight", lambda p: matrix(p[ours]["out"]["kernel"])


def layer_names(attentions):
    for ours, theirs in attentions:
        yield from attention_names(ours, theirs)
    for ours, theirs in (("ffn_in", "linear1"), ("ffn_out", "linear2")):
        yield f"{theirs}.weight", lambda p, ours=ours: p["feed_forward"][ours]["kernel"].T
        yield f"{theirs}.bias", lambda p, ours=ours: p["feed_forward"][ours]["bias"]
    residuals = [f"{ours}_residual" for ours, _ in attentions] + ["feed_forward_residual"]
    for number, ours in enumerate(residuals, start=1):
        yield f"norm{number}.weight", lambda p, ours=ours: p[ours]["norm"]["scale"]
        yield f"norm{number}.bias", lambda p, ours=ours: p[ours]["norm"]["bias"]


def as_torch(params, config):
    """Our parameters, or gradients, under torch's names."""
    result = {"embedding": params["embedding"]}
    own, cross = ("self_attention", "self_attn"), ("cross_attention", "multihead_attn")
    for side, attentions in (("encoder", [own]), ("decoder", [own, cross])):
        for n in range(config.num_layers):
            for name, value in layer_names(attentions):
                result[f"{side}.layers.{n}.{name}"] = value(params[f"{side}_{n}"])
        if config.norm_position == "pre":
            result[f"{side}.norm.weight"] = params[f"{side}_norm"]["scale"]
            result[f"{side}.norm.bias"] = params[f"{side}_norm"]["bias"]
    return {name: np.asarray(value, np.float64) for name, value in result.items()}


def torch_twin(config):
    pre, nn, D, H = config.norm_position == "pre", torch.nn, config.d_model, config.num_heads
    layer = {
        "d_model": D, "nhead": H, "dim_feedforward": config.d_ff, "dropout": 0.0,
        "activation": config.activation, "layer_norm_eps": 1e-6, "batch_first": True,
        "norm_first": pre,
    }  # fmt: skip
    norms = [nn.LayerNorm(D, 1e-6) if pre else None for _ in range(2)]  # the ends of the stacks
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**layer), config.num_layers, norms[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(**layer), config.num_layers, norms[1]
    )
    return nn.Transformer(D, H, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)


def with_weights(twin, params, config):
    """The twin with our parameters, and the embedding."""
    named, ours = dict(twin.named_parameters()), as_torch(params, config)
    embedding = torch.nn.Parameter(torch.tensor(ours.pop("embedding")))
    for name, parameter in named.items():
        # Torch's attention has biases, the paper's has not.
        parameter.data = torch.tensor(ours[name]) if name in ours else torch.zeros_like(parameter)
    assert set(ours) == {n for n in named if "in_proj_bias" not in n and "out_proj.bias" not in n}
    return twin, embedding


@pytest.mark.parametrize(("norm_position", "activation"), [("post", "relu"), ("pre", "gelu")])
def test_logits_and_gradients_equal_those_of_torch(norm_position, activation):
    config = ModelConfig(
        num_layers=1, d_model=D, d_ff=31, num_heads=H, dropout=0.0,
        norm_position=norm_position, activation=activation, positions="none",
    )  # fmt: skip
    model = Transformer(config, V)
    params = random_params(model)

    def loss_fn(params):
        logits = model.apply({"params": params}, SOURCE_BS, TARGET_BT1[:, :-1])
        sums = loss_sums(logits, TARGET_BT1[:, 1:], 0.1)
        return sums["loss"] / sums["tokens"], logits

    (loss, logits_BTV), gradients = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(params)

    twin, embedding = with_weights(torch_twin(config).double(), params, config)
    named = dict(twin.named_parameters())

    source, target = (torch.tensor(x, dtype=torch.long) for x in (SOURCE_BS, TARGET_BT1))
    hidden = twin(
        embedding[source] * D**0.5,
        embedding[target[:, :-1]] * D**0.5,
        tgt_mask=torch.triu(torch.ones(T, T, dtype=torch.bool), 1),
        src_key_padding_mask=source == 0,
        memory_key_padding_mask=source == 0,
    )
    twin_logits = hidden @ embedding.T
    twin_loss = torch.nn.functional.cross_entropy(
        twin_logits.reshape(-1, V), target[:, 1:].reshape(-1), ignore_index=0, label_smoothing=0.1
    )
    twin_loss.backward()

    np.testing.assert_allclose(logits_BTV, twin_logits.detach(), atol=1e-5)
    assert float(loss) == pytest.approx(float(twin_loss.detach()), abs=1e-5)
    expected = {name: p.grad for name, p in named.items()} | {"embedding": embedding.grad}
    for name, gradient in as_torch(gradients, config).items():
        np.testing.assert_allclose(gradient, expected[name], atol=1e-4, err_msg=name)


def test_cross_entropy_of_torch_is_the_smoothing_over_all_entries():
    """Also that of optax and Kyubyong: (1 - epsilon) + epsilon / V on the label."""
    logits = np.random.default_rng(0).normal(size=(B, T, V)).astype(np.float32)
    labels = TARGET_BT1[:, 1:]
    sums = loss_sums(jnp.asarray(logits), jnp.asarray(labels), 0.1)
    theirs = torch.nn.functional.cross_entropy(
        torch.tensor(logits).reshape(-1, V), torch.tensor(labels, dtype=torch.long).reshape(-1),
        ignore_index=0, label_smoothing=0.1,
    )  # fmt: skip
    assert float(sums["loss"] / sums["tokens"]) == pytest.approx(float(theirs), rel=1e-5)
