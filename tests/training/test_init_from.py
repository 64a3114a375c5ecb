"""Parameters out of a run directory, and into the first state of another run."""

import dataclasses
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import jformer
from jformer.config import Config, TrainConfig
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError
from jformer.main import main
from jformer.model.transformer import Transformer
from jformer.training.init_from import initial_params
from tests.conftest import small_flags

pytestmark = pytest.mark.process


def saved(workdir, step, folder="checkpoints"):
    """Return the parameters of a checkpoint as arrays of numpy, by orbax alone."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as reader:
        return reader.restore((workdir / folder / str(step) / "params").absolute())


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def mean(*trees):
    return jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), axis=0), *trees)


@pytest.mark.parametrize(
    ("checkpoint", "steps"),
    [
        ("last", [12]), (9, [9]), ("average", [9, 12]), ("9,12", [9, 12]),
    ],
)  # fmt: skip
def test_parameters_are_those_of_the_checkpoints_that_are_named(trained_workdir, checkpoint, steps):
    run = jformer.load(trained_workdir, checkpoint)
    # Equal bits: the sum of two is rounded once, and its half is exact.
    assert_same(run.params, mean(*(saved(trained_workdir, step) for step in steps)))
    assert run.step == steps[-1]


def test_the_best_is_a_checkpoint_of_its_own(trained_workdir, tmp_path):
    best = jformer.load(trained_workdir, "best")
    assert str(best.step) in [path.name for path in (trained_workdir / "best").iterdir()]
    assert_same(best.params, saved(trained_workdir, best.step, "best"))
    copy = shutil.copytree(trained_workdir, tmp_path / "copy")
    shutil.rmtree(copy / "best")
    with pytest.raises(UserError, match=r"copy\b.*\bbest"):
        jformer.load(copy, "best")


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ("lats", r"checkpoint 'lats'.*\baverage, last, best\b"),
        (10, r"step 10\b.*9, 12"),
        ("9,10", r"step 10\b.*9, 12"),
    ],
)
def test_a_checkpoint_that_does_not_exist_is_one_line(trained_workdir, checkpoint, message):
    with pytest.raises(UserError, match=message) as caught:
        jformer.load(trained_workdir, checkpoint)
    assert "\n" not in str(caught.value)


# ---- train.init_from


STANDING_STILL = "--config.optimizer.schedule=equation_3(factor=1e-30)"


def test_a_new_run_takes_the_parameters_of_another_and_nothing_else_of_it(
    trained_workdir, corpus_directory, tmp_path, capsys
):
    flags = [*small_flags(corpus_directory, tmp_path / "run"), "--config.train.steps=1"]
    flags += [STANDING_STILL, "--config.train.ema_decay=0.5"]
    assert main(["jformer", *flags, f"--config.train.init_from={trained_workdir}@9"]) == 0
    theirs = jformer.load(trained_workdir, 9)
    last, average = (jformer.load(tmp_path / "run", which) for which in ("last", "average"))
    assert last.step == 1
    assert_same(last.params, theirs.params)
    # The moving average is rounded: it is the mean of these parameters with themselves.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), average.params, theirs.params
    )
    message = rf"{trained_workdir}\b.*step {theirs.step}\b.*new: 0 of"
    assert re.search(message, capsys.readouterr().err)


def new_params(config, vocabularies, **model):
    """Return initial parameters of a model like the trained one, except for what `model` sets."""
    changed = dataclasses.replace(config.model, **model)
    transformer = Transformer(changed, vocabularies.target.size, vocabularies.source.size)
    tokens_11 = jnp.ones((1, 1), jnp.int32)
    return jax.jit(transformer.init)(jax.random.key(1), tokens_11, tokens_11)["params"]


def beginning_with(init_from):
    return Config(train=TrainConfig(init_from=str(init_from)))


def entries(vocabulary, path):
    """Return the entries of a vocabulary by their ids, from its file."""
    vocabulary.save(path)
    model = json.loads(path.read_text())["model"]
    return {i + 3: name for name, i in model["vocab"].items()}


def test_equal_shapes_and_the_rows_of_equal_tokens_are_taken_and_the_rest_is_new(
    trained_workdir, tmp_path, capsys
):
    run = jformer.load(trained_workdir)
    learned = run.vocabulary.tokens(range(259, run.vocabulary.size))
    other = Vocabulary.train([" ".join(learned[::-1]), "more words"], 283)  # in another order
    own = new_params(run.config, Vocabularies(other, other), d_ff=20)
    taken = initial_params(beginning_with(trained_workdir), own, Vocabularies(other, other))
    flat, own_flat, run_flat = (flatten_dict(tree, sep="/") for tree in (taken, own, run.params))
    assert flat.keys() == own_flat.keys() == run_flat.keys()
    for name in flat.keys() - {"embedding"}:
        is_new = own_flat[name].shape != run_flat[name].shape
        np.testing.assert_array_equal(flat[name], own_flat[name] if is_new else run_flat[name])

    ours, theirs = (entries(each, tmp_path / "v.json") for each in (other, run.vocabulary))
    rows_of = {name: run.params["embedding"][i] for i, name in theirs.items()}
    new = sum(name not in rows_of for name in ours.values())
    assert_same(taken["embedding"][:3], run.params["embedding"][:3])  # PAD, BOS, EOS
    for i, name in ours.items():
        assert_same(taken["embedding"][i], rows_of.get(name, own["embedding"][i]))
    assert other.size != run.vocabulary.size
    assert 0 < new < len(ours) - 256
    assert re.search(rf"new: 6 of .* {new} rows\b", capsys.readouterr().err)
