"""The cost of a config: parameters, multiply-adds, memory and time of the train step.

Multiply-adds (MAC) count matrix products only, which are nearly all of the computation. The number
of FLOPs is twice as large.
"""

import collections
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jformer.config import Config
from jformer.console import as_duration, say
from jformer.data.batches import rows_that_fit
from jformer.data.datasets import open_data
from jformer.model.transformer import Transformer
from jformer.run import parameter_shapes
from jformer.training import sharding
from jformer.training.flops import multiply_adds, step_flops
from jformer.training.loop import Training, from_config

TIMED = 3  # steps


def parameters(params: Any) -> dict[str, int]:
    """Count parameters by module, layers together: `{"encoder/self_attention": number, ...}`."""
    counts: collections.Counter = collections.Counter()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        counts[module_name([key.key for key in path])] += leaf.size
    return dict(counts)


def module_name(path: list[str]) -> str:
    """Map a path to its module: `encoder_3/self_attention/query` to `encoder/self_attention`."""
    names = [name for name in path if not name.endswith("_residual")]
    stack, _, number = names[0].rpartition("_")
    return "/".join([stack, *names[1:2]]) if number.isdigit() else names[0]


def forward_costs(config: Config, S: int, T: int) -> list[tuple[str, int, int]]:
    """Return `(module, parameters, multiply-adds)` of a forward pass on one pair.

    The pair has S source and T target positions.
    """
    counts = parameters(parameter_shapes(Transformer(config.model, config.data.vocabulary_size)))
    work = multiply_adds(config, S, T)
    order = ("embedding", "encoder", "decoder", "output")
    names = sorted({**counts, **work}, key=lambda name: [name.startswith(o) for o in order[::-1]])
    return [(name, counts.get(name, 0), work.get(name, 0)) for name in names]


def table(config: Config, S: int, T: int) -> str:
    """Return a table of the forward pass on S source and T target positions, by module."""
    rows = forward_costs(config, S, T)
    rows.append(("total", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    lines = [f"{'module':<24}{'parameters':>14}{'multiply-adds':>18}{'FLOPs':>18}"]
    for name, count, products in rows:
        lines.append(f"{name:<24}{count:>14,}{products:>18,}{2 * products:>18,}")
    entries = f"{config.data.vocabulary_size:,} entries (data.vocabulary_size)"
    say(f"one forward pass on {S} source and {T} target positions, with {entries}")
    return "\n".join(lines)


def trace_step(config: Config, devices: Sequence[Any], rows: int, length: int) -> Any:
    """Return the traced train step for a batch over these devices, which may be absent.

    The batch has `rows` rows of `length` source and `length` target positions.
    """
    mesh = sharding.make_mesh(config, devices)
    create, step = from_config(config, Transformer(config.model, config.data.vocabulary_size))
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(create, key)
    shardings, by_rows = sharding.state_shardings(state, mesh), sharding.by_rows(mesh)

    def placed(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    rows += -rows % config.train.accumulate  # all parts have the same number of rows
    packed = config.data.batching == "packed"
    segments = ("source_segments_BS", "target_segments_BT") if packed else ()
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=by_rows)
    batch = dict.fromkeys(("source_BS", "target_BT", "labels_BT", *segments), tokens)
    train_step: Any = sharding.compile_train_step(step, mesh, shardings)
    arguments = jax.tree.map(placed, state, shardings), batch
    return train_step.trace(*arguments, placed(key, sharding.replicated(mesh)))


def memory(config: Config) -> str:
    """Return a line with the memory of the train step on one device, as XLA reports it."""
    tokens, length = config.train.batch_tokens, config.data.max_length
    where = f"rows of {length} (config.data.max_length) on {jax.default_backend()}"
    say(f"compiling the train step for {tokens:,} tokens per side ...")
    needed = step_bytes(config, tokens, length) / 1e9
    return f"train step: {needed:.2f} GB, {tokens:,} tokens, {where}"


def step_bytes(config: Config, tokens: int, length: int) -> int:
    """Return the bytes of memory of the compiled train step on one device of this machine."""
    traced = trace_step(config, jax.devices()[:1], rows_that_fit(tokens, length), length)
    found = traced.lower().compile().memory_analysis()
    sizes = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return sizes - found.alias_size_in_bytes  # the donated state counts once


def measure(config: Config) -> str:
    """Time a few steps on this machine; return a line with the time that all steps would take.

    The steps are of the most frequent shape of the corpus' batches. Other shapes take longer or
    shorter in proportion to their operations.
    """
    corpora, splits = open_data(config)
    mesh = sharding.make_mesh(config)
    with tempfile.TemporaryDirectory() as folder:
        training = Training(config, corpora, splits["validation"], Path(folder), mesh)
    batches = training.batches
    shapes = batches.epoch(0).batches[:, 0]  # the shape of each batch of an epoch
    frequent = statistics.mode(shapes)
    batch = batches.batch(0, int(np.flatnonzero(shapes == frequent)[0]))
    placed = sharding.shard_batch(batch, mesh, config.train.accumulate, config.parallel.backend)
    B, S, T = batches.layout.shapes[frequent]
    say(f"compiling the step of {B} rows of {S} + {T} tokens, and timing {TIMED} steps ...")
    state, seconds = training.create(training.params_key), []
    for _ in range(1 + TIMED):  # the first compiles
        began = time.perf_counter()
        state, metrics = training.compiled_step(state, placed, training.dropout_key)
        jax.block_until_ready(metrics)
        seconds.append(time.perf_counter() - began)
    flops = np.array([step_flops(config, *shape) for shape in batches.layout.shapes])
    step = statistics.median(seconds[1:]) * flops[shapes].mean() / flops[frequent]
    device, steps = mesh.devices.flat[0].device_kind, config.train.steps
    return (
        f"measured: {1000 * step:.4g} ms per step on {mesh.size} x {device}; {steps:,} steps "
        f"(config.train.steps) take {as_duration(steps * step)}, without validation"
    )
