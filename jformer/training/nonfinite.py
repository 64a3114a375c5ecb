"""Updates that are not finite: skipped by the step, counted here, and after many in a row the end.

The state is then still that of before the first of them, so what is dumped is a run directory that
meets them again at once.
"""

import dataclasses
import shutil

import jax

from jformer.errors import RunError
from jformer.rundir import NONFINITE
from jformer.training.checkpoint import Checkpoints
from jformer.training.metrics import StepMetrics
from jformer.training.setup import NEW, TrainSetup, write_run_files
from jformer.training.step import TrainState


class NonFiniteGuard:
    """The skipped steps in a row up to now, each with the batch that it had."""

    def __init__(self, most: int, row: list[dict[str, int]]):
        self._most, self.row = most, list(row)

    def note(self, seen: StepMetrics) -> bool:
        """Whether this step was skipped."""
        if not seen.metrics["skipped"]:
            self.row = []
            return False
        self.row.append({"step": seen.step, "epoch": seen.epoch, "batch": seen.batch})
        return True

    @property
    def too_many(self) -> bool:
        return len(self.row) >= self._most

    @property
    def behind(self) -> int:
        """How many steps may be on their way unseen: none, where they could be one too many."""
        return 2 if len(self.row) + 3 <= self._most else 0

    def end(self, state: TrainState, where: dict[str, int], task: TrainSetup) -> RunError:
        """Dump the state before the first skipped step; the error that says so.

        `where` is the position in the data behind the last one.
        """
        first, folder = self.row[0], task.workdir / NONFINITE
        taken = where["taken"] - len(self.row)
        data = {"epoch": first["epoch"], "batch": first["batch"], "taken": taken}
        if jax.process_index() == 0:
            shutil.rmtree(folder, ignore_errors=True)  # of an earlier failure
        write_run_files(task.config, task.vocabularies, folder)
        before = dataclasses.replace(state, step=state.step * 0 + (first["step"] - 1))
        with Checkpoints(folder, task.config.train) as checkpoints:
            position = {**NEW, "data": data, "text": task.text}
            checkpoints.save(before, position, task.config, task.vocabularies.hash)
        batches = ", ".join(f"{at['epoch']}:{at['batch']}" for at in self.row)
        return RunError(
            f"steps {first['step']} to {self.row[-1]['step']}: the loss or its gradient was not "
            f"finite (epoch:batch {batches}), and nothing was learned from them. Lower the "
            f"learning rate or set config.optimizer.clip_norm; the same command with "
            f"--workdir={folder} meets them again at its first step"
        )
