"""Runs the points of a sweep on this machine, with cores and GPUs divided among them."""

import dataclasses
import os
import subprocess
from collections.abc import Sequence

from jformer.extras.sweeps.points import Point
from jformer.extras.sweeps.process import Work, begin


@dataclasses.dataclass(frozen=True)
class Place:
    """The share of the machine that one of several processes uses."""

    environment: dict[str, str]
    cores: frozenset[int]  # empty: all


class Pool:
    """Runs as many processes at a time as there are places."""

    def __init__(self, places: Sequence[Place]):
        self._free = list(places)
        self._at_work: dict[str, tuple[Work, Place]] = {}

    def start(self, waiting: list[Point]) -> list[Point]:
        """Start as many points as there are free places; move them from `waiting` to the result."""
        started = []
        for point in list(waiting):
            if not self._free:
                break
            place = self._free[0]
            work = begin(point, place.environment, place.cores)
            if work:
                self._at_work[point.name] = work, self._free.pop(0)
                waiting.remove(point)
                started.append(point)
        return started

    def poll(self, point: Point) -> str | None:
        """Return None while the point runs, then an error message, or "" for success."""
        work, place = self._at_work[point.name]
        fault = work.poll()
        if fault is not None:
            self._free.append(place)
            del self._at_work[point.name]
        return fault

    def stop(self) -> str:
        """Let all processes save and end; return a message about that."""
        for work, _ in self._at_work.values():
            work.stop()
        for work, _ in self._at_work.values():
            work.join()
        return "progress saved; the same command resumes"


def places(jobs: int) -> list[Place]:
    """Divide the cores and GPUs that this process may use among `jobs` processes.

    Small models gain: a process on one core has more than half of its speed on two.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    gpus = visible_gpus()
    dealt = []
    for number in range(jobs):
        environment = {}
        if gpus:
            own = gpus[number::jobs] or [gpus[number % len(gpus)]]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
            if len(gpus) < jobs:
                # By default, each JAX process reserves three quarters of a GPU's memory.
                share = 0.9 / -(-jobs // len(gpus))
                environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{share:.3f}"
        shared = jobs == 1 or len(cores) < jobs
        dealt.append(Place(environment, frozenset() if shared else frozenset(cores[number::jobs])))
    return dealt


def visible_gpus() -> list[str]:
    """Return the GPUs' names for CUDA_VISIBLE_DEVICES, without JAX, which would reserve them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [gpu for gpu in named.split(",") if gpu]
    try:
        told = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    except FileNotFoundError:
        return []
    return [str(number) for number, _ in enumerate(told.stdout.splitlines())]
