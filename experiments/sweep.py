"""What a sweep consists of: its points, each a config, a run directory and the command of a run.

A sweep is a file with a config, `CONFIG = "configs/tiny.py:multi30k"`, and a generator `sweep()` of
what its points change, as flat overrides: `{"model.num_heads": 4}`, or `{}` for the config itself.
"""

import dataclasses
import fnmatch
import functools
import importlib.util
import shlex
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from jformer.command_line import naming_failures_in, parse
from jformer.config import Config
from jformer.data.pipeline import open_corpora
from jformer.errors import UserError
from jformer.rundir import config_of, has_run, last_metrics
from jformer.training.setup import check_same_config

LONGEST_NAME = 200  # of a folder; file systems end at 255


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
        """What runs it, or goes on with it, or prints its scores once more."""
        train = ["-m", "jformer.main", *self.flags, f"--workdir={self.workdir}"]
        return [sys.executable, *train]

    @property
    def as_typed(self) -> str:
        return shlex.join(["python", *self.command[1:]])

    @property
    def log(self) -> Path:
        """Standard error of all its processes."""
        return self.workdir / "log.txt"

    @property
    def scores(self) -> Path:
        """Standard output of the process that came to its end: only a complete point has it."""
        return self.workdir / "scores.json"

    @property
    def is_complete(self) -> bool:
        """Whether it has scores of this config that are newer than the text to be scored."""
        if not self.scores.exists() or config_of(self.workdir) != self.config:
            return False
        made = self.scores.stat().st_mtime
        return all(file.stat().st_mtime <= made for file in self.scored_files)

    @functools.cached_property
    def scored_files(self) -> list[Path]:
        """The files of the validation and test text; none, where it is not in the user's files."""
        if self.config.data.name != "files" and not self.config.data.directory:
            return []
        splits = open_corpora(self.config.data, self.config.seed, with_train=False)
        return [file for corpora in splits.values() for corpus in corpora for file in corpus.files]

    @property
    def has_begun(self) -> bool:
        return has_run(self.workdir)

    @property
    def step(self) -> int:
        """The last that its log of metrics has."""
        return last_metrics(self.workdir).get("step", 0)


def make_points(
    sweep: ModuleType, folder: Path, flags: list[str], only: str, seeds: int
) -> list[Point]:
    """The points, checked; `flags` are for each of them, as `--config.train.steps=100`.

    `only` is a pattern of names, with their seed or without, as `*num_heads*`. With several `seeds`
    each point is there once more for every seed behind its own.
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
        raise UserError(f"{path}: no such file; there is experiments/table3_small.py, for one")
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
    _, checked = parse([*all_flags], {})
    name = name_of(overrides)
    if len(name) > LONGEST_NAME:
        raise UserError(f"{name}: is too long for the name of a folder")
    return Point(folder / name, checked, all_flags)


def as_flags(overrides: dict[str, Any]) -> Iterator[str]:
    return (f"--config.{key}={value}" for key, value in overrides.items())


def name_of(overrides: dict[str, Any]) -> str:
    """As `model.num_heads=4+seed=1`; no comma and no @, which separate runs elsewhere."""
    parts = (f"{key}={urllib.parse.quote(str(value), safe='')}" for key, value in overrides.items())
    return "+".join(parts) or "base"
