"""Parts of a user's own, from a file to a trained run that others open."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import jformer
from jformer import plugins, results
from jformer.errors import UserError
from jformer.main import main
from tests.conftest import small_flags

STORED = Path("tests/stored_run/run")
ONE = """
import jax.numpy as jnp
import optax
from flax import linen as nn
from jformer.model.attention import attend

def cosine(q_BHQK, k_BHMK, v_BHMU, mask_B1QM, bias_BHQM, scaled, drop):
    q, k = (x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6) for x in (q_BHQK, k_BHMK))
    return attend(10 * q, k, v_BHMU, mask_B1QM, bias_BHQM, False, drop)

def swiglu(hidden_BLF):
    gates, values = jnp.split(hidden_BLF, 2, axis=-1)
    return nn.silu(gates) * values

class Same(nn.Module):
    @nn.compact
    def __call__(self, x_BLD):
        return x_BLD * self.param("factor", nn.initializers.ones, x_BLD.shape[-1:])[None, None]

def lion(config):
    return optax.scale_by_lion(config.beta1, config.beta2)

def backwards(config):
    pairs = [(f"{n} {n}", str(n)[::-1]) for n in range(100, 140)]
    return {"train": pairs, "validation": iter(pairs[:5]), "test": (pair for pair in pairs[5:8])}

