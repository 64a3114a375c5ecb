"""The machine dealt out to processes."""

import fcntl

import pytest

from jformer.extras.sweeps import pool
from jformer.extras.sweeps.points import load_sweep, make_points
from jformer.extras.sweeps.process import begin


@pytest.fixture
def machine(monkeypatch):
    """Its cores, and its GPUs by nvidia-smi, or as CUDA_VISIBLE_DEVICES has them."""

    def machine(cores, gpus, visible=None):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        said = "".join(f"GPU {number}: NVIDIA H200 (UUID: ...)\n" for number in range(gpus))

        def run(command, **options):
            assert command[0] == "nvidia-smi"
            if not gpus:
                raise FileNotFoundError
            return type("Ended", (), {"stdout": said})

        monkeypatch.setattr("subprocess.run", run)

    return machine


def dealt(jobs):
    return [(place.environment, set(place.cores)) for place in pool.places(jobs)]


def test_cores_are_dealt_out_to_several_processes(machine):
    machine(cores=5, gpus=0)
    assert dealt(1) == [({}, set())]  # all of them
    assert dealt(2) == [({}, {0, 2, 4}), ({}, {1, 3})]
    assert dealt(6) == [({}, set())] * 6


def test_gpus_are_dealt_out(machine):
    machine(cores=1, gpus=4)
    assert [env["CUDA_VISIBLE_DEVICES"] for env, _ in dealt(2)] == ["0,2", "1,3"]
    assert [env["CUDA_VISIBLE_DEVICES"] for env, _ in dealt(4)] == ["0", "1", "2", "3"]
    assert not any("XLA_PYTHON_CLIENT_MEM_FRACTION" in env for env, _ in dealt(4))


def test_processes_that_share_a_gpu_share_its_memory(machine):
    machine(cores=1, gpus=2)
    assert [env for env, _ in dealt(3)] == [
        {"CUDA_VISIBLE_DEVICES": gpu, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.450"} for gpu in "010"
    ]


def test_only_the_gpus_that_this_process_may_see_are_dealt_out(machine):
    machine(cores=1, gpus=4, visible="3,GPU-8f2a")
    assert [env["CUDA_VISIBLE_DEVICES"] for env, _ in dealt(2)] == ["3", "GPU-8f2a"]
    machine(cores=1, gpus=4, visible="")
    assert dealt(2) == [({}, set()), ({}, set())]


@pytest.mark.process
def test_a_point_that_another_process_is_at_work_on_is_left_to_it(tmp_path):
    sweep = load_sweep("tests/extras/sweeps/sweep_of_two.py")
    files = [f"--config.data.{split}=none" for split in ("train", "validation")]
    points = make_points(sweep, tmp_path, files, "", 1)
    waiting = list(points)
    (tmp_path / "base").mkdir()
    with (tmp_path / "base" / "sweep.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert begin(points[0], {}, set()) is None
        workers = pool.Pool([pool.Place({}, frozenset())] * 2)
        assert workers.start(waiting) == points[1:]
    assert waiting == points[:1]
    fault = None
    while fault is None:
        fault = workers.poll(points[1])
    assert fault.startswith("status 2: jformer: none.en: no such file")
    assert workers.start(waiting) == points[:1]
    workers.stop()
