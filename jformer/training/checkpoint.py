"""Checkpoints in orbax's format: a directory per step in `checkpoints/`, and the best in `best/`.

    params, optimizer_state   arrays
    ema                       arrays; only with a moving average of the parameters
    position                  JSON: the data iterator's state, hashes of the text, metric sums since
                              the last log line, the best score, the tokenizer of BLEU, skipped
                              steps and elapsed seconds
    metadata                  JSON: the config, the vocabulary's hash and the software versions
    SHA256SUMS                checksums of all these files, readable by `sha256sum -c`

Nothing is pickled, and reading executes nothing. Orbax writes under a temporary name and renames,
so a kill at any moment leaves earlier steps intact. It detects little of what happens to a
checkpoint later: a flipped bit is restored as another parameter. Hence the checksums, which are
written before the rename: every checkpoint has them, unless another program made it.

In a job of several processes all of them save and restore together, on a shared file system; a
single process may read alone.
"""

import contextlib
import json
import logging
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from jformer.checksums import SUMS
from jformer.config import Config, TrainConfig
from jformer.errors import UserError
from jformer.rundir import BEST, CHECKPOINTS
from jformer.training.processes import of_first
from jformer.training.provenance import check_vocabulary, describe
from jformer.training.retention import kept
from jformer.training.step import TrainState
from jformer.training.storage import (
    CheckpointDirectory,
    SaveError,
    differences,
    one_line,
    read_arrays,
    verify_checksums,
)

log = logging.getLogger(__name__)

ARRAYS = ("params", "optimizer_state", "ema")
TEXT = "metadata"  # orbax's name for the file of an item in JSON


class CorruptCheckpointError(UserError):
    """A checkpoint differs from what was written; the message names the step and the file."""


