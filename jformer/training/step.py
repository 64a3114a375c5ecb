"""The functional train step and the evaluation step.

A batch is `{"source_BS": ids, "target_BT": ids, "labels_BT": ids}`: the labels are the target one
position on, BOS left out and EOS at the end. Rows that hold several pairs come with
`source_segments_BS` and `target_segments_BT`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jformer.config import Config
from jformer.model.transformer import Transformer
from jformer.training.loss import loss_sums
from jformer.training.optimizer import learning_rate, make_optimizer


@struct.dataclass
class TrainState:
    step: Any  # () int32, updates done
    params: Any
    optimizer_state: Any


def create_state(model: Transformer, optimizer: optax.GradientTransformation, key) -> TrainState:
    tokens_11 = jnp.ones((1, 1), jnp.int32)
    params = model.init(key, tokens_11, tokens_11)["params"]
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def abstract_params(model: Transformer) -> Any:
    """Shapes of the parameters on one device, without computing any."""
    tokens_11 = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens_11, tokens_11)["params"]
    one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one_device), shapes
    )


def logits(model: Transformer, params, batch, **options):
    packed = "source_segments_BS" in batch
    segments = (batch["source_segments_BS"], batch["target_segments_BT"]) if packed else None
    texts = (batch["source_BS"], batch["target_BT"])
    return model.apply({"params": params}, *texts, segments=segments, **options)


def make_train_step(
    model: Transformer,
    optimizer: optax.GradientTransformation,
    label_smoothing: float,
    smoothing_over: str,
):
    """`step(state, batch, key) -> (state, metrics)`, pure; metrics are sums over tokens."""

    def loss_fn(params, batch, key):
        logits_BTV = logits(model, params, batch, train=True, rngs={"dropout": key})
        metrics = loss_sums(logits_BTV, batch["labels_BT"], label_smoothing, smoothing_over)
        return metrics["loss"] / metrics["tokens"], metrics

    def step(state, batch, key):
        # The step's own key: a resumed run draws the masks that an uninterrupted one draws.
        key = jax.random.fold_in(key, state.step)
        grads, metrics = jax.grad(loss_fn, has_aux=True)(state.params, batch, key)
        updates, optimizer_state = optimizer.update(grads, state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, optimizer_state), metrics

    return step


def from_config(config: Config, model: Transformer) -> tuple[Any, Any, Any]:
    """The schedule, the optimizer and the train step that a config asks for."""
    train, rate = config.train, learning_rate(config.optimizer, config.model.d_model)
    optimizer = make_optimizer(config.optimizer, rate)
    step = make_train_step(model, optimizer, train.label_smoothing, train.smoothing_over)
    return rate, optimizer, step


@functools.partial(jax.jit, static_argnums=0)
def evaluation_step(model: Transformer, params, batch):
    """Sums over the batch's tokens, without dropout and without label smoothing."""
    logits_BTV = logits(model, params, batch)
    return loss_sums(logits_BTV, batch["labels_BT"], label_smoothing=0.0, smoothing_over="all")
