"""Small states to save, damage to their files, and a run that dies while it saves."""

import contextlib
import os
import resource
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jformer.config import TrainConfig
from jformer.main import main
from jformer.training import checkpoints as module
from jformer.training.checkpoints import Checkpoints
from jformer.training.step import TrainState

EVERY_STEP = TrainConfig(average_checkpoints=3, checkpoint_every=1)  # each step is regular


def state_at(step, rows=8):
    params = {
        "a": jnp.arange(rows * 6, dtype=jnp.float32).reshape(rows, 6) * step,
        "b": {"c": jnp.arange(5.0) - step},
    }
    optimizer_state = optax.scale_by_adam().init(params)._replace(count=jnp.int32(step))
    ema = jax.tree.map(lambda x: x + 0.25, params)
    state = TrainState(jnp.int32(step), params, optimizer_state, ema)
    return jax.device_put(state, jax.local_devices()[0])


def save(checkpoints, *steps):
    for step in steps:
        checkpoints.save(state_at(step), {"config": {}}, {"step": step})


def restore_newest(workdir, like, train=EVERY_STEP):
    with Checkpoints(workdir, train) as checkpoints:
        state, position, _ = checkpoints.restore_newest(like)
    return state, position


def assert_same(tree, expected):
    """Raise unless both are equal, bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, tree, expected)


@contextlib.contextmanager
def full_disk():
    """Let no file grow beyond 20 kB: a write fails in the middle of a file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0b100
    path.write_bytes(content)


def weights(step):
    """Return the largest file of the parameters."""
    return max((step / "params/ocdbt.process_0/d").iterdir(), key=lambda path: path.stat().st_size)


def train_and_die(workdir, step, *flags):
    """Run the command line in another process, which dies as it writes a step's checkpoint."""
    command = [sys.executable, "-m", "tests.training.saving", str(step), *flags]
    killed = subprocess.run([*command, f"--workdir={workdir}"], stderr=subprocess.PIPE)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


if __name__ == "__main__":
    dying_step, *arguments = sys.argv[1:]
    own = module.write_sums

    def write_sums(partial, pattern):
        own(partial, pattern)
        if partial.name.startswith(f"{dying_step}."):
            os.kill(os.getpid(), signal.SIGKILL)

    module.write_sums = write_sums
    main(["jformer", *arguments])
