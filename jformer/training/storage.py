"""Checkpoint directories on disk: orbax's files and their checksums, written and read.

Orbax writes under a temporary name and renames, so a kill leaves a step complete or absent. It
detects little of what happens to a file later (a flipped bit of an array is restored as another
number), hence checksums of all files. They are written before the rename: every checkpoint has
them, unless another program made it. Nothing is pickled, and reading executes nothing.
"""

import contextlib
import functools
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from errno import EACCES, EDQUOT, EFBIG, EIO, ENOSPC, ENOTDIR, EPERM, EROFS, ESTALE
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jformer.checksums import first_damage, write_sums
from jformer.errors import RunError

WRITING, DELETING = ".orbax-checkpoint-tmp", ".deleting"
TEXTS = ("position", "metadata")
# The system's messages for disk errors, to be found in the long messages of orbax's libraries.
ERRNOS = (ENOSPC, EDQUOT, EFBIG, EROFS, EACCES, EPERM, ENOTDIR, ESTALE, EIO)
DISK_ERRORS = [os.strerror(number) for number in ERRNOS]
log = logging.getLogger(__name__)


@functools.cache
def silence_orbax() -> None:
    """Keep orbax's threads from logging pages about errors that arrive here as exceptions."""
    logging.getLogger("absl").addFilter(lambda record: "/orbax/" not in record.pathname)
    # Reads and writes that fail after another one did: the error of the first is already raised.
    logging.getLogger("asyncio").addFilter(
        lambda record: not re.search("orbax|zarr", record.getMessage())
    )
    hook = sys.unraisablehook

    def report(unraisable: Any) -> None:
        code = getattr(unraisable.object, "cr_code", None)
        of_orbax = code is not None and "/orbax/" in code.co_filename
        if not of_orbax and str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    sys.unraisablehook = report


class SaveError(RunError):
    """A checkpoint could not be written; the message is one line: which, why, what to do."""


class CheckpointDirectory:
    """Checkpoints in a directory per step; once it is open, they can be written."""

    def __init__(self, path: Path):
        self.path = path.absolute()
        self._writer: Any = None
        self._last = -1  # the step last passed to `save`
        self._deleter = ThreadPoolExecutor(max_workers=1)

    def open(self, kept: Callable[[list[int], int], set[int]]) -> None:
        """Prepare for writing; delete what interrupted saves and deletions have left.

        Whenever the save of step `last` is complete, the steps not in `kept(steps, last)` are
        deleted. A save that fails raises `SaveError`.
        """
        silence_orbax()
        self._kept = kept
        self._remove(WRITING)
        self._remove(DELETING)
        self._writer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(),
            async_options=ocp.AsyncOptions(
                # Called in the background, by one process, after all writes, before the rename.
                post_finalization_callback=self._write_sums,
                create_directories_asynchronously=False,
            ),
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                barrier_sync_key_prefix=self.path.name  # two folders may be written at once
            ),
        )

    def _write_sums(self) -> None:
        """Write the checksums of the items' files; orbax still changes those outside the items."""
        write_sums(self.path / f"{self._last}{WRITING}", "*/**/*")

    def steps(self) -> list[int]:
        """Finish a save in progress, as every read does, and return the steps, ascending."""
        if self._writer:
            with self._failing():
                self._writer.wait_until_finished()
            complete = self._complete()
            if self._last in complete:
                self._delete(set(complete) - self._kept(complete, self._last))
        return self._complete()

    def _complete(self) -> list[int]:
        """Return the complete steps; unfinished saves have longer names."""
        paths = self.path.iterdir() if self.path.is_dir() else ()
        # Files, and names such as 0400, were made by others.
        named = (path for path in paths if re.fullmatch("0|[1-9][0-9]*", path.name))
        return sorted(int(path.name) for path in named if path.is_dir())

    def save(self, step: int, items: dict[str, Any]) -> None:
        """Start to save the items that are not None; an existing step is not rewritten."""
        exists = step in self.steps()
        self._last = step
        if exists:
            return
        args = {
            name: (ocp.args.JsonSave if name in TEXTS else ocp.args.StandardSave)(item)
            for name, item in items.items()
            if item is not None
        }
        with self._failing():
            self._writer.save(self.path / str(step), ocp.args.Composite(**args))

    def check(self) -> None:
        """Report a save that has failed in the background."""
        with self._failing():
            self._writer.check_for_errors()

    def close(self) -> None:
        if self._writer:
            with self._deleter, contextlib.closing(self._writer):
                self.steps()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._remove(WRITING)  # to free space on a full disk
            message = (
                f"{self.path / str(self._last)}: this checkpoint could not be written "
                f"({one_line(error)}). Make room, or lift what forbids it; the checkpoints before "
                f"it are whole"
            )
            raise SaveError(message) from error

    def _delete(self, steps: set[int]) -> None:
        """Delete steps in a thread: a large one takes a third of a second."""
        if not steps or jax.process_index() > 0:
            return
        for step in steps:
            # Renamed first, so that a kill leaves no half-deleted step among the others.
            with contextlib.suppress(OSError):  # a step too many does no harm
                (self.path / str(step)).rename(self.path / f"{step}{DELETING}")
        self._deleter.submit(self._remove, DELETING)

    def _remove(self, suffix: str) -> None:
        if jax.process_index() == 0:
            for path in self.path.glob(f"[0-9]*{suffix}*"):
                shutil.rmtree(path, ignore_errors=True)


