"""Trains five steps on one device and on eight; run by test_parallel in a process of its own."""

import jax
import numpy as np

from jformer.config import ModelConfig, OptimizerConfig
from jformer.model.transformer import Transformer
from jformer.training import parallel
from jformer.training.optimizer import make_optimizer
from jformer.training.step import create_state, make_train_step


def train(devices):
    model = Transformer(ModelConfig(num_layers=1, d_model=16, d_ff=24, num_heads=2), 31)
    optimizer = make_optimizer(OptimizerConfig(), lambda count: 1e-2)
    mesh = parallel.make_mesh(devices)
    everywhere = parallel.replicated(mesh)
    create = jax.jit(lambda key: create_state(model, optimizer, key), out_shardings=everywhere)
    state = create(jax.random.key(0))
    step = parallel.compile_train_step(make_train_step(model, optimizer, 0.1, "all"), mesh)
    key = jax.device_put(jax.random.key(1), everywhere)
    losses = []
    for i in range(5):
        rng = np.random.default_rng(i)
        lengths = rng.integers(1, 12, 13)  # 13 rows, of unequal length, on eight devices
        target = rng.integers(3, 31, (13, 13)) * (np.arange(13) <= lengths[:, None])
        rows = target[:, 1:].astype(np.int32)
        batch = {"source_BS": rows, "target_BT": target[:, :-1].astype(np.int32), "labels_BT": rows}
        state, metrics = step(state, parallel.place_batch(batch, mesh), key)
        losses.append(float(metrics["loss"] / metrics["tokens"]))
    return losses, jax.device_get(state.params)


assert jax.local_device_count() == 8
(losses_1, params_1), (losses_8, params_8) = train(jax.devices()[:1]), train(jax.devices())
# Float32 sums in another order, divided by Adam's small second moments: hence 1e-4 after 5 steps.
np.testing.assert_allclose(losses_1, losses_8, rtol=1e-5)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), params_1, params_8)
