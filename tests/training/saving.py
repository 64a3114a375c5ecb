"""Processes of their own that save, for test_checkpoint: one to be killed, one with eight devices,
two together. `python -m tests.training.saving WHAT DIRECTORY ...`
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jformer.config import TrainConfig
from jformer.training import checkpoint
from jformer.training.checkpoint import Checkpoints
from jformer.training.step import TrainState
from tests.conftest import small_config

CONFIG = small_config()


def state_at(step, rows=8, columns=6, ema=False):
    params = {
        "a": jnp.arange(rows * columns, dtype=jnp.float32).reshape(rows, columns) * step,
        "b": {"c": jnp.arange(5.0) - step},
    }
    optimizer_state = optax.scale_by_adam().init(params)._replace(count=jnp.int32(step))
    averages = jax.tree.map(lambda x: x + 0.25, params) if ema else None
    return jax.device_put(
        TrainState(jnp.int32(step), params, optimizer_state, averages), jax.local_devices()[0]
    )


def position_at(step):
    return {"data": {"next_index": step}, "window": {"loss": 0.1 * step}}


def save(checkpoints, *steps, **kinds):
    for step in steps:
        checkpoints.save(state_at(step, **kinds), position_at(step), CONFIG, "hash")


def assert_same(state, step, **kinds):
    """Raise where it is not the state of this step, bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, state, state_at(step, **kinds))


def sharded(state):
    """Rows over all devices where there are eight, everything else on each."""
    mesh = Mesh(np.asarray(jax.devices()), "x")

    def place(x):
        axes = PartitionSpec("x") if x.shape[:1] == (8,) else PartitionSpec()
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, axes), x.__getitem__)

    return jax.tree.map(place, jax.device_get(state))


def for_ever(directory):
    """To be killed: large enough that most moments lie within a save."""
    with Checkpoints(directory, TrainConfig(keep_checkpoints=5, checkpoint_every=1)) as checkpoints:
        step = max(checkpoints.steps(), default=0)
        while True:
            step += 1
            save(checkpoints, step, rows=2000, columns=200)


def on_eight_devices(directory):
    """Restore what one device wrote, write for one device."""
    assert jax.device_count() == 8
    with Checkpoints(directory, TrainConfig(checkpoint_every=1)) as checkpoints:
        state, _ = checkpoints.restore_newest(sharded(state_at(0)), "hash")
        assert len(state.params["a"].sharding.device_set) == 8
        assert state.params["a"].addressable_shards[0].data.shape == (1, 6)
        assert_same(state, 2)
        checkpoints.save(sharded(state_at(4)), position_at(4), CONFIG, "hash")


def two_together(directory, number, port):
    """Save and restore on the devices of both, fall back together; the first reads alone."""
    jax.distributed.initialize(f"localhost:{port}", 2, int(number), initialization_timeout=60)
    assert jax.device_count() == 8
    with Checkpoints(directory, TrainConfig(checkpoint_every=1)) as checkpoints:
        for step in (2, 4):
            checkpoints.save(sharded(state_at(step)), position_at(step), CONFIG, "hash")
            checkpoints.save_best(sharded(state_at(step)), 0.1, CONFIG, "hash")
    if number == "0":
        (directory / "checkpoints" / "4" / "position" / "metadata").write_text("{}")
    else:
        checkpoint.verify_checksums = None  # one process reads all files, and tells the other
    with Checkpoints(directory, TrainConfig(checkpoint_every=1)) as checkpoints:
        state, position = checkpoints.restore_newest(sharded(state_at(0)), "hash")
        assert position == position_at(2)
        for shard in state.params["a"].addressable_shards:
            np.testing.assert_array_equal(
                shard.data, np.asarray(state_at(2).params["a"])[shard.index]
            )
        checkpoints.save(sharded(state_at(4)), position_at(4), CONFIG, "hash")
    if number == "0":
        with Checkpoints(directory) as checkpoints:
            assert checkpoints.steps() == [2, 4]
            assert checkpoints.best_step() == 4
            like = state_at(0)
            assert_same(checkpoints.restore(4, like)[0], 4)
            jax.tree.map(
                np.testing.assert_array_equal,
                checkpoints.params([2, 4], like.params),
                state_at(3).params,
            )


if __name__ == "__main__":
    what, directory, *rest = sys.argv[1:]
    globals()[what](Path(directory), *rest)
