"""What is saved is what is restored, whatever happens to the disk and to the process."""

import contextlib
import logging
import os
import random
import re
import resource
import shutil
import socket
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jformer.checksums import SUMS, write_sums
from jformer.config import TrainConfig
from jformer.errors import UserError
from jformer.training.checkpoint import Checkpoints
from jformer.training.provenance import check_vocabulary
from jformer.training.storage import SaveError
from tests.training.saving import CONFIG, assert_same, position_at, save, state_at

# Every step is regular: those of a stop are in test_stops.py.
KEEP_3 = TrainConfig(average_checkpoints=3, checkpoint_every=1)
BIG = {"rows": 1000, "columns": 1000}  # 12 MB a checkpoint, beyond LIMIT
LIMIT = 1_000_000
UNTRAINED = state_at(0)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("saved")
    with Checkpoints(workdir, KEEP_3) as checkpoints:
        save(checkpoints, 2, 4, 6, 8)
    return workdir


@pytest.fixture
def saved(saved_once, tmp_path):
    return shutil.copytree(saved_once, tmp_path / "run")


def restored(workdir, train=KEEP_3, like=UNTRAINED):
    with Checkpoints(workdir, train) as checkpoints:
        return checkpoints.restore_newest(like, "hash")


def script(what, *arguments, **environment):
    """`saving.py` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.training.saving", what, *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(process):
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output


# ---- what is kept


def test_a_restored_state_and_position_equal_the_saved_ones(saved):
    with Checkpoints(saved) as checkpoints:
        state, position = checkpoints.restore(6, UNTRAINED)
    assert_same(state, 6)
    assert position == position_at(6)


def test_a_restored_state_goes_where_abstract_arrays_say(saved):
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), UNTRAINED
    )
    assert_same(restored(saved, like=like)[0], 8)


def test_moving_averages_are_restored_too(tmp_path):
    with Checkpoints(tmp_path, KEEP_3) as checkpoints:
        save(checkpoints, 2, ema=True)
        state, _ = checkpoints.restore_newest(state_at(0, ema=True), "hash")
    assert_same(state, 2, ema=True)


def test_only_the_last_few_are_kept(saved):
    with Checkpoints(saved) as checkpoints:
        assert checkpoints.steps() == [4, 6, 8]
    assert sorted(os.listdir(saved / "checkpoints")) == ["4", "6", "8"]


def test_more_are_kept_than_are_averaged_where_the_config_says_so(tmp_path):
    train = TrainConfig(average_checkpoints=1, keep_checkpoints=2, checkpoint_every=1)
    with Checkpoints(tmp_path, train) as checkpoints:
        save(checkpoints, 1, 2, 3)
    assert Checkpoints(tmp_path).steps() == [2, 3]


def test_multiples_of_keep_every_stay_for_ever(tmp_path):
    train = TrainConfig(average_checkpoints=2, keep_every=4, checkpoint_every=1)
    for steps in (range(2, 8, 2), range(8, 16, 2)):  # and in a resumed run
        with Checkpoints(tmp_path, train) as checkpoints:
            save(checkpoints, *steps)
    assert Checkpoints(tmp_path).steps() == [4, 8, 12, 14]


def test_the_last_best_checkpoint_is_kept_apart(tmp_path):
    with Checkpoints(tmp_path, TrainConfig(average_checkpoints=1)) as checkpoints:
        assert checkpoints.best_step() is None
        for step in (2, 4):
            save(checkpoints, step)
            checkpoints.save_best(state_at(step), 0.5 / step, CONFIG, "hash")
        save(checkpoints, 6)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [6]
        assert checkpoints.best_step() == 4
        best = checkpoints.params([4], UNTRAINED.params, best=True)
    jax.tree.map(np.testing.assert_array_equal, best, state_at(4).params)
    assert os.listdir(tmp_path / "best") == ["4"]


def test_a_resumed_run_may_save_the_same_best_again_and_an_earlier_one(tmp_path):
    with Checkpoints(tmp_path, KEEP_3) as checkpoints:
        checkpoints.save_best(state_at(4), 0.5, CONFIG, "hash")
    for step in (4, 2):
        with Checkpoints(tmp_path, KEEP_3) as checkpoints:
            checkpoints.save_best(state_at(step), 0.5, CONFIG, "hash")
        assert Checkpoints(tmp_path).best_step() == step


def test_the_best_parameters_are_the_moving_average_where_there_is_one(tmp_path):
    with Checkpoints(tmp_path, KEEP_3) as checkpoints:
        checkpoints.save_best(state_at(4, ema=True), 0.5, CONFIG, "hash")
    best = Checkpoints(tmp_path).params([4], UNTRAINED.params, "ema", best=True)
    jax.tree.map(np.testing.assert_array_equal, best, state_at(4, ema=True).ema)


# ---- reading


def test_the_average_is_the_mean_of_the_parameters(saved):
    average = Checkpoints(saved).params([4, 8], UNTRAINED.params)
    jax.tree.map(np.testing.assert_array_equal, average, state_at(6).params)


def test_a_moving_average_is_read_in_place_of_the_parameters(tmp_path):
    with Checkpoints(tmp_path, KEEP_3) as checkpoints:
        save(checkpoints, 2, 4, ema=True)
        params = checkpoints.params([4], UNTRAINED.params, "ema")
    jax.tree.map(np.testing.assert_array_equal, params, state_at(4, ema=True).ema)


def test_reading_writes_nothing(saved):
    half = saved / "checkpoints" / "10.orbax-checkpoint-tmp"
    shutil.copytree(saved / "checkpoints" / "8", half)
    before = sorted(saved.rglob("*"))
    with Checkpoints(saved) as checkpoints:
        checkpoints.params(checkpoints.steps(), UNTRAINED.params)
        checkpoints.restore_newest(UNTRAINED, "hash")
    assert sorted(saved.rglob("*")) == before


def test_a_run_directory_that_is_not_there_has_no_steps(tmp_path):
    with Checkpoints(tmp_path / "none") as checkpoints:
        assert checkpoints.steps() == []
    assert not (tmp_path / "none").exists()


def test_checkpoints_that_were_moved_elsewhere_are_read(saved):
    shutil.move(saved, saved.with_name("elsewhere"))
    assert_same(restored(saved.with_name("elsewhere"))[0], 8)


def test_another_vocabulary_than_that_of_the_checkpoint_is_refused(saved):
    with Checkpoints(saved) as checkpoints:
        check_vocabulary(checkpoints.metadata(8), "hash", saved)
        for refused in (
            lambda: check_vocabulary(checkpoints.metadata(8), "other hash", saved),
            lambda: checkpoints.restore_newest(UNTRAINED, "other hash"),
        ):
            with pytest.raises(UserError, match=r"vocabulary\.json"):
                refused()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_parameters_that_are_not_finite_are_not_used(tmp_path, value):
    state = state_at(4)
    state.params["b"]["c"] = state.params["b"]["c"].at[3].set(value)
    with Checkpoints(tmp_path, KEEP_3) as checkpoints:
        save(checkpoints, 2)
        checkpoints.save(state, position_at(4), CONFIG, "hash")
        checkpoints.save_best(state, 0.5, CONFIG, "hash")
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UserError, match=r"checkpoints/4\b.*params\.b\.c"):
            checkpoints.params([2, 4], UNTRAINED.params)
        with pytest.raises(UserError, match=r"best/4\b.*params\.b\.c"):
            checkpoints.params([4], UNTRAINED.params, best=True)


# ---- another model


def test_leaves_that_differ_are_named_with_both_shapes(saved):
    like = state_at(0, rows=7)
    with pytest.raises(UserError) as caught:
        restored(saved, like=like)
    message = str(caught.value)
    for leaf in ("params", "optimizer_state.mu"):
        assert re.search(rf"{leaf}\.a\b.*\(8, 6\).*\(7, 6\)", message)
    assert "\n" not in message
    with pytest.raises(UserError, match=r"params\.a\b.*\(8, 6\).*\(7, 6\)"):
        Checkpoints(saved).params([8], like.params)


def test_leaves_of_one_side_only_are_named(saved):
    like = UNTRAINED.replace(params={"a": UNTRAINED.params["a"], "d": UNTRAINED.params["b"]["c"]})
    with pytest.raises(UserError, match=r"params\.b\.c\b.*\(5,\).*params\.d\b.*\(5,\)"):
        restored(saved, like=like)


def test_of_many_leaves_that_differ_five_are_named_and_the_rest_counted(saved):
    layers = {f"layer_{n}": jnp.zeros(3) for n in range(20)}
    like = UNTRAINED.replace(params={**UNTRAINED.params, **layers})
    with pytest.raises(UserError, match=r"\b15\b") as caught:
        restored(saved, like=like)
    assert len(re.findall("layer_", str(caught.value))) == 5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"optimizer_state": optax.trace(0.9).init(UNTRAINED.params)},
            r"optimizer_state\.count\b",
        ),
        ({"ema": UNTRAINED.params}, r"ema\.a\b.*\(8, 6\)"),
    ],
)
def test_another_optimizer_or_moving_average_is_refused(saved, change, named):
    with pytest.raises(UserError, match=named):
        restored(saved, like=UNTRAINED.replace(**change))


def test_moving_averages_are_not_dropped_silently(tmp_path):
    with Checkpoints(tmp_path, KEEP_3) as checkpoints:
        save(checkpoints, 2, ema=True)
        with pytest.raises(UserError, match=r"ema\.a\b.*\(8, 6\)"):
            checkpoints.restore_newest(UNTRAINED, "hash")


# ---- damage of what was whole


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0b100
    path.write_bytes(content)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def remove(path):
    path.unlink()


def largest(directory):
    return max((p for p in directory.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


PLACES = {
    "params": lambda step: largest(step / "params" / "ocdbt.process_0"),
    "optimizer_state": lambda step: largest(step / "optimizer_state" / "ocdbt.process_0"),
    "shapes": lambda step: step / "params" / "_METADATA",
    "position": lambda step: step / "position" / "metadata",
    "metadata": lambda step: step / "metadata" / "metadata",
}


@pytest.mark.parametrize("harm", [flip, truncate, remove])
@pytest.mark.parametrize("place", PLACES)
def test_a_damaged_step_is_named_and_put_aside_for_the_one_before(saved, caplog, place, harm):
    path = PLACES[place](saved / "checkpoints" / "8")
    harm(path)
    state, position = restored(saved)
    assert_same(state, 6)
    assert position == position_at(6)
    name = path.relative_to(saved / "checkpoints" / "8")
    (record,) = caplog.records
    assert re.search(rf"checkpoints/8: .*{name}.*/damaged/8.*step 6$", record.getMessage())
    assert os.listdir(saved / "damaged") == ["8"]


@pytest.mark.slow
def test_no_damage_of_any_file_goes_unnoticed(saved):
    rng = random.Random(0)
    step = saved / "checkpoints" / "8"
    files = [path for path in step.glob("*/**/*") if path.is_file()]
    for path in (*files, *rng.choices(files, k=100)):
        content = path.read_bytes()
        place = rng.randrange(len(content))
        path.write_bytes(
            content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        )
        with pytest.raises(UserError, match=re.escape(str(path.relative_to(step)))):
            Checkpoints(saved).restore(8, UNTRAINED)
        path.write_bytes(content)
    assert_same(Checkpoints(saved).restore(8, UNTRAINED)[0], 8)


def test_a_step_that_was_put_aside_is_saved_again(saved):
    for damaged in (["8"], ["8", "8-1"]):
        flip(largest(saved / "checkpoints" / "8" / "params"))
        with Checkpoints(saved, KEEP_3) as checkpoints:
            assert_same(checkpoints.restore_newest(UNTRAINED, "hash")[0], 6)
            save(checkpoints, 8)
        assert_same(restored(saved)[0], 8)
        assert sorted(os.listdir(saved / "damaged")) == damaged


def test_several_damaged_steps_are_passed_over(saved, caplog):
    for step in ("6", "8"):
        flip(largest(saved / "checkpoints" / step / "params"))
    assert_same(restored(saved)[0], 4)
    assert len(caplog.records) == 2
    assert sorted(os.listdir(saved / "damaged")) == ["6", "8"]


def test_damage_is_an_error_where_the_config_says_so(saved):
    flip(largest(saved / "checkpoints" / "8" / "params"))
    with pytest.raises(UserError, match=r"checkpoints/8: .*params/"):
        restored(saved, TrainConfig(damaged="error"))
    assert Checkpoints(saved).steps() == [4, 6, 8]


def test_with_all_steps_damaged_each_is_named_and_nothing_is_touched(saved):
    for step in ("4", "6", "8"):
        flip(largest(saved / "checkpoints" / step / "params"))
    for _ in range(2):  # the second start must not take it for a new run
        with pytest.raises(UserError, match="checkpoints/8") as caught:
            restored(saved)
        assert re.findall(r"checkpoints/(\d)", str(caught.value)) == ["8", "6", "4"]
        assert Checkpoints(saved).steps() == [4, 6, 8]


def test_damaged_parameters_are_not_used(saved):
    flip(largest(saved / "checkpoints" / "6" / "params"))
    with pytest.raises(UserError, match=r"checkpoints/6: .*params/"):
        Checkpoints(saved).params([4, 6, 8], UNTRAINED.params)


STRAY = (".DS_Store", "._d", "._process_0", ".nfs0001", ".#metadata", "desktop.ini", "Thumbs.db")


def test_files_of_file_managers_and_network_file_systems_are_no_damage(saved, caplog):
    folders = [saved / "checkpoints", *(saved / "checkpoints").glob("8/**/")]
    assert len(folders) > 10
    for folder in folders:
        for name in STRAY:
            (folder / name).write_bytes(b"Bud1")
    with Checkpoints(saved, KEEP_3) as checkpoints:
        state, position = checkpoints.restore_newest(UNTRAINED, "hash")
        save(checkpoints, 10, 12, 14)  # and the step with these files is deleted as any other
    assert_same(state, 8)
    assert position == position_at(8)
    assert not caplog.records
    assert Checkpoints(saved).steps() == [10, 12, 14]
    assert {path.name for path in saved.iterdir()} == {"checkpoints"}


def test_a_checkpoint_with_intact_files_that_cannot_be_read_stays_where_it_is(saved):
    """As when it was written by a later version of orbax, in another format."""
    step = saved / "checkpoints" / "8"
    (step / "params" / "_METADATA").write_text("{}")
    write_sums(step, "*/**/*")
    with pytest.raises(UserError, match="checkpoints/8"):
        restored(saved)
    assert Checkpoints(saved).steps() == [4, 6, 8]


def test_a_checkpoint_without_sums_is_read_without_that_check(saved):
    (saved / "checkpoints" / "8" / SUMS).unlink()
    assert_same(restored(saved)[0], 8)
    truncate(saved / "checkpoints" / "8" / "position" / "metadata")
    assert_same(restored(saved)[0], 6)  # orbax notices this much


def test_the_sums_are_those_of_sha256sum(saved):
    step = saved / "checkpoints" / "8"
    checked = subprocess.run(["sha256sum", "-c", SUMS], cwd=step, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    files = [path for path in step.glob("*/**/*") if path.is_file()]
    assert checked.stdout.count(": OK\n") == len(files) > 10


# ---- kills


def test_a_half_checkpoint_is_ignored_and_removed_by_the_next_writer(saved):
    for name in ("10.orbax-checkpoint-tmp", "2.deleting"):
        shutil.copytree(saved / "checkpoints" / "8", saved / "checkpoints" / name)
    assert Checkpoints(saved).steps() == [4, 6, 8]
    with Checkpoints(saved, KEEP_3) as checkpoints:
        assert sorted(os.listdir(saved / "checkpoints")) == ["4", "6", "8"]
        save(checkpoints, 10)
    assert_same(restored(saved)[0], 10)


def test_orbax_writes_under_the_temporary_name_that_is_known_here(tmp_path, monkeypatch):
    """The name is orbax's own: halves are removed by it, and the sums are put into it."""
    seen = []

    def look(directory, pattern):
        seen.append((directory.name, sorted(os.listdir(tmp_path / "checkpoints"))))

    monkeypatch.setattr("jformer.training.storage.write_sums", look)
    with Checkpoints(tmp_path, KEEP_3) as checkpoints:
        save(checkpoints, 2)
    assert seen == [("2.orbax-checkpoint-tmp", ["2.orbax-checkpoint-tmp"])], (
        "orbax writes a checkpoint under another temporary name than storage.WRITING: change it "
        "there, or halves stay on the disk and checkpoints are without sums"
    )


