"""The paper in one file against the package: the same losses and the same outputs."""

import jax
import numpy as np
import pytest

from experiments import minimal
from jformer.config import (
    Config,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from jformer.data.batches import iterate, make_batches
from jformer.data.tokens import tokenize
from jformer.data.vocabulary import Vocabularies
from jformer.decoding.pool import Decoder
from jformer.decoding.translate import hypotheses
from jformer.model.transformer import Transformer
from jformer.training.loop import from_config
from tests.conftest import number_words, random_params

STEPS = 30
SIZES = {"num_layers": 2, "d_model": 32, "d_ff": 48, "num_heads": 4, "dropout": 0.0}
CONFIG = Config(
    model=ModelConfig(**SIZES, dtype="float32"),
    data=DataConfig(vocabulary_size=300, num_buckets=1),
    train=TrainConfig(batch_tokens=512),
    optimizer=OptimizerConfig(warmup_steps=100),
    decode=DecodeConfig(beam_size=1),
)
KEY, DROPOUT_KEY = jax.random.key(0), jax.random.key(1)
VALIDATION = number_words(90, 110).sources  # of two lengths


@pytest.fixture(scope="module")
def vocabularies():
    train = number_words(1, 400)
    pairs = list(zip(train.sources, train.targets, strict=True))
    return Vocabularies.train(lambda: pairs, CONFIG.data)


@pytest.fixture(scope="module")
def models(vocabularies):
    size = vocabularies.target.size
    config = minimal.Config(**SIZES, warmup_steps=CONFIG.optimizer.warmup_steps)
    return Transformer(CONFIG.model, size), minimal.Transformer(config, size)


@pytest.fixture(scope="module")
def trained(vocabularies, models):
    """The initial parameters of both, their losses, and the package's parameters at the end."""
    model, minimal_model = models
    create, step = from_config(CONFIG, model)
    state, minimal_state = create(KEY), minimal.create_state(minimal_model, KEY)
    initial = state.params, minimal_state.params
    pairs = tokenize(number_words(1, 400), vocabularies, CONFIG.data)
    batches = make_batches(CONFIG, pairs, np.arange(len(pairs.sources)), vocabularies)
    losses, step = [], jax.jit(step)
    for batch, _ in iterate(batches, STEPS):
        state, sums = step(state, batch, DROPOUT_KEY)
        minimal_state, loss = minimal.train_step(minimal_state, batch, DROPOUT_KEY)
        losses.append((float(sums["loss"] / sums["tokens"]), float(loss)))
    return initial, losses, state.params


def test_the_same_key_gives_the_same_parameters(trained):
    initial, _, _ = trained
    jax.tree.map(np.testing.assert_array_equal, *initial)


def test_training_gives_the_same_losses(trained):
    _, losses, _ = trained
    package_losses, minimal_losses = zip(*losses, strict=True)
    assert package_losses[-1] < package_losses[0] - 2
    # Sums of float32 in another order; 1e-6 was measured.
    np.testing.assert_allclose(minimal_losses, package_losses, rtol=0, atol=1e-5)


@pytest.mark.parametrize("ends", ["with EOS", "at the limit"])
def test_greedy_decoding_gives_the_outputs_of_a_beam_of_one(ends, trained, models, vocabularies):
    model, minimal_model = models
    params = trained[-1] if ends == "with EOS" else random_params(model)
    max_length = CONFIG.data.max_length
    decoder = Decoder((model,), (params,), CONFIG.decode, max_length)
    expected = [best.text for best, *_ in hypotheses(decoder, vocabularies, VALIDATION)]
    assert len(set(expected)) > 1
    outputs = minimal.translate(minimal_model, params, vocabularies.target, VALIDATION)
    assert outputs == expected
