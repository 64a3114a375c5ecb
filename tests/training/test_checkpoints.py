"""A checkpoint is restored as it was saved, or named as damaged, whatever happens to its files."""

import contextlib
import json
import os
import re
import shutil
import time

import pytest

import jformer
from jformer.config import TrainConfig
from jformer.errors import RunError, UserError
from jformer.main import main
from jformer.rundir import BEST
from jformer.training.checkpoints import Checkpoints, averaged
from tests.conftest import small_flags
from tests.training import saving
from tests.training.saving import EVERY_STEP, assert_same, flip, restore_newest, save, state_at

UNTRAINED = state_at(0)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("saved")
    with Checkpoints(workdir, EVERY_STEP) as checkpoints:
        save(checkpoints, 2, 4)
    return workdir


@pytest.fixture
def unserved(trained_workdir, tmp_path):
    """A copy of the trained run, as if killed before it decided what it serves."""
    run = shutil.copytree(trained_workdir, tmp_path / "run")
    (run / "results.json").unlink()
    return run


def scores_of(workdir):
    scores = json.loads((workdir / "results.json").read_text())
    return scores["test"], scores["served"]  # other tests score other splits of the shared run


def test_the_last_regular_steps_each_permanent_one_and_the_newest_are_kept(tmp_path):
    """As when a signal ends a resumed run at step 1150."""
    keys = {"keep_every": 400, "keep_checkpoints": 2, "average_checkpoints": 1}
    for steps in ([*range(100, 700, 100), 650], [*range(700, 1200, 100), 1150]):
        with Checkpoints(tmp_path, TrainConfig(checkpoint_every=100, **keys)) as checkpoints:
            save(checkpoints, *steps)
    assert Checkpoints(tmp_path).steps() == [400, 800, 1000, 1100, 1150]


@pytest.mark.parametrize(
    ("steps", "ended", "expected"),
    [
        ([100, 200, 300, 400], False, [200, 300, 400]),
        ([100, 200, 300, 350], False, [100, 200, 300]),  # stopped at 350
        ([100, 200, 300, 350], True, [200, 300, 350]),  # the last step
        ([100, 200, 300], True, [100, 200, 300]),  # the last step is regular and counts once
        ([50], False, [50]),  # stopped before the first regular step
    ],
)
def test_the_last_regular_steps_are_averaged(steps, ended, expected):
    train = TrainConfig(checkpoint_every=100, average_checkpoints=3)
    assert averaged(steps, ended, train) == expected


def test_one_best_checkpoint_is_kept_also_if_a_resumed_run_finds_an_earlier_one(tmp_path):
    for step in (2, 6, 4):
        with Checkpoints(tmp_path, EVERY_STEP, BEST) as checkpoints:
            checkpoints.save(state_at(step), {"score": 1.0})
        checkpoints = Checkpoints(tmp_path, folder=BEST)
        assert checkpoints.steps() == [step]
        assert_same(checkpoints.mean([step], UNTRAINED.params), state_at(step).params)


FILES = ("params/_METADATA", "optimizer_state/_METADATA", "position/metadata", "metadata/metadata")


@pytest.mark.parametrize("harm", [flip, os.remove])
def test_damage_of_any_item_is_named_and_the_step_before_restored(saved_once, tmp_path, harm):
    step = saved_once / "checkpoints" / "4"
    for name in (str(saving.weights(step).relative_to(step)), *FILES):
        workdir = shutil.copytree(saved_once, tmp_path / name.replace("/", "-"))
        harm(workdir / "checkpoints" / "4" / name)
        with pytest.raises(UserError, match=rf"checkpoints/4: .*{name}"):
            Checkpoints(workdir).read(4, {item.split("/")[0]: None for item in FILES})
        state, position = restore_newest(workdir, UNTRAINED)
        assert_same(state, state_at(2))
        assert position == {"step": 2}


@pytest.mark.process
def test_a_run_whose_newest_step_is_damaged_ends_as_an_undisturbed_one(
    unserved, trained_workdir, corpus_directory, capsys
):
    path = saving.weights(unserved / "checkpoints" / "12")
    flip(path)
    assert main(["jformer", *small_flags(corpus_directory, unserved)]) == 0
    error = capsys.readouterr().err
    assert re.search(rf"checkpoints/12: .*{path.name}", error)
    assert re.search(r"resum.* step 9\b", error)
    runs = [jformer.load(workdir, "last") for workdir in (unserved, trained_workdir)]
    assert runs[0].step == runs[1].step == 12
    assert_same(runs[0].params, runs[1].params)
    assert scores_of(unserved) == scores_of(trained_workdir)


@pytest.mark.process
def test_if_all_steps_are_damaged_each_is_named_and_nothing_is_deleted(
    unserved, corpus_directory, capsys
):
    for step in ("9", "12"):
        flip(saving.weights(unserved / "checkpoints" / step))
    before = sorted(unserved.rglob("*"))
    for _ in range(2):  # the second start must not take it for a new run
        assert main(["jformer", *small_flags(corpus_directory, unserved)]) == 2
        assert {*re.findall(r"checkpoints/(\d+)", capsys.readouterr().err)} == {"9", "12"}
        assert sorted(unserved.rglob("*")) == before


@pytest.mark.process
def test_a_kill_while_saving_leaves_the_step_before_and_the_next_start_removes_the_partial_one(
    trained_workdir, corpus_directory, tmp_path
):
    flags = small_flags(corpus_directory, workdir := tmp_path / "run")
    saving.train_and_die(workdir, 9, *flags)
    (partial,) = (workdir / "checkpoints").glob("9*")
    shutil.copytree(partial, partial.with_name(partial.name.replace("9", "10")))  # of a signal
    assert jformer.load(workdir).step == 6
    assert main(["jformer", *flags]) == 0
    assert sorted(os.listdir(workdir / "checkpoints")) == ["12", "9"]
    assert scores_of(workdir) == scores_of(trained_workdir)


def test_a_failed_save_names_the_systems_error(tmp_path, monkeypatch):
    """TensorStore's code for a full disk is XLA's for a lack of memory."""

    def fail(partial, pattern):
        path, end = f"{partial}/ocdbt.process_0/d/{'0' * 99}", "[os_error_code='28']"
        raise ValueError(f"RESOURCE_EXHAUSTED: {path}: {path}: No space left on device {end}")

    monkeypatch.setattr("jformer.training.checkpoints.write_sums", fail)
    with (
        pytest.raises(RunError, match=rf"^{tmp_path}/checkpoints: .*No space left on device"),
        Checkpoints(tmp_path, EVERY_STEP) as checkpoints,
    ):
        save(checkpoints, 1)


@pytest.mark.process
def test_on_a_full_disk_a_run_ends_with_one_line_and_the_same_command_resumes(
    unserved, corpus_directory, during_step, capfd
):
    command = ["jformer", *small_flags(corpus_directory, unserved), "--config.train.steps=21"]
    with contextlib.ExitStack() as limits:

        def fill():
            while not (unserved / "checkpoints" / "18").exists():
                time.sleep(0.01)  # this one is still whole
            limits.enter_context(saving.full_disk())

        during_step({20: fill})
        assert main(command) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(rf"^jformer: {unserved}/\w+: .*File too large", err, re.MULTILINE)
    assert "Traceback" not in err
    assert not (unserved / "results.json").exists()
    assert main(command) == 0
    assert re.search(r"resum.* step 18\b", capfd.readouterr().err)
    assert jformer.load(unserved).step == 21
