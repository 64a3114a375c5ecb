"""How the model is computed: in bfloat16, with rematerialization, as a scan over the layers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jformer import components
from jformer.model.transformer import Transformer
from tests.conftest import MODEL, V
from tests.model.test_parts import ADDITIVE

pytestmark = pytest.mark.process

N = MODEL.num_layers
WAYS = [{"remat": "layer"}, {"remat": "dots"}, {"scan_layers": True}]
ALL = {"scan_layers": True, "remat": "layer", "dtype": "bfloat16"}
WAYS += [ALL]


def make(**changes):
    return Transformer(dataclasses.replace(MODEL, **changes), V)


def nothing(x_BLD):
    return x_BLD


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, *tokens, segments=None, rngs=None):
    train = rngs is not None
    return model.apply({"params": params}, *tokens, train, segments=segments, rngs=rngs)


@functools.partial(jax.jit, static_argnames=("model", "train"))
def value_and_grad(model, params, source_BS, target_BT, train=False):
    """NLL of the targets, and its gradient."""

    def loss(params):
        rngs = {"dropout": jax.random.key(5)}
        logits_BTV = model.apply({"params": params}, source_BS, target_BT, train=train, rngs=rngs)
        nll_BTV = -jax.nn.log_softmax(logits_BTV) * jax.nn.one_hot(target_BT, V)
        return jnp.sum(nll_BTV) / target_BT.size

    return jax.value_and_grad(loss)(params)


def shapes_of(model, source_BS, target_BT):
    return jax.eval_shape(model.init, jax.random.key(0), source_BS, target_BT)["params"]


def random_params(model, source_BS, target_BT):
    rng = np.random.default_rng(3)
    return jax.tree.map(
        lambda x: (0.3 * rng.normal(size=x.shape)).astype(np.float32),
        shapes_of(model, source_BS, target_BT),
    )


def assert_trees_close(a, b, **tolerance):
    jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerance), a, b)


@pytest.fixture(scope="module")
def bfloat16():
    return make(dtype="bfloat16")


def test_in_bfloat16_parameters_gradients_and_logits_are_float32(bfloat16, source_BS, target_BT):
    arguments = shapes_of(bfloat16, source_BS, target_BT), source_BS, target_BT
    logits_BTV, (_, gradients) = (
        jax.eval_shape(functools.partial(f, bfloat16), *arguments) for f in (apply, value_and_grad)
    )
    for tree in (arguments[0], gradients, logits_BTV):
        assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {jnp.float32.dtype}


def test_bfloat16_is_float32_up_to_its_rounding(model, bfloat16, params, source_BS, target_BT):
    exact, rounded = (apply(m, params, source_BS, target_BT) for m in (model, bfloat16))
    # Numbers around 1 are rounded by up to 2^-9. Some 50 roundings on the way of a logit add up at
    # random to a deviation of 0.01.
    np.testing.assert_allclose(rounded, exact, atol=0.07)
    assert np.max(np.abs(rounded - exact)) > 0.005
    exact, rounded = (value_and_grad(m, params, source_BS, target_BT)[1] for m in (model, bfloat16))
    flat = [np.concatenate([x.ravel() for x in jax.tree.leaves(g)]) for g in (exact, rounded)]
    # The same deviation, in relation to the gradient's length.
    assert np.linalg.norm(flat[1] - flat[0]) < 0.03 * np.linalg.norm(flat[0])


def test_initial_parameters_are_the_same_however_the_model_is_computed(model, source_BS, target_BT):
    shapes = [shapes_of(m, source_BS, target_BT) for m in (model, *(make(**c) for c in WAYS))]
    assert shapes.count(shapes[0]) == 1 + len(WAYS)
    trees = [jax.jit(m.init)(jax.random.key(0), source_BS, target_BT) for m in (model, make(**ALL))]
    jax.tree.map(np.testing.assert_array_equal, *trees)


def test_remat_draws_the_same_masks_and_gives_the_same_gradients(params, source_BS, target_BT):
    (value, grads), (value_again, grads_again) = (
        value_and_grad(make(remat=remat), params, source_BS, target_BT, train=True)
        for remat in ("none", "layer")
    )
    # The same formulas, compiled in other pieces: float32 rounding.
    np.testing.assert_allclose(value, value_again, rtol=1e-6)
    assert_trees_close(grads, grads_again, atol=1e-6)


def test_remat_keeps_the_products_or_what_enters_a_layer(source_BS, target_BT):
    def kept(remat):
        model = make(remat=remat, scan_layers=True, num_layers=4)

        def backward(params):
            rngs = {"dropout": jax.random.key(0)}
            return jax.vjp(lambda p: apply(model, p, source_BS, target_BT, rngs=rngs), params)[1]

        # The backward pass is a tree whose leaves are all that it was left.
        leaves = jax.tree.leaves(jax.eval_shape(backward, shapes_of(model, source_BS, target_BT)))
        return sum(leaf.size for leaf in leaves) - parameters

    shapes = shapes_of(make(num_layers=4), source_BS, target_BT)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    none, dots, layer = kept("none"), kept("dots"), kept("layer")
    assert layer < dots / 2 < none / 4


def test_without_dropout_a_scan_over_the_layers_gives_the_same_gradients(source_BS, target_BT):
    components.allow(components.parse(ADDITIVE).file)
    unrolled, scanned = (
        make(norm_position="pre", attention=ADDITIVE, scan_layers=scan) for scan in (False, True)
    )
    params = random_params(unrolled, source_BS, target_BT)
    value, grads = value_and_grad(unrolled, params, source_BS, target_BT)
    value_again, grads_again = value_and_grad(scanned, params, source_BS, target_BT)
    # The same formulas, compiled in other pieces: float32 rounding.
    np.testing.assert_allclose(value, value_again, rtol=1e-6)
    assert_trees_close(grads, grads_again, rtol=1e-5, atol=1e-6)


def test_packed_rows_go_through_a_scan(params):
    segments_BL = np.array([[1, 1, 1, 2, 2, 0, 0], [1, 2, 2, 2, 3, 3, 3]])
    tokens_BL = np.random.default_rng(0).integers(3, V, segments_BL.shape) * (segments_BL > 0)
    logits = [
        apply(
            make(scan_layers=s), params, tokens_BL, tokens_BL, segments=(segments_BL, segments_BL)
        )
        for s in (False, True)
    ]
    np.testing.assert_allclose(*logits, atol=1e-5)  # float32 rounding


def test_each_layer_of_a_scan_draws_masks_of_its_own(source_BS, target_BT, monkeypatch):
    """With a feed-forward network that says 1 and nothing else, the memory counts the layers whose
    masks have kept an element."""
    monkeypatch.setitem(components.BUILT_IN["norm"], "nothing", "tests.model.test_compute:nothing")
    model = make(norm="nothing", positions="none", scan_layers=True)
    shapes = shapes_of(model, source_BS, target_BT)
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    for n in range(N):
        params[f"encoder_{n}"]["feed_forward"]["ffn_out"]["bias"] += 1
    memory_BSD, other_BSD = (
        model.apply(
            {"params": params}, source_BS, True, method="encode",
            rngs={"dropout": jax.random.key(key)},
        ) * (1 - MODEL.dropout)
        for key in (0, 1)
    )  # fmt: skip
    draws, both = memory_BSD.size, (1 - MODEL.dropout) ** 2
    for number, share in ((1, 1 - both - MODEL.dropout**2), (2, both)):
        error = 5 * (share * (1 - share) / draws) ** 0.5  # five deviations
        assert abs(np.mean(np.round(memory_BSD) == number) - share) < error
    assert not np.allclose(memory_BSD, other_BSD)
