"""The train step and the evaluation step on many devices: under jit over a mesh, or under pmap.

The mesh has three axes. `data` and `fsdp` shard the rows of a batch, `fsdp` also shards the
parameters and the optimizer's state, and `model` shards the work within a row. The loss divides by
the number of all tokens, so the number of devices does not change the result.

pmap replicates the state and adds up gradients by an explicit `psum`. It supports the `data` axis
and one process.

Several processes form one mesh. They must have the same config and text, and share the workdir.
"""

import contextlib
import functools
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

from jformer.backend import target_platform
from jformer.config import PAD, Config, ParallelConfig
from jformer.console import be_quiet
from jformer.data.batches import Batch
from jformer.errors import UserError
from jformer.rundir import LOCK

log = logging.getLogger(__name__)

# From the letter of an array's axis to the mesh axes that shard it. Any other axis is replicated,
# as is an axis that the number of devices does not divide.
RULES: dict[str, str | tuple[str, ...]] = {
    "B": ("data", "fsdp"),
    "B_data": "data",  # for arrays whose D is sharded by fsdp
    "D": "fsdp",
    "H": "model",
    "F": "model",
    "V": "model",
}

# The axes of parameters, by the end of their names. Other parameters are small and replicated.
AXES = {
    "embedding": "VD",
    "source_embedding": "VD",
    "output": "VD",
    "output_bias": "V",
    "query/kernel": "DHK",
    "key/kernel": "DHK",
    "value/kernel": "DHU",
    "query/bias": "HK",
    "key/bias": "HK",
    "value/bias": "HU",
    "out/kernel": "HUD",
    "ffn_in/kernel": "DF",
    "ffn_in/bias": "F",
    "ffn_out/kernel": "FD",
}

DEVICES = "devices"  # the name of pmap's axis
AGREE_EVERY = 10  # steps between exchanges of signals among several processes

# XLA options for the train step under jit; the same flag in XLA_FLAGS takes precedence.
OPTIONS: dict[str, dict[str, Any]] = {
    "gpu": {
        # cuBLASLt's products add the bias and apply ReLU; Triton's need another kernel for that.
        "xla_gpu_enable_triton_gemm": False,
        # Merging products of one input (queries, keys, values) would copy all their results.
        "xla_gpu_dot_merger_threshold_mb": 0,
    },
    # XLA would split each product with a sharded matrix into one per device, and add up their
    # results in memory.
    "tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000},
}


