"""Components: from a string in the config to a trained run that others open."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import jformer
from jformer import components
from jformer.components import arguments, find, parse, split_list
from jformer.main import main
from jformer.rundir import read_metrics
from tests import conftest
from tests.documented import blocks

PAGE = Path("docs/components.md")
ONE = """
import jax.numpy as jnp
import optax
from flax import linen as nn

from jformer.model.attention import attend

class GatedWindow(nn.Module):
    width: int

    @nn.compact
    def __call__(self, q_BHQK, k_BHMK, v_BHMU, mask_B1QM, distances_BQM, kind, *others):
        if kind != "cross":
            mask_B1QM &= (jnp.abs(distances_BQM) < self.width)[:, None]
        mixed, weights = attend(q_BHQK, k_BHMK, v_BHMU, mask_B1QM, distances_BQM, kind, *others)
        gate = self.param("gate", nn.initializers.ones, v_BHMU.shape[-1:])[None, None, None]
        return mixed * nn.sigmoid(gate), weights

class Same(nn.Module):
    factor: float = 1.0

    @nn.compact
    def __call__(self, x_BLD):
        weights = self.param("factor", nn.initializers.ones, x_BLD.shape[-1:])[None, None]
        return x_BLD * weights * self.factor

def lion(*, b1=0.9, b2=0.98):
    return optax.scale_by_lion(b1, b2)

def backwards(config, with_train, *, first=100):
    pairs = [(f"{n} {n}", str(n)[::-1]) for n in range(first, first + 40)]
    return {"train": pairs, "validation": iter(pairs[:5]), "test": (pair for pair in pairs[5:8])}

