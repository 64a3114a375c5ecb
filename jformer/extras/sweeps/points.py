"""The points of a sweep, each with a config, a run directory and the command of its run.

A sweep is a Python file with a config, `CONFIG = "tiny:multi30k"`, and a generator
`sweep()` of flat overrides, one dict per point: `{"model.num_heads": 4}`, or `{}` for none.
"""

import dataclasses
import fnmatch
import functools
import hashlib
import importlib.util
import shlex
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from jformer.cli import config_of_flags
from jformer.components import naming_failures_in, parse
from jformer.config import Config
from jformer.data.datasets import open_corpora
from jformer.errors import UserError
from jformer.rundir import config_of, has_run, last_metrics
from jformer.training.provenance import check_same_config

MAX_NAME = 100  # characters of a folder's name; file systems allow 255


@dataclasses.dataclass(frozen=True)
class Point:
    workdir: Path
    config: Config
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.workdir.name

    @property
    def command(self) -> list[str]:
        """Return the command that runs or resumes the point, or prints its scores again."""
        train = ["-m", "jformer.main", *self.flags, f"--workdir={self.workdir}"]
        return [sys.executable, *train]

    @property
    def as_typed(self) -> str:
        return shlex.join(["python", *self.command[1:]])

    @property
    def log(self) -> Path:
        """Return the file with the standard error of all processes of this point."""
        return self.workdir / "log.txt"

    @property
    def scores(self) -> Path:
        """Return the file with the standard output of the run; only a complete point has it."""
        return self.workdir / "scores.json"

    @property
    def is_complete(self) -> bool:
        """Return whether there are scores of this config that are newer than the scored text."""
        if not self.scores.exists():
            return False
        if config_of(self.workdir) != self.config:
            return False
        made = self.scores.stat().st_mtime
        return all(file.stat().st_mtime <= made for file in self.scored_files)

    @functools.cached_property
    def scored_files(self) -> list[Path]:
        """Return the validation and test files; none where the text is not in the user's files."""
        data = self.config.data
        if parse(data.name).file or (data.name != "files" and not data.directory):
            return []
        splits = open_corpora(self.config, with_train=False)
        return [file for corpora in splits.values() for corpus in corpora for file in corpus.files]

    @property
    def has_begun(self) -> bool:
        return has_run(self.workdir)

    @property
    def step(self) -> int:
        """Return the last step in metrics.jsonl."""
        return last_metrics(self.workdir).get("step", 0)


def make_points(
    sweep: ModuleType, folder: Path, flags: list[str], only: str, seeds: int
) -> list[Point]:
    """Return the checked points; `flags`, as `--config.train.steps=100`, are set for all of them.

    `only` is a pattern of names with or without their seeds, as `*num_heads*`. With `seeds` > 1
    each point is repeated with the seeds that follow its own.
    """
    points: dict[str, Point] = {}
    chosen = []
    for overrides in sweep.sweep():
        check_overrides(sweep, overrides)
        seeded = [make_point(sweep.CONFIG, folder, flags, overrides)]
        for more in range(1, seeds):
            again = {**overrides, "seed": seeded[0].config.seed + more}
            seeded.append(make_point(sweep.CONFIG, folder, flags, again))
        for point in seeded:
            twin = next((old.name for old in points.values() if old.config == point.config), "")
            if twin:
                twice = "is there twice" if twin == point.name else f"is the same run as {twin}"
                raise UserError(f"{sweep.__file__}: {point.name} {twice}; points must differ")
            points[point.name] = point
            if any(fnmatch.fnmatch(name, only or "*") for name in (point.name, seeded[0].name)):
                chosen.append(point)
    if not points:
        raise UserError(f"{sweep.__file__}: has no points; sweep() must yield overrides")
    if not chosen:
        raise UserError(f"--only={only}: matches none of {', '.join(points)}")
    for point in chosen:
        check_same_config(point.config, point.workdir)
    return chosen


def check_overrides(sweep: ModuleType, overrides: Any) -> None:
    if not isinstance(overrides, dict) or any(isinstance(v, dict) for v in overrides.values()):
        raise UserError(
            f"{sweep.__file__}: sweep() yields {overrides!r}; a point is a dict of keys with dots, "
            f"as {{'model.num_heads': 4}}"
        )


def load_sweep(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file; a sweep is a Python file with CONFIG and sweep()")
    spec = importlib.util.spec_from_file_location("sweep", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    with naming_failures_in(path):
        spec.loader.exec_module(module)
    for name in ("CONFIG", "sweep"):
        if not hasattr(module, name):
            raise UserError(
                f"{path}: has no {name}; a sweep needs CONFIG, the --config of a run, and sweep(), "
                f"a generator of overrides"
            )
    return module


def make_point(config: str, folder: Path, flags: list[str], overrides: dict[str, Any]) -> Point:
    all_flags = (f"--config={config}", *flags, *as_flags(overrides))
    checked = config_of_flags([*all_flags])
    return Point(folder / name_of(overrides), checked, all_flags)


def as_flags(overrides: dict[str, Any]) -> Iterator[str]:
    return (f"--config.{key}={value}" for key, value in overrides.items())


def name_of(overrides: dict[str, Any]) -> str:
    """Return `model.num_heads=4+seed=1`; comma and @, which separate runs, are escaped.

    A long name, as of components with options, ends in a hash.
    """
    values = {key: urllib.parse.quote(str(value), safe="()=") for key, value in overrides.items()}
    name = "+".join(f"{key}={value}" for key, value in values.items()) or "base"
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
