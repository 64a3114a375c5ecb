"""The guard that ends a run after too many non-finite updates in a row.

The train step skips such updates, so the state is still the one before the first of them. It is
dumped as a run directory, which reproduces them from its first step on.
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

MAX_SKIPPED = 10  # consecutive non-finite updates


class NonFiniteGuard:
    """Records the consecutive skipped steps and their batches; `MAX_SKIPPED` end the run."""

    def __init__(self, skipped: list[dict[str, int]]):
        self.row = list(skipped)

    def note(self, seen: StepMetrics) -> bool:
        """Record a step, and return whether its update was skipped."""
        if not seen.metrics["skipped"]:
            self.row = []
            return False
        self.row.append({"step": seen.step, "epoch": seen.epoch, "batch": seen.batch})
        return True

    @property
    def too_many(self) -> bool:
        return len(self.row) >= MAX_SKIPPED

    @property
    def behind(self) -> int:
        """How many steps may go unchecked, 2 or 0: none where they could be one too many."""
        return 2 if len(self.row) + 3 <= MAX_SKIPPED else 0

    def end(self, state: TrainState, where: dict[str, int], setup: TrainSetup) -> RunError:
        """Dump the state before the first skipped step, and return the error to raise.

        `where` is the position in the data after the last skipped step.
        """
        first, folder = self.row[0], setup.workdir / NONFINITE
        taken = where["taken"] - len(self.row)
        data = {"epoch": first["epoch"], "batch": first["batch"], "taken": taken}
        if jax.process_index() == 0:
            shutil.rmtree(folder, ignore_errors=True)  # left by an earlier failure
        write_run_files(setup.config, setup.vocabularies, folder)
        before = dataclasses.replace(state, step=state.step * 0 + (first["step"] - 1))
        with Checkpoints(folder, setup.config.train) as checkpoints:
            position = {**NEW, "data": data, "text": setup.text_hashes}
            checkpoints.save(before, position, setup.config, setup.vocabularies.hash)
        batches = ", ".join(f"{at['epoch']}:{at['batch']}" for at in self.row)
        return RunError(
            f"steps {first['step']} to {self.row[-1]['step']}: the loss or its gradient was not "
            f"finite (epoch:batch {batches}), and nothing was learned from them. Lower the "
            f"learning rate or set config.optimizer.clip_norm; the same config in "
            f"workdir={folder} meets them again at its first step"
        )
