"""The machine dealt out to processes."""

import pytest

from jformer.extras.sweeps import pool


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


def test_only_the_gpus_that_this_process_may_see_are_dealt_out(machine):
    machine(cores=1, gpus=4, visible="3,GPU-8f2a")
    assert [env["CUDA_VISIBLE_DEVICES"] for env, _ in dealt(2)] == ["3", "GPU-8f2a"]
    machine(cores=1, gpus=4, visible="")
    assert dealt(2) == [({}, set()), ({}, set())]
