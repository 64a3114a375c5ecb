"""Training from Python, as in a notebook: the same runs as by the command line."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import jformer
import jformer.api
from jformer.main import main
from jformer.rundir import read_metrics
from tests.conftest import SMALL, number_words, small_flags, write_split

TRAIN, VALIDATION = number_words(100, 160), number_words(300, 320)


def pairs_of(split):
    return list(zip(split.sources, split.targets, strict=True))


def equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    return True


def test_a_config_is_that_of_the_command_line():
    config = jformer.get_config("tiny:multi30k", **{"model.dropout": 0.3, "train.steps": 7})
    assert (config.data.name, config.model.dropout, config.train.steps) == ("multi30k", 0.3, 7)
    assert jformer.get_config("configs/tiny.py").name == "tiny"
    assert jformer.get_config(Path("configs/tiny.py"), name="mine").name == "mine"
    # A config that cannot be used without a key is made with it.
    assert jformer.get_config("parsing", **{"data.directory": "trees"}).data.directory == "trees"


@pytest.mark.parametrize(
    ("pairs", "validation", "message"),
    [
        (["a b"], [("a", "b")], r"train .*\(source, target\).*'a b'"),
        ([], [("a", "b")], r"\btrain\b"),
        ([("a", "b")], None, r"\bpairs\b.*\bvalidation\b"),
    ],
)
def test_missing_or_wrong_pairs_are_named(pairs, validation, message, tmp_path):
    with pytest.raises(jformer.UserError, match=message):
        jformer.train(jformer.get_config("tiny"), pairs, validation, tmp_path / "run")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on given pairs, its directory, its config, and what its callback was given."""
    folder = tmp_path_factory.mktemp("api")
    for name, split in (("train", TRAIN), ("validation", VALIDATION), ("test", VALIDATION)):
        write_split(folder / name, split)
    flags = [*small_flags(folder, folder / "by_files"), "--config.data.test="]
    config = jformer.get_config("tiny:given", **SMALL)
    seen = []

    def log(step, split, numbers, run):
        due = step % config.train.checkpoint_every == 0
        saved = jformer.load(folder / "run", "last") if due else None
        seen.append(({"step": step, "split": split, **numbers}, run, saved))

    pairs, validation = iter(pairs_of(TRAIN)), iter(pairs_of(VALIDATION))
    run = jformer.train(config, pairs, validation, folder / "run", on_metrics=log)
    return run, folder, flags, config, seen


@pytest.mark.process
def test_a_run_on_pairs_is_that_on_the_same_text_in_files(trained):
    run, folder, flags, _, _ = trained
    assert main(["jformer", *flags]) == 0
    assert equal(run, jformer.load(folder / "by_files"))
    assert run.translate(["1 2 3"]) == jformer.load(folder / "run").translate(["1 2 3"])


@pytest.mark.process
def test_the_callback_is_given_each_line_of_the_log(trained):
    _, folder, _, _, seen = trained
    assert [line for line, _, _ in seen] == read_metrics(folder / "run")
    assert {line["split"] for line, _, _ in seen} == {"train", "validation"}


@pytest.mark.process
def test_the_run_of_the_callback_has_the_parameters_of_its_step_and_keeps_them(trained):
    """A checkpoint that is due at the step is complete by then, and is what is loaded."""
    *_, seen = trained
    assert [run.step for _, run, _ in seen] == [line["step"] for line, _, _ in seen]
    loaded = [(run, saved) for _, run, saved in seen if saved]
    assert {saved.step for _, saved in loaded} == {6, 12}
    assert all(run.step == saved.step and equal(run, saved) for run, saved in loaded)


@pytest.mark.process
def test_a_run_that_a_callback_fails_resumes_from_its_last_checkpoint(trained, tmp_path):
    undisturbed, _, _, config, _ = trained
    data = pairs_of(TRAIN), pairs_of(VALIDATION), tmp_path / "run"

    def fail(step, *_):
        if step == 8:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        jformer.train(config, *data, on_metrics=fail)
    assert jformer.load(tmp_path / "run", "last").step == 6
    assert equal(jformer.train(config, *data, on_metrics=lambda *_: None), undisturbed)
    steps = [line["step"] for line in read_metrics(tmp_path / "run")]
    assert steps == [line["step"] for line in read_metrics(undisturbed.workdir)]


@pytest.mark.process
def test_a_complete_run_is_returned_with_a_line_but_not_for_other_pairs(trained, capsys):
    run, folder, _, config, _ = trained
    pairs, validation = pairs_of(TRAIN), pairs_of(VALIDATION)
    assert equal(jformer.train(config, pairs, validation, folder / "run"), run)
    message = capsys.readouterr().err
    assert re.search(r"complete\b.*config\.train\.steps", message)
    with pytest.raises(jformer.UserError, match=rf"train: .*{folder / 'run'}"):
        jformer.train(config, pairs[1:], validation, folder / "run")


@pytest.mark.process
def test_a_run_on_pairs_is_evaluated_on_others_that_are_named(trained, capsys):
    _, folder, *_ = trained
    workdir = f"--workdir={folder / 'run'}"
    assert main(["jformer", "evaluate", workdir]) == 2
    assert "--data=" in capsys.readouterr().err
    assert main(["jformer", "evaluate", workdir, f"--data={folder / 'test'}"]) == 0