def make_mesh(config: Config, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Return a mesh of all devices of all processes; `UserError` if the config does not fit."""
    devices = list(devices or jax.devices())
    shape = mesh_shape(config, len(devices))
    mesh = jax.make_mesh(shape, ("data", "fsdp", "model"), (AxisType.Auto,) * 3, devices=devices)
    for row in mesh.devices.reshape(-1, mesh.shape["model"]):
        if len({device.process_index for device in row}) > 1:
            raise config.parallel.wrong("model", "must divide the devices of each process")
    return mesh


def mesh_shape(config: Config, devices: int) -> tuple[int, ...]:
    """Return the sizes of the axes; a size of -1, or else `data`, takes the remaining devices."""
    parallel, sizes = config.parallel, (config.parallel.fsdp, config.parallel.model)
    try:
        shape = np.empty(devices).reshape(1 if -1 in sizes else -1, *sizes).shape
    except ValueError as error:
        axes = f"fsdp={parallel.fsdp}, model={parallel.model}"
        raise UserError(f"config.parallel: {axes} must divide the {devices} devices") from error
    for axis, size, width in (("fsdp", shape[1], "d_model"), ("model", shape[2], "num_heads")):
        if getattr(config.model, width) % size:
            raise parallel.wrong(axis, f"must divide {config.model.assignment(width)}")
    return shape


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(RULES["B"]))


def state_shardings(state: Any, mesh: Mesh) -> Any:
    """Return the shardings of a state or of parameters; Adam's moments follow the parameters."""

    def sharding(path: tuple, leaf: Any) -> NamedSharding:
        name = "/" + jax.tree_util.keystr(path, simple=True, separator="/")
        axes = next((axes for end, axes in AXES.items() if name.endswith(f"/{end}")), "")
        rules = zip(map(RULES.get, axes), leaf.shape, strict=False)  # most names have no axes
        split = [rule if rule and size % mesh.shape[rule] == 0 else None for rule, size in rules]
        return NamedSharding(mesh, PartitionSpec(*split))

    return jax.tree_util.tree_map_with_path(sharding, state)


def shard_batch(batch: Batch, mesh: Mesh, accumulate: int = 1, backend: str = "jit") -> Any:
    """Place this process's part of a batch on its devices, as arrays global to all processes.

    Rows of padding, which have no weight, are added until devices and accumulated parts divide the
    number of rows. Under pmap the first axis is the devices.
    """
    # The number of shares of this process' rows.
    shares = mesh.shape["data"] * mesh.shape["fsdp"] // jax.process_count()
    missing = ((0, -len(batch["source_BS"]) % (shares * accumulate)), (0, 0))
    padded = {name: np.pad(rows, missing, constant_values=PAD) for name, rows in batch.items()}
    if backend == "pmap":
        padded = {n: rows.reshape(shares, -1, rows.shape[1]) for n, rows in padded.items()}
    place = functools.partial(jax.make_array_from_process_local_data, by_rows(mesh))
    return jax.tree.map(place, padded)


def sum_devices(backend: str) -> Callable[[Any], Any]:
    """Return the function that adds up sums over all devices in a step: `psum` under pmap."""
    if backend == "pmap":
        return functools.partial(jax.lax.psum, axis_name=DEVICES)
    return lambda tree: tree


def compile_train_step(
    step: Callable, mesh: Mesh, shardings: Any, backend: str = "jit"
) -> Callable:
    """Return `(state, batch, key) -> (state, metrics)`; the memory of the input state is reused."""

    def step_over_mesh(state, batch, key):
        with logical_sharding(mesh):
            return step(state, batch, key)

    def step_on_device(state, batch, key):
        # One key per device, otherwise all devices would drop the same units.
        return step(state, batch, jax.random.fold_in(key, jax.lax.axis_index(DEVICES)))

    if backend == "pmap":
        return jax.pmap(
            step_on_device,
            axis_name=DEVICES,
            in_axes=(None, 0, None),  # None: replicated, as input and as output
            out_axes=None,
            devices=list(mesh.devices.flat),
            donate_argnums=0,
        )
    flags = os.environ.get("XLA_FLAGS", "") + os.environ.get("LIBTPU_INIT_ARGS", "")
    options = OPTIONS.get(target_platform(), {})
    everywhere = replicated(mesh)
    return jax.jit(
        step_over_mesh,
        in_shardings=(shardings, by_rows(mesh), everywhere),
        out_shardings=(shardings, everywhere),
        donate_argnums=0,
        compiler_options={name: value for name, value in options.items() if name not in flags},
    )


@contextlib.contextmanager
def logical_sharding(mesh: Mesh) -> Iterator[None]:
    """Shard the model's axes by RULES in this context; a no-op on a single device."""
    if mesh.size == 1:
        yield
        return
    with nn.logical_axis_rules(tuple(RULES.items())), use_abstract_mesh(mesh.abstract_mesh):
        yield


def join(parallel: ParallelConfig) -> None:
    """Connect to the other processes of the run, if any; must precede any other use of JAX."""
    if not parallel.coordinator or jax.distributed.is_initialized():
        return
    log.info("waiting for the other processes ...")
    # JAX's handler would swallow a SIGTERM that arrives before `Signals` sets its own.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(*parallel.address)  # JAX finds it on Slurm and TPU pods
    if not is_first():
        logging.getLogger("jformer").setLevel(logging.WARNING)
        be_quiet()


def is_first() -> bool:
    """Return whether this is the process that writes and prints for all."""
    return jax.process_index() == 0


def check_same(facts: Any, workdir: Path) -> None:
    """Raise `UserError` in every process unless all have the same facts and see the same workdir.

    Call this after the first process has locked `workdir`.
    """
    seen = json.dumps([facts, (workdir / LOCK).exists()])
    checksums = multihost_utils.process_allgather(np.uint32(zlib.crc32(seen.encode())))
    if len({*checksums.tolist()}) > 1:
        facts = "config, text, vocabulary, component files or versions"
        raise UserError(f"the processes differ in {facts}, or do not share workdir={workdir}")


def agree(request: int, step: int = 0) -> int:
    """Return the highest request of all processes; 0 at steps between multiples of AGREE_EVERY.

    All processes must call this at the same step.
    """
    if step % AGREE_EVERY and jax.process_count() > 1:
        return 0
    return int(multihost_utils.process_allgather(np.int32(request)).max())
