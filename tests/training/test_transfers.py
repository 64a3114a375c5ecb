"""The train loop transfers what it has to between host and devices, and waits for no new step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jformer
from jformer.training import loop

pytestmark = pytest.mark.process

STEPS = 9
KEYS = {
    "data.vocabulary_size": 300, "data.num_buckets": 1, "model.num_layers": 1, "model.d_model": 16,
    "model.d_ff": 24, "model.num_heads": 2, "train.batch_tokens": 256, "train.steps": STEPS,
    "train.average_checkpoints": 1,
}  # fmt: skip
# What waits for an array, or gives its values to the host; `jax.device_get` calls `__array__`.
READS = {
    type(jnp.zeros(())): (
        "__array__", "__bool__", "__float__", "__format__", "__index__", "__int__", "__repr__",
        "__str__", "block_until_ready", "item", "tolist",
    ),
    jax: ("block_until_ready", "device_get"),
    np: ("array", "asarray"),  # which read the memory of an array on a CPU
}  # fmt: skip


@pytest.fixture
def run_loop(monkeypatch, tmp_path):
    """Run the train loop with its step wrapped, and with no log or checkpoint before the last."""

    def run(wrap):
        class Wrapped(loop.Training):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                self.compiled_step = wrap(self.compiled_step)
                self.likelihood = lambda params: {}

        monkeypatch.setattr(loop, "Training", Wrapped)
        pairs = [("1 2 3 " * (n % 7 + 1), "one two three " * (n % 7 + 1)) for n in range(200)]
        jformer.train(jformer.get_config("tiny:given", **KEYS), pairs, pairs[:4], tmp_path / "run")

    return run


def test_the_step_takes_nothing_that_is_not_yet_on_the_devices(run_loop):
    steps = []

    def wrap(step):
        def train_step(*arguments):
            steps.append(len(steps))
            with jax.transfer_guard("disallow"):  # raises at any transfer that is not explicit
                return step(*arguments)

        return train_step

    run_loop(wrap)
    assert len(steps) == STEPS


def test_between_two_steps_only_the_metrics_of_the_step_two_before_are_read(run_loop, monkeypatch):
    """Counted at the arrays: on a CPU a read may be without a transfer, which no guard sees."""
    dispatched, reads = [], [[] for _ in range(STEPS + 1)]  # of each step: metrics; what was read

    def record(owner, name):
        own = getattr(owner, name)

        def read(x, *arguments, **options):
            if owner is not np or isinstance(x, jax.Array):
                whose = [n for n, each in enumerate(dispatched, 1) if any(x is m for m in each)]
                reads[len(dispatched)].append((name, *whose))
            return own(x, *arguments, **options)

        monkeypatch.setattr(owner, name, read)

    def wrap(step):
        for owner, names in READS.items():
            for name in names:
                record(owner, name)

        def train_step(*arguments):
            state, metrics = step(*arguments)
            dispatched.append(list(metrics.values()))
            return state, metrics

        return train_step

    run_loop(wrap)
    assert reads[1] == [("block_until_ready",)]  # its time is that of compilation
    assert reads[2] == []
    for step in range(3, STEPS):
        metrics = [("__array__", step - 2)] * len(dispatched[0])
        assert reads[step] == [("device_get",), *metrics]
