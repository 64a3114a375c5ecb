"""The steps of step.py under jit over a mesh of all local devices.

The batch is split among the devices by rows and the state is on each of them. The loss is a sum
over all rows over the number of all tokens, so the number of devices does not change the result.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jformer.config import PAD
from jformer.data.batches import Batch


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    return Mesh(np.asarray(devices or jax.local_devices()), ("data",))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec("data"))


def place_batch(batch: Batch, mesh: Mesh) -> Any:
    """The batch on the devices, with rows of padding, which weigh nothing, until they divide."""
    missing = ((0, -len(batch["source_BS"]) % mesh.size), (0, 0))
    padded = {name: np.pad(rows, missing, constant_values=PAD) for name, rows in batch.items()}
    return jax.device_put(padded, by_rows(mesh))


def compile_train_step(step: Callable, mesh: Mesh) -> Callable:
    """`(state, batch, key) -> (state, metrics)`; the old state's memory becomes the new one's."""
    everywhere = replicated(mesh)
    shardings = (everywhere, by_rows(mesh), everywhere)
    return jax.jit(step, in_shardings=shardings, out_shardings=everywhere, donate_argnums=0)