def assert_whole_after_a_kill(directory, seeds):
    """Start saving, `kill -9` at a random moment, and see that what is listed is whole."""
    kinds = {"rows": 2000, "columns": 200}
    like = state_at(0, **kinds)
    directories = {seed: directory / str(seed) for seed in seeds}
    processes = {seed: script("for_ever", directories[seed]) for seed in seeds}
    for seed, process in processes.items():
        deadline = time.monotonic() + 60
        while not Checkpoints(directories[seed]).steps() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(random.Random(seed).uniform(0, 0.5))
        process.kill()
        process.communicate()
    for workdir in directories.values():
        with Checkpoints(workdir) as checkpoints:
            steps = checkpoints.steps()
            for step in steps:
                assert_same(checkpoints.restore(step, like)[0], step, **kinds)
        with Checkpoints(
            workdir, TrainConfig(keep_checkpoints=5, checkpoint_every=1)
        ) as checkpoints:
            state, position = checkpoints.restore_newest(like, "hash")
            assert_same(state, steps[-1], **kinds)
            assert position == position_at(steps[-1])
            save(checkpoints, steps[-1] + 1, **kinds)
        there = sorted(map(int, os.listdir(workdir / "checkpoints")))
        assert there == [*steps, steps[-1] + 1][-5:]
        assert not (workdir / "damaged").exists()


