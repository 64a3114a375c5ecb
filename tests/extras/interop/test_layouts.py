"""Other programs' names and shapes of our parameters."""

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from jformer.extras.interop.layouts import MARIAN, array_of, leaves, matrix_of
from tests.extras.interop.small import random_run


@pytest.mark.parametrize("bias", [False, True])
def test_every_parameter_has_a_name_and_comes_back_in_its_shape(bias):
    run = random_run(attention_bias=bias)
    flat = flatten_dict(run.params, sep="/")
    assert set(flat) == {"embedding", *leaves(MARIAN, run.config.model)}
    for name, array in flat.items():
        if name != "embedding":
            matrix = matrix_of(name, np.asarray(array))
            assert matrix.ndim <= 2
            np.testing.assert_array_equal(array_of(name, matrix, array.shape), array)
