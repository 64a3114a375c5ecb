"""The functional train step and the evaluation step.

A batch is `{"source_BS": ids, "target_BT": ids, "labels_BT": ids}`. The labels are the target
without BOS, with EOS. Packed rows also have `source_segments_BS` and `target_segments_BT`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jformer.backend import target_platform
from jformer.components import find
from jformer.config import PAD, TrainConfig
from jformer.model.numerics import einsum_f32
from jformer.model.transformer import Transformer, logits_of
from jformer.training.fast_loss import gradient_by_chunks
from jformer.training.loss import SUMS, loss_sums, r_drop_kl


@struct.dataclass
class TrainState:
    step: Any  # () int32, number of steps done, including skipped ones
    params: Any
    optimizer_state: Any
    ema: Any = None  # exponential moving average of the parameters, or None


def create_state(
    model: Transformer, optimizer: optax.GradientTransformation, key, with_ema: bool = False
) -> TrainState:
    tokens_11 = jnp.ones((1, 1), jnp.int32)
    params = model.init(key, tokens_11, tokens_11)["params"]
    ema = jax.tree.map(jnp.copy, params) if with_ema else None
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), ema)


def run_model(model: Transformer, params, batch, **options):
    """Return the logits of a batch, or the result of another `method` of the model."""
    packed = "source_segments_BS" in batch
    segments = (batch["source_segments_BS"], batch["target_segments_BT"]) if packed else None
    texts = (batch["source_BS"], batch["target_BT"])
    return model.apply({"params": params}, *texts, segments=segments, **options)


def make_gradients(model: Transformer, config: TrainConfig, sum_devices: Callable[[Any], Any]):
    """Return `gradients(params, batch, key)`: of the mean loss per token, and sums of metrics.

    Each part divides by the number of all tokens, however rows are distributed over parts and
    devices.
    """
    token_losses = find("config.train.loss", "loss", config.loss)

    def loss_of(states_BTD, output, labels_BT, all_tokens):
        # R-Drop compares logits that are nearly equal, so they are in float32.
        product = einsum_f32 if config.r_drop_alpha else jnp.einsum
        logits_BTV = logits_of(states_BTD, *output, product)
        sums = loss_sums(logits_BTV, labels_BT, config.label_smoothing, token_losses)
        if config.r_drop_alpha:
            sums = {name: total / 2 for name, total in sums.items()}
            # Half of Wu et al.'s Equation 4, so that alpha = 0 is the loss of one pass.
            divergence = jnp.sum(r_drop_kl(logits_BTV[::2], logits_BTV[1::2], labels_BT[::2]))
            sums["loss"] += config.r_drop_alpha / 2 * divergence
        return sums["loss"] / all_tokens, sums

    def gradient_of_rows(params, rows, key, all_tokens):
        B, T = rows["labels_BT"].shape
        chunks = loss_chunks(B, 2 * T if config.r_drop_alpha else T, model.config.d_model)
        if config.r_drop_alpha:
            # Each row is next to its copy, on the same device, with another dropout mask.
            rows = jax.tree.map(lambda rows_BL: jnp.repeat(rows_BL, 2, axis=0), rows)

        def forward(params):
            options = {"rngs": {"dropout": key}, "method": model.decoder_states}
            return run_model(model, params, rows, train=True, **options)

        (states_BTD, output), backward = jax.vjp(forward, params)
        mean_loss = functools.partial(loss_of, all_tokens=all_tokens)
        labels_BT = rows["labels_BT"]
        gradients, sums = gradient_by_chunks(mean_loss, chunks, states_BTD, output, labels_BT)
        return backward(gradients)[0], sums

    def gradients(params, batch, key):
        all_tokens = sum_devices(jnp.sum(batch["labels_BT"] != PAD).astype(jnp.float32))
        if config.accumulate == 1:
            return sum_devices(gradient_of_rows(params, batch, key, all_tokens))

        def add_part(total, part):
            number, rows = part
            key_of_part = jax.random.fold_in(key, number)
            new = gradient_of_rows(params, rows, key_of_part, all_tokens)
            return jax.tree.map(jnp.add, total, new), None

        def part_by_part(rows_BL):
            # A part consists of every n-th row, so that each part has rows of all devices.
            by_part = rows_BL.reshape(-1, config.accumulate, *rows_BL.shape[1:])
            return jnp.moveaxis(by_part, 1, 0)

        zeros = (jax.tree.map(jnp.zeros_like, params), dict.fromkeys(SUMS, jnp.float32(0)))
        parts = (jnp.arange(config.accumulate), jax.tree.map(part_by_part, batch))
        return sum_devices(jax.lax.scan(add_part, zeros, parts)[0])

    return gradients


def loss_chunks(rows: int, length: int, d_model: int) -> int:
    """Return the number of chunks in which to compute the loss of a batch, to save memory."""
    # The logits of a small chunk stay in a CPU's cache, but every chunk reads the matrix (V, D).
    limit = max(256, 2 * d_model) if target_platform() == "cpu" else 16384
    if not jax.sharding.get_abstract_mesh().empty:
        return 1  # on several devices each chunk would cost an exchange of gradients
    fitting = (n for n in range(1, rows) if rows % n == 0 and rows * length <= n * limit)
    return next(fitting, rows)


def make_train_step(
    model: Transformer,
    optimizer: optax.GradientTransformationExtraArgs,
    config: TrainConfig,
    sum_devices: Callable[[Any], Any] = lambda tree: tree,
):
    """Return the pure `step(state, batch, key) -> (state, metrics)`; metrics are sums.

    `sum_devices` adds up the gradients and sums of devices that see only their own rows (pmap).
    Under jit, arrays are global and need no further sum.
    """
    gradients = make_gradients(model, config, sum_devices)

    def update(state, grads):
        params, ema, step = state.params, state.ema, state.step
        updates, moments = optimizer.update(grads, state.optimizer_state, params, step=step)
        params = optax.apply_updates(params, updates)
        if ema is not None:
            # A smaller initial decay forgets the initial parameters.
            decay = jnp.minimum(config.ema_decay, (1 + step) / (10 + step))
            ema = jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, ema, params)
        return TrainState(step, params, moments, ema)

    def step(state, batch, key):
        # One key per step: a resumed run draws the dropout masks of an uninterrupted run.
        key = jax.random.fold_in(key, state.step)
        grads, sums = gradients(state.params, batch, key)
        norm = optax.tree.norm(grads)
        # A non-finite update changes nothing but the number of the step.
        finite = jnp.isfinite(sums["loss"]) & jnp.isfinite(norm)
        if target_platform() == "cpu":
            # On a CPU, `select` would keep both the old and the new state in memory.
            new = jax.lax.cond(finite, update, lambda state, grads: state, state, grads)
        else:
            # On a GPU, `cond` stalls until the host has read the condition. `select` fuses.
            select = functools.partial(jax.lax.select, finite)
            new = jax.tree.map(select, update(state, grads), state)
        metrics = {**sums, "gradient_norm": norm}
        metrics = {name: jnp.where(finite, value, 0) for name, value in metrics.items()}
        metrics["skipped"] = 1 - finite.astype(jnp.int32)
        return new.replace(step=state.step + 1), metrics

    return step


def evaluation_step(model: Transformer, params, batch):
    """Return sums over the batch's tokens, without dropout and without label smoothing."""
    logits_BTV = run_model(model, params, batch)
    return loss_sums(logits_BTV, batch["labels_BT"], label_smoothing=0.0)
