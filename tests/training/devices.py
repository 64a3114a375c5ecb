"""Trains five steps in many ways on eight devices, and writes what came out of each.

Run by test_parallel in a process of its own: the number of devices is settled when JAX starts.
"""

import dataclasses
import functools
import pickle
import re
import sys

import jax
import numpy as np

from jformer.config import Config, ModelConfig, OptimizerConfig
from jformer.model.transformer import Transformer
from jformer.training import parallel
from jformer.training.optimizer import make_optimizer
from jformer.training.setup import from_config
from jformer.training.step import TrainState

V = 32
MODEL = ModelConfig(num_layers=1, d_model=16, d_ff=24, num_heads=4, dropout=0.0, dtype="float32")
PLAIN = Config(model=MODEL)


def with_(config=PLAIN, of_model=None, of_train=None, **axes):
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **(of_model or {})),
        train=dataclasses.replace(config.train, **(of_train or {})),
        parallel=dataclasses.replace(config.parallel, **axes),
    )


DEEP = with_(of_model={"num_layers": 2})
DROPOUT = with_(of_model={"dropout": 0.3})
TWICE = with_(DROPOUT, of_train={"r_drop_alpha": 5.0})
MUON = dataclasses.replace(PLAIN, optimizer=OptimizerConfig(name="muon"))
# Name: the number of devices, and the config. Compiling one takes seconds.
WAYS = {
    "one": (1, PLAIN),
    "data=8": (8, PLAIN),
    "fsdp=8, ema": (8, with_(of_train={"ema_decay": 0.5}, fsdp=8)),
    "data=2, fsdp=2, model=2": (8, with_(fsdp=2, model=2)),
    "accumulate=4, ema": (1, with_(of_train={"accumulate": 4, "ema_decay": 0.5})),
    "pmap, accumulate=2": (8, with_(of_train={"accumulate": 2}, backend="pmap")),
    "dropout": (1, DROPOUT),
    "dropout, fsdp=4, model=2": (8, with_(DROPOUT, fsdp=4, model=2)),
    "dropout, r_drop": (1, TWICE),
    "dropout, r_drop, data=8": (8, TWICE),
    "muon": (1, MUON),
    "muon, fsdp=4, model=2": (8, with_(MUON, fsdp=4, model=2)),
}  # fmt: skip
MORE_WAYS = {
    "one": (1, PLAIN),
    "data=2": (2, PLAIN),
    "model=4": (4, with_(model=4)),
    "pmap": (8, with_(backend="pmap")),
    "pmap on one": (1, with_(backend="pmap")),
    "data=8, accumulate=2": (8, with_(of_train={"accumulate": 2})),
    "two layers": (1, DEEP),
    "two layers, remat=layer": (1, with_(DEEP, {"remat": "layer"})),
    "two layers, remat=dots": (1, with_(DEEP, {"remat": "dots"})),
    "two layers, scan_layers": (1, with_(DEEP, {"scan_layers": True})),
    "two layers, fsdp=8, scan_layers, remat=layer": (
        8, with_(DEEP, {"remat": "layer", "scan_layers": True}, fsdp=8)
    ),
    "dropout": (1, DROPOUT),
    "dropout, data=8": (8, DROPOUT),
    "dropout, pmap": (8, with_(DROPOUT, backend="pmap")),
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
    return jax.device_get(
        jax.jit(Transformer(config, V).init)(jax.random.key(0), *[np.ones((1, 1), np.int32)] * 2)[
            "params"
        ]
    )


def train(devices, config):
    model, backend = Transformer(config.model, V), config.parallel.backend
    mesh = parallel.make_mesh(config, devices)
    # One rate for all steps: Equation 3 would hardly move the parameters in five.
    constant = {"schedule": "constant", "warmup_steps": 1, "learning_rate": 0.01}
    config = dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, **constant)
    )
    rate, _, step = from_config(config, model, parallel.sum_devices(backend))
    optimizer = make_optimizer(config.optimizer, rate)
    params = first_params(MODEL if config.model.num_layers == 1 else DEEP.model)
    ema = params if config.train.ema_decay else None
    state = TrainState(np.int32(0), params, optimizer.init(params), ema)
    shardings = parallel.state_shardings(state, mesh)
    # A copy: the step gives up its state, whose memory on a CPU may be that of the arrays here.
    state = jax.device_put(jax.tree.map(np.array, state), shardings)
    key = jax.jit(lambda: jax.random.key(1), out_shardings=parallel.replicated(mesh))()
    train_step = parallel.compile_train_step(step, mesh, shardings, backend)
    losses, requests, program = [], [], ""
    for number, batch in enumerate(batches()):
        placed = parallel.shard_batch(batch, mesh, config.train.accumulate, backend)
        request = parallel.place_request(number, mesh)
        if config.parallel.fsdp > 1 and not number:
            train_step = train_step.lower(state, placed, key, request).compile()
            program = train_step.as_text()
        state, metrics = train_step(state, placed, key, request)
        losses.append(float(metrics["loss"] / metrics["tokens"]))
        requests.append(int(metrics["request"]))
        assert float(metrics["tokens"]) == np.count_nonzero(batch["labels_BT"])
    split = sum(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state))
    shard = state.params["encoder_0"]["feed_forward"]["ffn_in"]["kernel"].addressable_shards[0]
    return {
        "losses": losses, "params": jax.device_get(state.params), "ema": jax.device_get(state.ema),
        "requests": requests, "split": split, "ffn_in": shard.data.shape,
        "sent": re.findall(r"= (.*) (?:all-gather|all-reduce)\(", program),
    }  # fmt: skip


if __name__ == "__main__":
    assert jax.local_device_count() == 8
    ways = {"WAYS": WAYS, "MORE_WAYS": MORE_WAYS}[sys.argv[1]]
    results = {name: train(jax.devices()[:n], config) for name, (n, config) in ways.items()}
    with open(sys.argv[2], "wb") as file:
        pickle.dump(results, file)