@pytest.mark.process
def test_a_kill_while_saving_leaves_what_is_listed_whole(tmp_path):
    assert_whole_after_a_kill(tmp_path, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 23))
def test_a_kill_while_saving_leaves_what_is_listed_whole_at_more_moments(tmp_path, seed):
    assert_whole_after_a_kill(tmp_path, [seed])


# ---- saves that fail


@contextlib.contextmanager
def full_disk():
    """No file may grow beyond LIMIT: as a write to a full disk, it fails in the middle of one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def until_it_fails(checkpoints):
    """As the loop asks, after every step."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        checkpoints.check_errors()
        time.sleep(0.01)


def test_a_save_that_failed_in_the_background_is_an_error_of_a_later_step(tmp_path):
    with Checkpoints(tmp_path, KEEP_3) as checkpoints:
        save(checkpoints, 2, **BIG)
        assert checkpoints.steps() == [2]
        with full_disk():
            save(checkpoints, 4, **BIG)
            with pytest.raises(SaveError) as caught:
                until_it_fails(checkpoints)
        assert checkpoints.steps() == [2]
    message = str(caught.value)
    assert re.search(f"{tmp_path}/checkpoints/4: .*File too large", message)  # of the system
    assert "\n" not in message
    assert os.listdir(tmp_path / "checkpoints") == ["2"]
    assert_same(restored(tmp_path, like=state_at(0, **BIG))[0], 2, **BIG)


