"""Checkpoints in orbax's format, a directory per step.

    params, optimizer_state   arrays
    ema                       arrays: the moving average of the parameters, if any
    position                  JSON: everything else that a resumed run needs
    metadata                  JSON: the hash of the vocabulary and software versions
    SHA256SUMS                checksums, as `sha256sum -c` reads them

orbax renames complete checkpoints, so a kill leaves earlier steps intact. It would restore a
flipped bit silently, hence the checksums.

Regular steps are multiples of `train.checkpoint_every` and the last step. Only these are averaged
and count for `train.keep_checkpoints`. An interrupted run, which saves other steps to resume from,
therefore serves the same parameters as an uninterrupted run.
"""

import contextlib
import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from jformer.config import TrainConfig
from jformer.errors import RunError, UserError
from jformer.files import first_damage, write_sums
from jformer.rundir import BEST, CHECKPOINTS
from jformer.training.step import TrainState

log = logging.getLogger(__name__)

ARRAYS = ("params", "optimizer_state", "ema")
# The files with checksums: orbax still changes the files outside the items.
CHECKED = "*/**/*"


def report(unraisable: Any, default: Callable[[Any], Any] = sys.unraisablehook) -> None:
    """Report an exception of a thread, except one that follows for each array after a failed save.

    The failure itself arrives as an exception in `Checkpoints`.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        default(unraisable)


sys.unraisablehook = report
logging.getLogger("absl").addFilter(lambda record: "/orbax/" not in record.pathname)


@dataclasses.dataclass
class KeepRegular:
    """Keeps the newest step, the last regular steps, and multiples of `keep_every`."""

    train: TrainConfig

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps, train = [each.step for each in checkpoints], self.train
        regular = [s for s in steps if s % train.checkpoint_every == 0 or s == train.steps]
        recent = regular[-(train.keep_checkpoints or train.average_checkpoints) :]
        permanent = [s for s in regular if train.keep_every and s % train.keep_every == 0]
        kept = {steps[-1], *recent, *permanent}
        return [step in kept for step in steps]


def averaged(steps: list[int], ended: bool, train: TrainConfig) -> list[int]:
    """Return the steps to average (Section 6.1): the last regular steps.

    The newest step is regular if the run `ended` there. Without regular steps, only it is averaged.
    """
    newest = steps[-1]
    regular = [step for step in steps if step % train.checkpoint_every == 0]
    if not regular or (ended and newest not in regular):
        regular.append(newest)
    return regular[-train.average_checkpoints :]


class Checkpoints:
    """The checkpoints in a folder of a run; with `train`, a context manager that also writes.

    The folder `best/` keeps one checkpoint. Saves run in the background, and reads wait for them.
    All processes of a run save and resume together. A single process may read alone.
    """

    def __init__(self, workdir: Path, train: TrainConfig | None = None, folder: str = CHECKPOINTS):
        self._folder = (workdir / folder).absolute()
        self._manager: Any = None
        if train is None:
            return
        latest = ocp.checkpoint_managers.LatestN(1)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=latest if folder == BEST else KeepRegular(train),
            cleanup_tmp_directories=True,  # of killed saves
            async_options=ocp.AsyncOptions(
                post_finalization_callback=self._write_checksums,
                create_directories_asynchronously=False,
            ),
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                barrier_sync_key_prefix=folder  # two folders may be written at once
            ),
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def _write_checksums(self) -> None:
        """Called in the background, by one process, after all writes and before the rename."""
        (partial,) = self._folder.glob("*.orbax-checkpoint-tmp*")
        write_sums(partial, CHECKED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._saving():
            self._manager.close()

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Raise a one-line `RunError` if a save fails."""
        try:
            yield
        except Exception as error:
            reason = str(error).partition("\n")[0][-200:]
            raise RunError(
                f"{self._folder}: a checkpoint could not be saved ({reason}). Free disk space or "
                f"fix permissions, then rerun the same command: earlier checkpoints are intact"
            ) from error

    def steps(self) -> list[int]:
        """Return the complete steps in ascending order."""
        if self._manager is None:
            names = [path.name for path in self._folder.glob("*")]
            return sorted(int(name) for name in names if name.isdecimal())
        with self._saving():
            self._manager.wait_until_finished()
        return sorted(self._manager.all_steps())

    def save(
        self, state: TrainState, metadata: dict[str, Any], position: dict[str, Any] | None = None
    ) -> None:
        """Copy a state to the host, and save it in the background.

        Without a `position` to resume from, the optimizer's state is not saved.
        """
        arrays = {"params": state.params, "ema": state.ema}
        items = {"metadata": ocp.args.JsonSave(metadata)}
        if position:
            arrays["optimizer_state"] = state.optimizer_state
            items["position"] = ocp.args.JsonSave(position)
        items |= {n: ocp.args.StandardSave(tree) for n, tree in arrays.items() if tree is not None}
        step = int(state.step)
        if step not in self.steps():
            with self._saving():
                self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def delete(self, steps: Iterable[int]) -> None:
        with self._saving():
            for step in steps:
                self._manager.delete(step)

    def restore_newest(self, like: TrainState) -> tuple[TrainState, dict[str, Any], dict[str, Any]]:
        """Return the newest undamaged state, placed as `like`, its position and its metadata.

        Delete the damaged steps after it: the run will write them again.
        """
        items: dict[str, Any] = {"position": None, "metadata": None}
        items |= {name: tree for name in ARRAYS if (tree := getattr(like, name)) is not None}
        step, found = self._read_newest(items)
        if not found:
            raise UserError(f"{self._folder}: no checkpoint can be restored")
        self.delete(damaged for damaged in self.steps() if damaged > step)
        position, metadata = found.pop("position"), found.pop("metadata")
        number = jax.device_put(np.int32(step), like.step.sharding)
        return dataclasses.replace(like, step=number, **found), position, metadata

    def newest(self, item: str) -> dict[str, Any]:
        """Return the `position` or the `metadata` of the newest undamaged step, or {}."""
        return self._read_newest({item: None})[1].get(item, {})

    def _read_newest(self, items: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the newest step whose items are undamaged, and the items; (0, {}) without one."""
        for step in reversed(self.steps()):
            try:
                return step, self.read(step, items)
            except (UserError, OSError) as error:  # the latter if a run has just deleted it
                log.warning("%s", error)
        return 0, {}

    def mean(self, steps: list[int], like: Any, item: str = "params") -> Any:
        """Return the mean of an item at these steps (Section 6.1), shaped and placed as `like`."""
        total = None
        for step in steps:
            tree = self.read(step, {item: like})[item]
            total = tree if total is None else jax.tree.map(jnp.add, total, tree)
        return jax.tree.map(lambda x: x / len(steps), total)

    def read(self, step: int, items: dict[str, Any]) -> dict[str, Any]:
        """Return items of a step, after a check of their files.

        The value of an item is None for JSON, or the shapes and shardings of arrays, on devices of
        any number and kind.
        """
        directory, steps = self._folder / str(step), self.steps()
        if step not in steps:
            raise UserError(f"{self._folder}: no checkpoint of step {step}; available: {steps}")
        if damage := first_damage(directory, lambda name: name.split("/")[0] in items):
            raise UserError(f"{directory}: damaged: {damage}")
        return {name: read_item(directory / name, like) for name, like in items.items()}


def read_item(path: Path, like: Any) -> Any:
    """Return JSON, or arrays shaped and placed as `like`."""
    if like is None:
        return json.loads((path / "metadata").read_bytes())
    return ocp.StandardCheckpointHandler().restore(path, args=ocp.args.StandardRestore(like))
