"""The run directory: the names of its files, its lock and metrics.jsonl.

It is self-contained: config, vocabularies, metrics, scores and checkpoints.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jformer import components
from jformer.config import Config, read_config
from jformer.errors import UserError
from jformer.files import read_object, write_object, writing
from jformer.schema import replaced, walk

CONFIG = "config.json"
VOCABULARY = "vocabulary.json"
SOURCE_VOCABULARY = "source_vocabulary.json"  # only if each language has its own
METRICS = "metrics.jsonl"  # an object per line: step, split and numbers
RESULTS = "results.json"  # scores by test set, and under SERVED which parameters are served
SERVED = "served"
CHECKPOINTS = "checkpoints"  # a directory per step
BEST = "best"  # the checkpoint with the best validation score
COMPONENTS = "components"  # copies of the files of components
TENSORBOARD = "tensorboard"
PROFILE = "profile"
LOCK = "lock"


def config_of(workdir: Path) -> Config:
    """Return the config of a run, without running the files that it names."""
    return read_config(workdir / CONFIG)


def config_to_open(workdir: Path, plugins: Sequence[str]) -> Config:
    """Return the config of a run to open, with the files `plugins` in place of its own.

    A run directory may come from anybody, so a file that only its config names is never run.
    """
    for file in plugins:
        components.allow(file)
    config = config_of(workdir)
    files = {Path(file).name: file for file in plugins}
    changed = {
        key: components.without_folders(value, files)
        for key, field, value in walk(config)
        if field.metadata.get("component")
    }
    return replaced(config, changed)


def default_workdir(config: Config) -> Path:
    data = config.data
    return Path("runs", f"{config.name}-{components.parse(data.name).name}-{data.languages}")


def read_results(workdir: Path) -> dict[str, Any]:
    """Return the content of results.json, empty if nothing has been scored."""
    path = workdir / RESULTS
    return read_object(path, "delete it to score the run again") if path.exists() else {}


def read_scores(workdir: Path) -> dict[str, Any]:
    """Return `{test set: scores}` of results.json; `UserError` for a damaged file."""
    return {name: scores for name, scores in read_results(workdir).items() if name != SERVED}


def write_results(workdir: Path, name: str, content: dict[str, Any]) -> None:
    """Replace one entry of results.json."""
    write_object(workdir / RESULTS, {**read_results(workdir), name: content})


def served_checkpoint(workdir: Path, newest: int) -> str:
    """Return whether the `average` or the `last` checkpoint is served; empty if not decided yet.

    An earlier decision is void if training has since continued to step `newest`.
    """
    served = read_results(workdir).get(SERVED, {})
    return served.get("checkpoint", "") if served.get("step") == newest else ""


def has_run(workdir: Path) -> bool:
    return (workdir / CONFIG).exists()


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Create the directory and lock it; the lock is released when the process ends in any way.

    Raises `UserError` if another process trains there.
    """
    from filelock import FileLock, Timeout  # slow to import, and only training needs it

    with writing(f"workdir={workdir}"):
        workdir.mkdir(parents=True, exist_ok=True)
    lock = FileLock(workdir / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        reason = "another process is training there; wait for it, or choose another workdir"
        raise UserError(f"{workdir}: {reason}") from None
    try:
        yield
    finally:
        (workdir / LOCK).unlink(missing_ok=True)
        lock.release()


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, without a partial line that a kill has left."""
    path, lines = workdir / METRICS, []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    return lines
