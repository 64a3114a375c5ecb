"""Trains five steps in many ways on eight devices, and writes what came out of each.

test_sharding runs this in a process of its own, because JAX settles the number of devices when it
starts. A way is named `KIND: HOW`, and `KIND: one` is one device.
"""

import dataclasses
import functools
import pickle
import re
import sys

import jax
import numpy as np

from jformer.config import Config, ModelConfig, OptimizerConfig, TrainConfig
from jformer.model.transformer import Transformer
from jformer.training import sharding
from jformer.training.loop import from_config
from jformer.training.optimizer import make_optimizer
from jformer.training.schedules import learning_rate
from jformer.training.step import TrainState

V = 32
# One rate for all steps: Equation 3 would hardly move the parameters in five.
RATE = {"schedule": "constant", "warmup_steps": 1, "learning_rate": 0.01}
PLAIN = Config(
    model=ModelConfig(num_layers=1, d_model=16, d_ff=24, num_heads=4, dropout=0.0, dtype="float32"),
    optimizer=OptimizerConfig(**RATE),
    train=TrainConfig(ema_decay=0.5),
)


def with_(config=PLAIN, of_model=None, of_train=None, **axes):
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **(of_model or {})),
        train=dataclasses.replace(config.train, **(of_train or {})),
        parallel=dataclasses.replace(config.parallel, **axes),
    )


DEEP = with_(of_model={"num_layers": 2})
TWICE = with_(of_model={"dropout": 0.3}, of_train={"r_drop_alpha": 5.0})
MUON = dataclasses.replace(
    with_(of_model={"dropout": 0.3}), optimizer=OptimizerConfig(name="muon", **RATE)
)
# The number of devices, and the config. Compiling one takes seconds.
WAYS = {
    "plain: one": (1, PLAIN),
    "plain: fsdp=8": (8, with_(fsdp=8)),
    "plain: data=2, fsdp=2, model=2, accumulate=2": (
        8, with_(of_train={"accumulate": 2}, fsdp=2, model=2)
    ),
    "plain: pmap, accumulate=2": (8, with_(of_train={"accumulate": 2}, backend="pmap")),
    "deep: one": (1, DEEP),
    "deep: fsdp=8, scan_layers, remat": (
        8, with_(DEEP, {"remat": "layer", "scan_layers": True}, fsdp=8)
    ),
    "dropout, r_drop: one": (1, TWICE),
    "dropout, r_drop: data=8": (8, TWICE),
    "dropout, muon: one": (1, MUON),
    "dropout, muon: fsdp=4, model=2": (8, with_(MUON, fsdp=4, model=2)),
}  # fmt: skip


def batches():
    """Five of 13 rows, which eight devices do not divide, of unequal length: the last devices have
    rows of padding alone."""
    for i in range(5):
        rng = np.random.default_rng(i)
        lengths = np.sort(rng.integers(1, 12, 13))[::-1]
        target = rng.integers(3, V, (13, 13)) * (np.arange(13) <= lengths[:, None])
        rows = target[:, 1:].astype(np.int32)
        yield {"source_BS": rows, "target_BT": target[:, :-1].astype(np.int32), "labels_BT": rows}


@functools.cache
def first_params(config):
    """The same for all ways of as many layers."""
    tokens_11 = np.ones((1, 1), np.int32)
    init = jax.jit(Transformer(config, V).init)
    return jax.device_get(init(jax.random.key(0), tokens_11, tokens_11)["params"])


def train(devices, config):
    model, backend = Transformer(config.model, V), config.parallel.backend
    mesh = sharding.make_mesh(config, devices)
    _, step = from_config(config, model, sharding.sum_devices(backend))
    params = first_params(PLAIN.model if config.model.num_layers == 1 else DEEP.model)
    optimizer_state = make_optimizer(config.optimizer, learning_rate(config)).init(params)
    state = TrainState(np.int32(0), params, optimizer_state, params)
    shardings = sharding.state_shardings(state, mesh)
    # A copy: the step gives up its state, whose memory on a CPU may be that of the arrays here.
    state = jax.device_put(jax.tree.map(np.array, state), shardings)
    key = jax.jit(lambda: jax.random.key(1), out_shardings=sharding.replicated(mesh))()
    train_step = sharding.compile_train_step(step, mesh, shardings, backend)
    losses, program = [], ""
    for number, batch in enumerate(batches()):
        placed = sharding.shard_batch(batch, mesh, config.train.accumulate, backend)
        if config.parallel.fsdp > 1 and not number:
            train_step = train_step.lower(state, placed, key).compile()
            program = train_step.as_text()
        state, metrics = train_step(state, placed, key)
        losses.append(float(metrics["loss"] / metrics["tokens"]))
        assert float(metrics["tokens"]) == np.count_nonzero(batch["labels_BT"])
    split = sum(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state))
    shard = state.params["encoder_0"]["feed_forward"]["ffn_in"]["kernel"].addressable_shards[0]
    return {
        "losses": losses, "state": jax.device_get((state.params, state.ema)),
        "split": split, "ffn_in": shard.data.shape,
        "sent": re.findall(r"= (.*) (?:all-gather|all-reduce)\(", program),
    }  # fmt: skip


def draws_of_pmap():
    """A number that each device draws in its step."""

    def step(state, batch, key):
        return state, {"draws": jax.lax.all_gather(jax.random.uniform(key), sharding.DEVICES)}

    mesh = sharding.make_mesh(with_(backend="pmap"))
    train_step = sharding.compile_train_step(step, mesh, None, "pmap")
    rows = sharding.shard_batch(next(batches()), mesh, backend="pmap")
    _, metrics = train_step(np.int32(0), rows, jax.random.key(1))
    return metrics["draws"].tolist()


if __name__ == "__main__":
    assert jax.local_device_count() == 8
    results = {name: train(jax.devices()[:n], config) for name, (n, config) in WAYS.items()}
    results["draws"] = draws_of_pmap()
    with open(sys.argv[1], "wb") as file:
        pickle.dump(results, file)