def verify_checksums(directory: Path, items: Collection[str] | None = None) -> str:
    """Describe the first damaged file of these items (None: of all); empty if there is none.

    A checkpoint without checksums passes.
    """

    def has_sum(name: str) -> bool:
        item, _, within = name.partition("/")  # orbax still changes files outside the items
        return bool(within) and (items is None or item in items)

    return first_damage(directory, has_sum, required=False)


def differences(directory: Path, trees: dict[str, Any]) -> list[str]:
    """Describe leaves that differ in name or shape from those of `trees`, without reading arrays.

    Raises ValueError for an array stored in chunks larger than itself, for which reading would
    allocate memory.
    """
    found = []
    for item, tree in trees.items():
        stored = directory / item
        leaves = ocp.StandardCheckpointHandler().metadata(stored).tree if stored.is_dir() else {}
        saved, wanted = shapes({item: leaves}), shapes({item: tree})
        for name in sorted({*saved, *wanted}):
            if name not in saved:
                found.append(f"{name}, {wanted[name]}, is not in it")
            elif name not in wanted:
                found.append(f"{name}, {saved[name]}, is in it only")
            elif saved[name] != wanted[name]:
                found.append(f"{name} is {saved[name]}, not {wanted[name]}")
        for name, leaf in ocp.tree.to_flat_dict({item: leaves}, sep=".").items():
            piece = tuple(leaf.storage.chunk_shape or ()) if leaf.storage else ()
            if any(length > whole for length, whole in zip(piece, saved[name], strict=True)):
                raise ValueError(f"{name}, {saved[name]}, is in pieces of {piece}")
    return found


def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = ocp.tree.to_flat_dict(tree, sep=".")
    return {name: tuple(leaf.shape) for name, leaf in leaves.items()}


def read_arrays(directory: Path, trees: dict[str, Any], together: bool) -> dict[str, Any]:
    """Return arrays by item, shaped and placed as in `trees`.

    They do not depend on the devices that saved them. Without `together` this process reads alone.
    """
    silence_orbax()
    options = ocp.options.MultiprocessingOptions()
    if not together:
        this = jax.process_index()
        options = ocp.options.MultiprocessingOptions(
            primary_host=this, active_processes={this}, barrier_sync_key_prefix=f"alone_{this}"
        )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    return {
        item: handler.restore(directory / item, args=ocp.args.StandardRestore(tree))
        for item, tree in trees.items()
        if tree
    }


def one_line(error: BaseException) -> str:
    """Return the system's message if the error is one of the disk; else the first line."""
    text = str(error) or type(error).__name__
    return next((known for known in DISK_ERRORS if known in text), text.splitlines()[0][:300])