class Checkpoints:
    """The checkpoints of one run directory; leave its `with` to finish a save.

    Without `train`, it only reads. With it, there may be one checkpoint too many during a run: an
    old one is deleted only after a new one is known to be complete.
    """

    def __init__(self, workdir: Path, train: TrainConfig | None = None):
        self._train, self._workdir = train, workdir
        self._together = train is not None and jax.process_count() > 1
        self._all = CheckpointDirectory(workdir / CHECKPOINTS)
        self._best = CheckpointDirectory(workdir / BEST)
        if train is not None:
            self._all.open(lambda steps, last: kept(steps, last, train))
            self._best.open(lambda _, last: {last})

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Finish a save in progress; raises `SaveError` if that fails and nothing else has."""
        try:
            with contextlib.closing(self._all):
                self._best.close()
        except SaveError as error:
            if kind is None:
                raise
            log.warning("%s", error)  # the exception already raised ends the run

    def finish(self, step: int) -> None:
        """Wait for the checkpoint of the last step, which holds the result of the run.

        Raises `SaveError` if it could not be written.
        """
        self._best.steps()
        if step not in self.steps() and jax.process_index() == 0:
            raise SaveError(
                f"{self._all.path / str(step)}: the last checkpoint could not be written, so there "
                f"is nothing to score or to go on from but the ones before. Make room; the same "
                f"command goes on from step {max(self.steps(), default=0)}"
            )

    def steps(self) -> list[int]:
        """Finish a save in progress, as every read does, and return the saved steps, ascending."""
        return self._all.steps()

    def best_step(self) -> int | None:
        return max(self._best.steps(), default=None)

    def save(self, state: TrainState, position: dict, config: Config, vocabulary_hash: str) -> None:
        """Copy to the host now, and write in the background; an existing step is not rewritten."""
        items = {
            "params": state.params,
            "optimizer_state": state.optimizer_state,
            "ema": state.ema,
            "position": position,
            "metadata": describe(config, vocabulary_hash),
        }
        self._all.save(int(state.step), items)

    def save_best(
        self, state: TrainState, score: float, config: Config, vocabulary_hash: str
    ) -> None:
        """Replace the best checkpoint; saves neither the optimizer state nor the position."""
        metadata = {**describe(config, vocabulary_hash), "score": score}
        items = {"params": state.params, "ema": state.ema, "metadata": metadata}
        self._best.save(int(state.step), items)

    def check_errors(self) -> None:
        """Raise the `SaveError` of a save that has failed in the background, or log it."""
        self._all.check()
        self._best.check()

    def restore(self, step: int, like: TrainState) -> tuple[TrainState, dict]:
        """Return the state, shaped and placed as `like`, and the position."""
        trees = {item: getattr(like, item) for item in ARRAYS}
        # The metadata is not used: it is verified with the rest.
        items = self._read(self._all, step, trees, ["position", "metadata"])
        number = jax.device_put(np.int32(step), like.step.sharding)
        state = TrainState(number, *(items.get(item) for item in ARRAYS))
        return state, items["position"]

    def restore_newest(self, like: TrainState, vocabulary_hash: str) -> tuple[TrainState, dict]:
        """Restore the newest readable step; damaged ones go to `damaged/`, with a warning."""
        damaged: dict[int, CorruptCheckpointError] = {}
        for step in reversed(self.steps()):
            try:
                check_vocabulary(self.metadata(step), vocabulary_hash, self._workdir)
                restored = self.restore(step, like)
            except CorruptCheckpointError as error:
                if self._train is None:
                    raise
                damaged[step] = error
                continue
            # Only after another step is restored: with none left, the next start would begin anew.
            if jax.process_index() == 0:
                for number, reason in damaged.items():
                    there = self._move_aside(number)
                    log.warning("%s; moved to %s, going on from step %d", reason, there, step)
            if self._together:
                multihost_utils.sync_global_devices("damaged checkpoints are moved")
            return restored
        reasons = "; ".join(str(error) for error in damaged.values()) or "there is none"
        raise UserError(
            f"{self._all.path}: no checkpoint can be read: {reasons}. All is left as it is: put a "
            f"copy back, or choose another workdir to train from the beginning"
        )

    def position(self, step: int) -> dict[str, Any]:
        return self._read(self._all, step, {}, ["position"])["position"]

    def newest_position(self) -> dict[str, Any]:
        """Return the newest position that can be read; empty if there is none."""
        for step in reversed(self.steps()):
            # Not reported here, but when the step itself is restored.
            with contextlib.suppress(CorruptCheckpointError):
                return self.position(step)
        return {}

    def is_whole(self, step: int) -> bool:
        """Return whether no file of a checkpoint is missing or changed, by its checksums."""
        return not verify_checksums(self._all.path / str(step))

    def metadata(self, step: int, best: bool = False) -> dict[str, Any]:
        return self._read(self._best if best else self._all, step, {}, ["metadata"])["metadata"]

    def _move_aside(self, step: int) -> Path:
        """Move a checkpoint to `damaged/`: nothing is lost, and the step can be saved again."""
        there, again = self._workdir / "damaged" / str(step), 0
        while there.exists():
            again += 1
            there = there.with_name(f"{step}-{again}")
        there.parent.mkdir(exist_ok=True)
        return (self._all.path / str(step)).rename(there)

    def remove_best(self) -> None:
        """Delete the best checkpoint, left by an earlier start that saved no other checkpoint."""
        if jax.process_index() == 0:
            shutil.rmtree(self._best.path, ignore_errors=True)

    def params(self, steps: list[int], like: Any, item: str = "params", best: bool = False) -> Any:
        """Return the mean of an item at these steps (Section 6.1), shaped and placed as `like`."""
        folder = self._best if best else self._all
        total = None
        for step in steps:
            params = self._read(folder, step, {item: like})[item]
            check_finite(params, f"{folder.path / str(step)}: {item}")
            total = params if total is None else jax.tree.map(jnp.add, total, params)
        return jax.tree.map(lambda x: x / len(steps), total)

    def _read(
        self,
        folder: CheckpointDirectory,
        step: int,
        trees: dict[str, Any],
        texts: Collection[str] = (),
    ) -> dict[str, Any]:
        """Return items by name: arrays shaped and placed as in `trees`, and the JSON of `texts`.

        Their checksums are verified. Whatever prevents reading is raised as a `UserError` of one
        line.
        """
        directory, steps = folder.path / str(step), folder.steps()
        if step not in steps:
            raise UserError(f"{folder.path}: no checkpoint of step {step}; there are {steps}")
        # In a job one process reads all files, and the others fall back to the same step.
        wanted = [*trees, *texts]
        if found := of_first(lambda: verify_checksums(directory, wanted), self._together):
            raise CorruptCheckpointError(f"{directory}: damaged: {found}")
        try:
            differing = differences(directory, trees)
            items = {} if differing else read_arrays(directory, trees, self._together)
            items |= {name: json.loads((directory / name / TEXT).read_bytes()) for name in texts}
        except Exception as error:
            if (directory / SUMS).exists():  # its files are intact, so it must not be put aside
                raise UserError(f"{directory}: cannot be read: {one_line(error)}") from error
            # In a job of several processes one may fail alone, and must not fall back to an
            # earlier step than the others.
            kind = UserError if self._together else CorruptCheckpointError
            raise kind(f"{directory}: damaged: {one_line(error)}") from error
        if differing:
            more = f"; and {len(differing) - 5} more" if len(differing) > 5 else ""
            raise UserError(
                f"{directory}: of another model or optimizer: {'; '.join(differing[:5])}{more}. "
                f"Give the config that it was trained with, or choose another workdir"
            )
        return items


def check_finite(params: Any, where: str) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.isfinite(leaf).all():
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise UserError(
                f"{where}.{name} is not finite; its training had diverged, take an earlier "
                f"checkpoint"
            )
