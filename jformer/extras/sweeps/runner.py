"""Runs the points of a sweep, and reports as they begin and end."""

import time

from jformer.console import Progress, say
from jformer.errors import Stopped
from jformer.extras.sweeps.cluster import Cluster
from jformer.extras.sweeps.points import Point
from jformer.extras.sweeps.pool import Pool
from jformer.training.signals import Signals

PAUSE = 0.5  # seconds between two polls of the processes


def run_points(points: list[Point], workers: Pool | Cluster) -> list[str]:
    """Run the points that are not complete; return the names of those that failed."""
    waiting = [point for point in points if not point.is_complete]
    say(f"sweep       {len(points)} points, {len(points) - len(waiting)} complete")
    at_work: list[Point] = []
    elsewhere: list[Point] = []
    failed = []
    progress = SweepProgress([*waiting])
    with Signals(minutes=0) as stop:
        while waiting or at_work:
            for point in [point for point in waiting if point.is_complete]:
                waiting.remove(point)
                progress.report(point, "complete, by another process")
            begun = [point for point in waiting if point.has_begun]
            for point in workers.start(waiting):
                at_work.append(point)
                progress.report(point, "goes on" if point in begun else "begins")
            if not at_work:  # places are free, so other processes run the waiting points
                for point in [point for point in waiting if point not in elsewhere]:
                    elsewhere.append(point)
                    progress.report(point, "another process is at work on it; waiting for that")
            for point in list(at_work):
                fault = workers.poll(point)
                if fault is None:
                    continue
                at_work.remove(point)
                progress.report(point, f"failed: {fault}" if fault else "complete")
                failed += [point.name] if fault else []
            progress.update()
            if stop.caught:
                raise Stopped(stop.caught, workers.stop())
            time.sleep(PAUSE)
    progress.close()
    return failed


class SweepProgress:
    """Shows the steps of all points together, and a line when a point begins or ends."""

    def __init__(self, points: list[Point]):
        self._points = points
        self._done = self._steps()
        total = sum(point.config.train.steps for point in points)
        self._progress = Progress("step", total, done=self._done, lines=False)

    def _steps(self) -> int:
        return sum(point.step for point in self._points)

    def update(self) -> None:
        before, self._done = self._done, self._steps()
        if self._done > before:
            self._progress.advance(self._done - before)

    def report(self, point: Point, text: str) -> None:
        complete = sum(point.is_complete for point in self._points)
        done = f"{complete}/{len(self._points)}"
        say("  ".join(filter(None, (done, self._progress.eta(), f"{point.name}: {text}"))))

    def close(self) -> None:
        self._progress.close()