def test_a_save_that_failed_in_the_background_is_an_error_of_the_next_save(tmp_path):
    with Checkpoints(tmp_path, KEEP_3) as checkpoints, full_disk():
        save(checkpoints, 2, **BIG)
        with pytest.raises(SaveError, match="checkpoints/2"):
            save(checkpoints, 4)


def test_a_save_that_fails_at_the_end_is_an_error_at_the_end(tmp_path):
    with (
        full_disk(),
        pytest.raises(SaveError, match="checkpoints/2"),
        Checkpoints(tmp_path, KEEP_3) as checkpoints,
    ):
        save(checkpoints, 2, **BIG)
    assert Checkpoints(tmp_path).steps() == []


def save_and_raise(workdir):
    with Checkpoints(workdir, KEEP_3) as checkpoints:
        save(checkpoints, 2, **BIG)
        raise KeyError("what ended the run")


def test_a_failed_save_does_not_hide_what_ended_the_run(tmp_path, caplog):
    with full_disk(), pytest.raises(KeyError, match="what ended the run"):
        save_and_raise(tmp_path)
    assert "checkpoints/2" in caplog.text


def test_a_running_save_is_finished_when_an_exception_ends_the_run(tmp_path):
    with pytest.raises(KeyError, match="what ended the run"):
        save_and_raise(tmp_path)
    assert_same(restored(tmp_path, like=state_at(0, **BIG))[0], 2, **BIG)