number = 3
"""
PAIRS = [(f"{number} {number}", str(number)[::-1]) for number in range(100, 140)]
SMALL = {
    "model.num_layers": 1, "model.d_model": 16, "model.d_ff": 24, "model.num_heads": 2,
    "data.vocabulary_size": 300, "data.max_length": 24, "data.num_buckets": 1,
    "train.batch_tokens": 128, "train.steps": 6, "train.checkpoint_every": 3,
    "decode.max_extra_length": 3, "decode.beam_size": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The tests are in a folder of their own, with a file of parts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "parts.py").write_text(ONE)
    return tmp_path


def run_main(*arguments):
    return main(["jformer", *map(str, arguments)])


def own_config(folder, **keys):
    return jformer.get_config("tiny:given", plugins=str(folder / "parts.py"), **SMALL, **keys)


def trained(folder, **keys):
    return jformer.train(own_config(folder, **keys), PAIRS, PAIRS[:5], folder / "run")


def test_own_parts_are_trained_and_the_run_keeps_a_copy_of_their_file(folder, capsys):
    parts = {"attention": "cosine", "norm": "Same", "activation": "swiglu"}
    keys = {f"model.{key}": name for key, name in parts.items()}
    run = trained(folder, **keys, **{"optimizer.name": "lion"})
    layer = run.params["encoder_0"]
    assert np.any(np.asarray(layer["feed_forward_residual"]["norm"]["factor"]) != 1)
    assert layer["feed_forward"]["ffn_in"]["kernel"].shape[1] == 24
    assert layer["feed_forward"]["ffn_out"]["kernel"].shape[0] == 12
    copy = run.workdir / "plugins" / "parts.py"
    assert copy.read_text() == ONE
    again = jformer.load(run.workdir, plugins=[copy])
    assert "has changed" not in capsys.readouterr().err
    jax.tree.map(np.testing.assert_array_equal, run.params, again.params)
    assert again.translate(["120 120"]) == run.translate(["120 120"])
    before = run.score(["120 120"], ["021"])[0].log_prob
    usual = run.model.clone(config=dataclasses.replace(run.model.config, attention="dot_product"))
    assert dataclasses.replace(run, model=usual).score(["120 120"], ["021"])[0].log_prob != before


def test_a_file_is_run_once_and_may_import_a_part_of_ours(folder):
    first = f"with open({str(folder / 'runs')!r}, 'a') as file: file.write('once')\n"
    (folder / "parts.py").write_text(f"{first}from flax.linen import RMSNorm, relu\n")
    keys = {"plugins": folder / "parts.py", "model.norm": "RMSNorm", "model.activation": "relu"}
    flags = [f"--config.{key}={value}" for key, value in {**SMALL, **keys}.items()]
    assert run_main("summary", "--config=tiny", *flags) == 0
    assert (folder / "runs").read_text() == "once"


@pytest.mark.process
def test_a_stopped_run_with_own_parts_ends_with_the_bits_of_an_undisturbed_one(folder):
    keys = {"model.norm": "Same", "optimizer.name": "lion"}
    config = own_config(folder, **keys, **{"train.log_every": 1})
    whole = jformer.train(config, PAIRS, PAIRS[:5], folder / "whole")
    jformer.train(config, PAIRS, PAIRS[:5], folder / "run", lambda step, *_: step == 4)
    resumed = jformer.train(config, PAIRS, PAIRS[:5], folder / "run")
    assert resumed.step == 6
    jax.tree.map(np.testing.assert_array_equal, whole.params, resumed.params)


@pytest.fixture
def strange_run(folder):
    """A run of somebody else's whose plugin leaves a file when it is run."""
    workdir = folder / "strange"
    shutil.copytree(STORED, workdir)
    config = json.loads((workdir / "config.json").read_text())
    config["plugins"] = str(folder / "strange.py")
    config["model"]["norm"] = "Strange"
    (workdir / "config.json").write_text(json.dumps(config))
    code = f"open({str(folder / 'was-run')!r}, 'w')\nfrom flax.linen import LayerNorm as Strange\n"
    for file in (folder / "strange.py", workdir / "plugins" / "strange.py"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
    return workdir


@pytest.mark.parametrize(
    "command",
    [
        ["translate"],
        ["score", "--data=tests/stored_run/test"],
        ["evaluate"],
        ["evaluate", "--data=tests/stored_run/test"],
        ["translate", "--config.decode.beam_size=1"],
    ],
    ids=" ".join,
)
def test_opening_a_run_does_not_run_code_that_was_not_named(command, strange_run, folder, capsys):
    assert run_main(*command, f"--workdir={strange_run}") == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    assert "config.model.norm=Strange" in line
    assert f"--plugins={strange_run}/plugins/strange.py" in line
    assert not (folder / "was-run").exists()


def test_neither_load_nor_report_runs_a_plugin_that_was_not_named(strange_run, folder, capsys):
    with pytest.raises(UserError, match="is Python code of its author"):
        jformer.load(strange_run)
    assert run_main("report", strange_run) == 0
    other = small_flags(STORED.parent, folder / "new")
    assert run_main(*other, f"--config.train.init_from={strange_run}") == 2
    assert not (folder / "was-run").exists()


@pytest.mark.process
def test_a_run_whose_optimizer_and_data_alone_are_own_opens_without_them(folder):
    keys = {"optimizer.name": "lion", "data.name": "backwards"}
    config = own_config(folder, **keys)
    run = jformer.train(config, workdir=folder / "run")
    assert jformer.load(run.workdir).translate(["120 120"]) == run.translate(["120 120"])
    assert run_main("evaluate", f"--workdir={run.workdir}") == 2  # its test set is the plugin's


@pytest.mark.process
def test_the_test_sets_of_an_own_data_set_are_scored(folder, capsys):
    flags = [f"--config.{key}={value}" for key, value in SMALL.items()]
    plugin, workdir = folder / "parts.py", f"--workdir={folder / 'run'}"
    train = ["--config=tiny:backwards", f"--config.plugins={plugin}", workdir, *flags]
    assert run_main(*train) == 0
    trained = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert run_main("evaluate", workdir, f"--plugins={plugin}") == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert scores["test"]["bleu"] == trained["test"]["bleu"]
    assert {*scores} == {"validation", "test"}
    assert run_main(*train) == 0
    assert "is complete at step 6" in capsys.readouterr().err


@pytest.mark.process
def test_a_changed_plugin_is_reported_and_its_scores_are_not_taken_for_known(folder, capsys):
    run = trained(folder, **{"model.norm": "Same"})
    (folder / "parts.py").write_text(ONE.replace("return x_BLD *", "return 2 * x_BLD *"))
    tests = {"test": results.TestSet(["120 120"], [["021"]])}
    results.score_all(run, tests)
    jformer.load(run.workdir, plugins=[folder / "parts.py"])
    assert "parts.py: has changed since this process has run it" in capsys.readouterr().err
    assert results.known_scores(run, tests)
    plugins.load.cache_clear()  # as in a new process
    again = jformer.load(run.workdir, plugins=[folder / "parts.py"])
    assert "parts.py: has changed since" in capsys.readouterr().err
    assert not results.known_scores(again, tests)
    longer = dataclasses.replace(run.config, train=dataclasses.replace(run.config.train, steps=7))
    jformer.train(longer, PAIRS, PAIRS[:5], run.workdir)
    assert "results may differ" in capsys.readouterr().err


MISTAKES = {
    "no such file": ({"plugins": "none.py"}, "", "plugins=none.py: cannot be read (No such file"),
    "a folder": ({"plugins": "/"}, "", "config.plugins=/: cannot be read (Is a directory)"),
    "no Python": ({"plugins": "parts.txt"}, "A note.", "parts.txt:1: SyntaxError: invalid syntax"),
    "syntax": ({}, "def f(:", "parts.py:1: SyntaxError"),
    "import": ({}, "\nimport nothing_of_that_name", "parts.py:2: ModuleNotFoundError"),
    "exit": ({}, "raise SystemExit(3)", "parts.py:1: SystemExit: 3"),
    "misspelled": ({}, "def Sane(): pass", "Same: is not defined in parts.py; did you mean Sane?"),
    "a number": ({}, "Same = 3", "norm=Same: is no function and no class in parts.py"),
    "wrong arguments": ({}, "def Same(): pass", "norm=Same: failed in a trial step (TypeError"),
    "raises": ({}, "\ndef Same(x_BLD):\n    return x_BLD.shap", "parts.py:3: AttributeError"),
    "another shape": ({}, "def Same(x_BLD):\n    return x_BLD[:, :1]", "norm=Same: failed in"),
    "a mistake in long texts alone": (
        {"model.norm": "layer_norm", "model.activation": "first"},
        "def first(hidden_BLF):\n    return hidden_BLF[:, :3]",
        "activation=first: failed in a trial step",
    ),
    "a name of ours": (
        {"model.norm": "layer_norm", "model.activation": "gelu"},
        "from flax.linen import relu as layer_norm\ndef gelu(x):\n    return x",
        "activation=gelu: is one of ours, and parts.py defines another; rename that",
    ),
    "no plugin": ({"plugins": ""}, "", "model.norm=Same: is unknown; there are layer_norm, sample"),
    "optimizer": (
        {"model.norm": "layer_norm", "optimizer.name": "sgd"},
        "def sgd(config):\n    return config.speed",
        "optimizer.name=sgd: parts.py:2: AttributeError",
    ),
    "no dict": (
        {"model.norm": "layer_norm", "data.name": "mine"},
        "def mine(config):\n    return [('a', 'b')]",
        "data.name=mine: must return a dict of splits",
    ),
    "no pairs": (
        {"model.norm": "layer_norm", "data.name": "mine"},
        "def mine(config):\n    return {'train': ['a'], 'validation': []}",
        "data.name=mine: train[0] must be (source, target), not 'a'",
    ),
    "empty": (
        {"model.norm": "layer_norm", "data.name": "mine"},
        "def mine(config):\n    return {'train': [('a', 'b')], 'validation': []}",
        "data.name=mine: validation: is empty",
    ),
    "a generator that raises": (
        {"model.norm": "layer_norm", "data.name": "mine"},
        "def mine(config):\n    none = (1 / n for n in [0])\n"
        "    return {'train': none, 'validation': none}",
        "data.name=mine: parts.py:2: ZeroDivisionError",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("keys", "code", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_before_any_work(keys, code, message, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    keys = {"plugins": "parts.py", "model.norm": "Same", **SMALL, **keys}
    Path("parts.txt").write_text(code)
    Path("parts.py").write_text(code)
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    assert run_main("--config=tiny", "--workdir=run", *flags) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert message in line
    assert not Path("run").exists()


def test_an_attention_that_trains_but_cannot_decode_is_told_before_the_training(folder):
    code = """
from jformer.model.attention import attend

def square(q, k, v, mask, *rest):
    assert q.shape[2] == k.shape[2] or mask.shape[2] == 1, "as many queries as keys"
    return attend(q, k, v, mask, *rest)
"""
    (folder / "parts.py").write_text(code)
    with pytest.raises(UserError, match=r"parts.py:5: AssertionError: as many queries as keys"):
        trained(folder, **{"model.attention": "square"})
