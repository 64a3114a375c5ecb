"""Other programs' names and shapes of our parameters."""

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from jformer.extras.interop.layouts import array_of, matrix_of, tensor_name
from tests.extras.interop.small import random_run


@pytest.mark.parametrize("bias", [False, True])
def test_every_parameter_has_a_name_and_comes_back_in_its_shape(bias):
    run = random_run(attention_bias=bias)
    flat = flatten_dict(run.params, sep="/")
    layers = {name: np.asarray(array) for name, array in flat.items() if "/" in name}
    for layout in ("annotated", "marian"):
        assert len({tensor_name(name, layout) for name in layers}) == len(layers)
    for name, array in layers.items():
        matrix = matrix_of(name, array)
        assert matrix.ndim <= 2
        np.testing.assert_array_equal(array_of(name, matrix, array.shape), array)