def test_a_directory_that_cannot_be_made_is_an_error_at_once(tmp_path):
    (tmp_path / "checkpoints").write_text("a file in its place")
    with (
        Checkpoints(tmp_path, KEEP_3) as checkpoints,
        pytest.raises(SaveError, match=r"checkpoints.*(File exists|Not a directory)"),
    ):
        save(checkpoints, 2)


def test_training_goes_on_without_a_save_where_the_config_says_so(tmp_path, caplog):
    with Checkpoints(tmp_path, TrainConfig(failed_save="go_on", checkpoint_every=1)) as checkpoints:
        save(checkpoints, 2, **BIG)
        checkpoints.save_best(state_at(2, **BIG), 0.5, CONFIG, "hash")
        assert (checkpoints.steps(), checkpoints.best_step()) == ([2], 2)
        with full_disk():
            save(checkpoints, 4, 6, **BIG)
            checkpoints.save_best(state_at(4, **BIG), 0.4, CONFIG, "hash")
            deadline = time.monotonic() + 60
            while len(caplog.records) < 3 and time.monotonic() < deadline:
                checkpoints.check_errors()
        save(checkpoints, 8, **BIG)
    assert sorted(re.findall(r"(\w+/\d): ", caplog.text)) == [
        "best/4", "checkpoints/4", "checkpoints/6",
    ]  # fmt: skip
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [2, 8]
        assert checkpoints.best_step() == 2  # a failed one does not cost the former


def test_orbax_says_nothing_itself(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with full_disk(), pytest.raises(KeyError):
        save_and_raise(tmp_path)
    assert not [record for record in caplog.records if "orbax" in record.pathname]


# ---- other devices and processes


@pytest.mark.process
def test_what_one_device_saved_eight_restore_and_the_other_way_round(tmp_path):
    with Checkpoints(tmp_path, KEEP_3) as checkpoints:
        save(checkpoints, 2)
    finish(script("on_eight_devices", tmp_path, JAX_NUM_CPU_DEVICES="8"))
    state, position = restored(tmp_path)
    assert_same(state, 4)
    assert position == position_at(4)
    assert state.params["a"].devices() == {jax.local_devices()[0]}


@pytest.mark.process
def test_two_processes_save_and_restore_together_and_one_reads_alone(tmp_path):
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    both = [
        script("two_together", tmp_path, number, port, JAX_NUM_CPU_DEVICES="4")
        for number in range(2)
    ]
    for process in both:
        finish(process)
    assert os.listdir(tmp_path / "damaged") == ["4"]