number = 3
"""
PAIRS = [(f"{number} {number}", str(number)[::-1]) for number in range(100, 140)]
SMALL = conftest.SMALL | {
    "data.max_length": 24, "train.batch_tokens": 128, "train.steps": 6,
    "decode.max_extra_length": 3,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    """The folder with the files of the documentation."""
    folder = tmp_path_factory.mktemp("components")
    for block in blocks(PAGE):
        if block.title.endswith(".py"):
            (folder / block.title).write_text(block.text)
    (folder / "one.py").write_text(ONE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


def run_main(*arguments):
    return main(["jformer", *map(str, arguments)])


def config_with(**keys):
    return jformer.get_config("tiny:given", **{**SMALL, **keys})


@pytest.fixture(scope="module")
def whole(folder):
    """A run with parts in several files, and the lines of its log."""
    own = f"{folder}/one.py"
    keys = {
        "model.attention": f"{own}:GatedWindow(width=2)", "model.norm": f"{own}:Same(factor=0.5)",
        "optimizer.name": f"{own}:lion",
        "optimizer.schedule": f"{folder}/wsd.py:warmup_stable_decay(decay=0.5)",
        "optimizer.learning_rate": 0.004, "optimizer.warmup_steps": 2, "train.log_every": 1,
        "train.loss": f"{folder}/zloss.py:cross_entropy_with_z(weight=1.0)",
        "train.label_smoothing": 0.0, "train.metrics_every": 2, "train.best_by": "number_accuracy",
        "train.metrics": f"{folder}/digits.py:number_accuracy, chrf",
    }  # fmt: skip
    run = jformer.train(config_with(**keys), PAIRS, PAIRS[:5], folder / "whole")
    return run, read_metrics(run.workdir)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adam", ("", "adam", {})),
        ("adamw( weight_decay = 0.1 )", ("", "adamw", {"weight_decay": 0.1})),
        ("a/b.py:Name", ("a/b.py", "Name", {})),
        ("b.py:f(x=(1, -2), y='c.py:d')", ("b.py", "f", {"x": (1, -2), "y": "c.py:d"})),
    ],
)
def test_a_component_is_a_file_a_name_and_options(text, expected):
    component = parse(text)
    assert (component.file, component.name, component.options) == expected


@pytest.mark.parametrize("text", ["", "f(1)", "f(x=print('run'))", "f(x=1"])
def test_options_are_parsed_and_never_evaluated(text, capsys):
    with pytest.raises(ValueError, match="must be"):
        parse(text)
    assert capsys.readouterr().out == ""


def test_a_list_is_split_at_commas_outside_brackets():
    assert split_list("a(p=0.1, q=(1, 2)), b.py:c(x='d') ,e") == [
        "a(p=0.1, q=(1, 2))",
        "b.py:c(x='d')",
        "e",
    ]
    assert split_list("") == []


def test_every_built_in_component_is_found_with_its_options():
    for kind, names in components.BUILT_IN.items():
        for name in names:
            needed = "(p=0.1)" if kind == "augmentation" else ""
            find("key", kind, name + needed)
            assert isinstance(arguments(kind, name + needed), dict)
    assert arguments("optimizer", "adamw(weight_decay=0.1)") == {
        "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9,
    }  # fmt: skip


@pytest.mark.process
def test_search_and_score_agree_for_an_attention_in_a_file(whole):
    """The cached decode step of the search, and the whole pass of forced decoding."""
    run, sources = whole[0], [source for source, _ in PAIRS[:7]]
    for details in run.hypotheses(sources, details=True, beam_size=3, n_best=3):
        for one in details:
            searched = one.token_log_probs[: len(one.tokens) + one.complete]
            # In float32; sums of up to ten log-probabilities.
            assert one.log_prob == pytest.approx(sum(searched), abs=1e-3)
    usual = run.model.clone(config=dataclasses.replace(run.model.config, attention="dot_product"))
    other = dataclasses.replace(run, model=usual).score(sources, ["021"] * 7)
    scores = run.score(sources, ["021"] * 7)
    assert any(abs(a.log_prob - b.log_prob) > 1e-3 for a, b in zip(scores, other, strict=True))


@pytest.mark.process
def test_a_schedule_a_loss_and_a_metric_of_files_train_and_select_the_best_checkpoint(
    whole, folder
):
    run, lines = whole
    train = [line for line in lines if line["split"] == "train"]
    expected = [0.002, 0.004, 0.004, 0.004 * 2 / 3, 0.004 / 3, 0]
    rates = [line["learning_rate"] for line in train]
    np.testing.assert_allclose(rates, expected, rtol=1e-6, atol=1e-9)
    # The log normalizer of 300 equal logits is 5.7, and so is the loss of each.
    assert train[0]["nll"] < 10
    assert train[0]["loss"] > train[0]["nll"] + 20
    scored = [line for line in lines if "number_accuracy" in line]
    assert [line["step"] for line in scored] == [2, 4, 6]
    assert all("chrf" in line for line in scored)
    best = max(scored, key=lambda line: line["number_accuracy"])
    assert jformer.load(run.workdir, "best", plugins=[folder / "one.py"]).step == best["step"]


@pytest.mark.process
def test_one_component_of_each_other_kind_trains_and_translates(folder, tmp_path, capsys):
    parts = f"{folder}/parts.py"
    keys = {
        **SMALL, "model.norm": f"{parts}:RMSNorm", "model.activation": f"{parts}:swiglu",
        "model.positions": f"{parts}:LogDistance", "optimizer.name": f"{parts}:lion(b1=0.95)",
        "data.tokenizer": f"{parts}:characters", "data.scorer": f"{parts}:ExactMatch",
        "decode.constraint": f"{parts}:no_repeats", "decode.choose": f"{parts}:shortest",
        "decode.n_best": 2, "data.vocabulary_size": 260,
    }  # fmt: skip
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    workdir = f"--workdir={tmp_path}"
    train = [f"--config=tiny:{parts}:backwards(pairs=400)", workdir, *flags]
    assert run_main(*train) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 <= scores["test"]["exact_match"] <= 100
    assert run_main(*train) == 0
    assert "complete" in capsys.readouterr().err
    assert run_main("evaluate", workdir, f"--plugins={tmp_path}/components/parts.py") == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["test"]["exact_match"] == scores["test"]["exact_match"]
    run = jformer.load(tmp_path, plugins=[parts])
    for one in run.hypotheses(["117", "45"], choose="score", n_best=2):
        for hypothesis in one:
            assert all(a != b for a, b in zip(hypothesis.text, hypothesis.text[1:], strict=False))


@pytest.mark.process
def test_a_run_opens_with_its_copy_of_a_component_and_a_changed_one_is_reported(
    whole, tmp_path, capsys
):
    run, _ = whole
    norm = run.params["encoder_0"]["feed_forward_residual"]["norm"]
    assert np.any(np.asarray(norm["factor"]) != 1)
    copy = run.workdir / "components" / "one.py"
    assert copy.read_text() == ONE
    again = jformer.load(run.workdir, plugins=[copy])
    jax.tree.map(np.testing.assert_array_equal, run.params, again.params)
    assert again.translate(["120 120"]) == run.translate(["120 120"])
    assert capsys.readouterr().err == ""
    (tmp_path / "one.py").write_text(ONE.replace("return x_BLD *", "return 2 * x_BLD *"))
    jformer.load(run.workdir, plugins=[tmp_path / "one.py"])
    assert "one.py" in capsys.readouterr().err


@pytest.mark.process
def test_a_stopped_run_with_own_components_ends_with_the_bits_of_an_undisturbed_one(
    whole, tmp_path
):
    data = whole[0].config, PAIRS, PAIRS[:5], tmp_path
    assert jformer.train(*data, lambda step, *_: step == 4).step == 4
    resumed = jformer.train(*data)
    assert resumed.step == 6
    jax.tree.map(np.testing.assert_array_equal, whole[0].params, resumed.params)


@pytest.mark.process
def test_a_run_whose_optimizer_and_data_alone_are_own_opens_without_them(folder, tmp_path, capsys):
    keys = {"optimizer.name": f"{folder}/one.py:lion", "data.name": f"{folder}/one.py:backwards"}
    config = jformer.get_config("tiny", **SMALL, **keys)
    run = jformer.train(config, workdir=tmp_path)
    components._allowed.clear()  # as in a new process
    assert jformer.load(run.workdir).translate(["120 120"]) == run.translate(["120 120"])
    assert run_main("evaluate", f"--workdir={run.workdir}") == 2  # its test set is in the file
    assert "--plugins=" in capsys.readouterr().err
    assert run_main("evaluate", f"--workdir={run.workdir}", f"--plugins={folder}/one.py") == 0


MISTAKES = {
    "no such file": ({"model.norm": "none.py:Same"}, "", ["none.py"]),
    "misspelled": ({}, "def Sane(): pass", ["Same", "Sane?"]),
    "positions of its own": (
        {"model.norm": "layer_norm", "model.attention": "own.py:recent"},
        "import jax.numpy as jnp\nfrom jformer.model.attention import attend\n"
        "def recent(q, k, v, mask, *rest):\n"
        "    near = jnp.arange(k.shape[2])[None] > jnp.arange(q.shape[2])[:, None] - 2\n"
        "    return attend(q, k, v, mask & near[None, None], *rest)",
        ["config.model.attention=own.py:recent", "cached"],
    ),
    "padding": (
        {"model.norm": "layer_norm", "model.attention": "own.py:blind"},
        "import jax.numpy as jnp\nfrom jformer.model.attention import attend\n"
        "def blind(q, k, v, mask, distances, kind, *rest):\n"
        "    mask = mask if kind == 'decoder' else jnp.ones_like(mask)\n"
        "    return attend(q, k, v, mask, distances, kind, *rest)",
        ["config.model.attention=own.py:blind", "padding"],
    ),
}  # fmt: skip
# A trial of these compiles for seconds.
TRACED = ("positions of its own", "padding")


@pytest.mark.parametrize(
    ("keys", "code", "named"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.process] if name in TRACED else [])
        for name, case in MISTAKES.items()
    ],
)
def test_a_mistake_is_one_line_before_any_work(keys, code, named, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = {"model.norm": "own.py:Same", **SMALL, **keys}
    Path("own.py").write_text(code)
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    assert run_main("--config=tiny", "--workdir=run", *flags) == 2
    *_, line = capsys.readouterr().err.splitlines()
    for name in named:
        assert name in line
    assert not Path("run").exists()
