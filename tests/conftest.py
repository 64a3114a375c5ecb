"""What every test runs under, and one small trained run that several tests read."""

import atexit
import functools
import importlib.metadata
import os
import shutil
import tempfile

# One folder serves all processes, workers and the real runs that tests start: for programs that one
# of them has compiled, and in place of the user's caches of data.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    shared = tempfile.mkdtemp(prefix="jformer-tests-")
    atexit.register(shutil.rmtree, shared, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{shared}/programs"
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["XDG_CACHE_HOME"] = f"{shared}/cache"
# Compiling takes most of the time of these tests; what their small programs gain by it, none.
# JAX_DISABLE_MOST_OPTIMIZATIONS=False in the environment runs them as users run the package.
if os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "True") == "True":
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"
    if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):  # gone since
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from jformer.config import Config, ModelConfig
from jformer.data.corpora import Split
from jformer.model.decoding import decode_step, init_cache
from jformer.model.transformer import Transformer
from jformer.schema import replaced

# A missing axis must not be broadcast into being.
jax.config.update("jax_numpy_rank_promotion", "raise")


# The keys of a whole run of seconds: one layer, one batch shape.
SMALL = {
    "model.num_layers": 1, "model.d_model": 16, "model.d_ff": 24, "model.num_heads": 2,
    "data.vocabulary_size": 300, "data.max_length": 48, "data.num_buckets": 1,
    "train.batch_tokens": 256, "train.steps": 12, "train.log_every": 4, "train.evaluate_every": 6,
    "train.checkpoint_every": 3, "train.average_checkpoints": 2, "decode.beam_size": 2,
    "decode.max_extra_length": 5,
}  # fmt: skip


def small_config(**train) -> Config:
    files = {f"data.{split}": split for split in ("train", "validation", "test")}
    keys = SMALL | files | {"data.name": "files", "decode.batch_size": 4}
    keys |= {f"train.{name}": value for name, value in train.items()}
    config = replaced(Config(name="small"), unflatten_dict(keys, sep="."))
    config.check()
    return config


def number_words(start: int, stop: int) -> Split:
    """A corpus to overfit: digits against words."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    return Split(
        [" ".join(str(n)) for n in range(start, stop)],
        [" ".join(words[int(digit)] for digit in str(n)) for n in range(start, stop)],
    )


def write_split(prefix, split: Split) -> None:
    for language, lines in (("en", split.sources), ("de", split.targets)):
        text = "".join(line + "\n" for line in lines)
        prefix.with_name(f"{prefix.name}.{language}").write_text(text, encoding="utf-8")


@pytest.fixture(scope="session")
def corpus_directory(tmp_path_factory):
    """train, validation and test as files, as `configs/tiny.py:files` reads them."""
    directory = tmp_path_factory.mktemp("corpus")
    write_split(directory / "train", number_words(100, 400))
    write_split(directory / "validation", number_words(400, 420))
    write_split(directory / "test", number_words(420, 430))
    return directory


def decode_step_of(model):
    """`decode_step` for all sentences of a batch, compiled."""
    step = functools.partial(model.apply, method=decode_step)
    return jax.jit(jax.vmap(step, in_axes=(None, 0, None, 0, 0, 0)))


def init_caches(model, B, W, T):
    """An empty cache for each of B sentences."""
    return jax.tree.map(lambda x: jnp.zeros((B, *x.shape), x.dtype), init_cache(model.config, W, T))


def file_flags(directory) -> list[str]:
    return [f"--config.data.{s}={directory / s}" for s in ("train", "validation", "test")]


def small_flags(directory, workdir) -> list[str]:
    """The command line of a run of seconds on real files."""
    small = [f"--config.{name}={value}" for name, value in SMALL.items()]
    return [
        "--config=configs/tiny.py:files",
        f"--workdir={workdir}",
        *file_flags(directory),
        *small,
    ]


@pytest.fixture(scope="session")
def trained_workdir(corpus_directory, tmp_path_factory):
    """A run directory that `main` trained and scored."""
    from jformer.main import main

    workdir = tmp_path_factory.mktemp("runs") / "small"
    assert main(["jformer", *small_flags(corpus_directory, workdir)]) == 0
    return workdir


@pytest.fixture
def during_step(monkeypatch):
    """Call something while a run in this process computes a step: `during_step({7: call})`."""
    from jformer.training.loop import Training

    due, own = {}, Training.train_step

    def train_step(self, step, batches):
        if call := due.pop(step, None):
            call()
        return own(self, step, batches)

    monkeypatch.setattr(Training, "train_step", train_step)
    return due.update


# Different sizes for different axes, prime where they can be: a swapped axis cannot pass.
MODEL = ModelConfig(num_layers=2, d_model=22, d_ff=17, num_heads=3, d_k=5, d_v=7, dropout=0.3)
B, S, T, V = 2, 11, 13, 29


@pytest.fixture(scope="session")
def model():
    return Transformer(MODEL, V)


@pytest.fixture(scope="session")
def source_BS():
    tokens = np.random.default_rng(1).integers(3, V, (B, S)).astype(np.int32)
    tokens[0, 8:] = 0  # padding, of one sentence only
    return tokens


@pytest.fixture(scope="session")
def target_BT():
    tokens = np.random.default_rng(2).integers(3, V, (B, T)).astype(np.int32)
    tokens[:, 0] = 1
    return tokens


@pytest.fixture(scope="session")
def params(model):
    return random_params(model)


def random_params(model, seed=3, deviation=0.25):
    """Random everywhere: zeros and ones of the initializer would hide a mistake.

    And drawn by numpy: compiling the initializer takes longer than compiling the model.
    """
    tokens_11 = np.ones((1, 1), np.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens_11, tokens_11)["params"]
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        noise = rng.normal(size=leaf.shape)
        is_scale = path[-1].key == "scale"  # of a norm
        return jnp.asarray(1 + 0.1 * noise if is_scale else deviation * noise, leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)
