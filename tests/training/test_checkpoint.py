"""What is saved is what is restored, and the average is the mean."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jformer.config import UserError
from jformer.training.checkpoint import Checkpoints
from jformer.training.step import TrainState
from tests.conftest import small_config

CONFIG = small_config()


def state_at(step):
    params = {"a": jnp.full((2, 3), float(step)), "b": {"c": jnp.arange(5.0) * step}}
    return jax.device_put(
        TrainState(jnp.int32(step), params, optax.scale_by_adam().init(params)), jax.devices()[0]
    )


@pytest.fixture
def saved(tmp_path):
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        for step in (2, 4, 6, 8):
            position = {"data": {"next_index": step}, "window": {"loss": 0.1 * step}}
            checkpoints.save(state_at(step), position, CONFIG, "hash")
    return tmp_path


def test_a_restored_state_and_position_equal_the_saved_ones(saved):
    with Checkpoints(saved, keep=3) as checkpoints:
        state, position = checkpoints.restore(6, state_at(0))
    jax.tree.map(np.testing.assert_array_equal, state, state_at(6))
    assert position == {"data": {"next_index": 6}, "window": {"loss": 0.1 * 6}}


def test_only_the_last_few_are_kept(saved):
    with Checkpoints(saved, keep=3) as checkpoints:
        assert checkpoints.steps() == [4, 6, 8]


def test_the_average_is_the_mean_of_the_parameters(saved):
    with Checkpoints(saved) as checkpoints:
        average = checkpoints.average_params(state_at(0).params, [4, 8])
    jax.tree.map(np.testing.assert_allclose, average, state_at(6).params)


def test_another_vocabulary_than_that_of_the_checkpoint_is_refused(saved):
    with Checkpoints(saved) as checkpoints:
        checkpoints.check_vocabulary(8, "hash")
        with pytest.raises(UserError, match=r"vocabulary\.json: not the vocabulary that"):
            checkpoints.check_vocabulary(8, "other hash")


def test_reading_writes_nothing(saved):
    before = sorted(saved.rglob("*"))
    with Checkpoints(saved) as checkpoints:
        checkpoints.average_params(state_at(0).params, checkpoints.steps())
    assert sorted(saved.rglob("*")) == before
