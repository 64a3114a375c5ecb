"""Equation 1, its masks, and multi-head attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer.config import ModelConfig
from jformer.errors import UserError
from jformer.model.attention import attend, causal_mask, padding_mask, segment_mask
from jformer.model.numerics import attend_fused


def random(*shape, seed=0, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def test_a_query_that_may_see_nothing_gets_a_finite_answer_and_gradient():
    def total(q):
        k, v = random(1, 2, 3, 5), random(1, 2, 3, 7)
        return attend(q, k, v, jnp.zeros((1, 1, 1, 3), bool))[0].sum()

    value, gradient = jax.value_and_grad(total)(random(1, 2, 4, 5))
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


def test_a_wrong_shape_is_named_with_the_shape_it_has():
    with pytest.raises(ValueError, match=r"k_BHMK\b.*\bK\b.*5.*\(1, 2, 3, 6\)"):
        attend(random(1, 2, 4, 5), random(1, 2, 3, 6), random(1, 2, 3, 7), jnp.ones((1, 1, 1, 3)))


@pytest.mark.parametrize(
    ("masked", "scaled"), [("padding", True), ("causal", False), ("packed", True)]
)
def test_the_fused_attention_is_equation_1_with_the_same_gradients(masked, scaled):
    """The kernel itself needs a GPU; what calls it is the same for JAX's own implementation."""
    B, H, Q, M, K = 2, 3, 5, 5, 7  # the kernel itself takes even lengths
    q, k, v = (random(B, H, L, K, seed=n) for n, L in enumerate((Q, M, M)))
    tokens_BM = jnp.array([[5, 6, 7, 8, 9], [5, 6, 0, 0, 0]])
    segments_BM = jnp.array([[1, 1, 2, 2, 2], [1, 2, 2, 0, 0]])
    mask = {
        "padding": padding_mask(tokens_BM),
        "causal": causal_mask(Q),
        "packed": causal_mask(Q) & segment_mask(segments_BM, segments_BM),
    }[masked]
    weights = random(B, H, Q, K, seed=9)
    if masked == "packed":  # the loss ignores the padding, whose queries attend to nothing
        weights *= (segments_BM != 0)[:, None, :, None]

    def plain(q, k, v):
        return jnp.sum(attend(q, k, v, mask, scaled=scaled)[0] * weights)

    def fused(q, k, v):
        return jnp.sum(attend_fused(q, k, v, mask, scaled, implementation="xla") * weights)

    ours, others = (jax.value_and_grad(f, argnums=(0, 1, 2))(q, k, v) for f in (plain, fused))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes", [{"attention_dropout": 0.1}, {"positions": "alibi"}, {"d_k": 16, "d_v": 32}]
)
def test_what_the_kernel_of_cudnn_cannot_compute_is_an_error(changes):
    with pytest.raises(UserError, match=r"config\.model\.attention_kernel=cudnn: "):
        ModelConfig(**{"attention_kernel": "cudnn", **changes}).check()
