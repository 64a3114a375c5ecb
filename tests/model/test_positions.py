"""Section 3.5 in closed form."""

import math

import jax.numpy as jnp
import pytest

from jformer.model.positions import sinusoids


@pytest.mark.parametrize(("position", "i"), [(0, 0), (1, 0), (7, 3), (99, 63)])
def test_even_columns_are_sines_and_odd_ones_cosines_of_the_papers_angles(position, i):
    row = sinusoids(jnp.arange(100), 128)[position]
    angle = position / 10000 ** (2 * i / 128)
    # the angle itself is a float32 of up to 100
    assert float(row[2 * i]) == pytest.approx(math.sin(angle), abs=1e-5)
    assert float(row[2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-5)
