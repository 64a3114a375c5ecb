"""The points of a sweep, checked before anything runs."""

import importlib.util
import shlex
import sys
from pathlib import Path

import pytest

from jformer.config import write_config
from jformer.errors import UserError
from jformer.extras.sweeps.points import load_sweep, make_points
from jformer.main import run
from tests.conftest import file_flags

needs_submitit = pytest.mark.skipif(
    not importlib.util.find_spec("submitit"), reason="needs the extra slurm"
)


@pytest.fixture
def make(tmp_path):
    """The points of a sweep with this body of `sweep()`."""

    def make(body, flags=(), only="", seeds=1):
        path = tmp_path / "mine.py"
        path.write_text(f'CONFIG = "configs/tiny.py"\n\n\ndef sweep():\n    {body}\n')
        return make_points(load_sweep(str(path)), Path("runs/mine"), list(flags), only, seeds)

    return make


def test_a_point_is_named_by_what_differs(make):
    points = make('yield from ({}, {"model.num_heads": 2, "data.train": "a/b,c@d"})')
    assert [point.name for point in points] == [
        "base", "model.num_heads=2+data.train=a%2Fb%2Cc%40d",
    ]  # fmt: skip
    assert [point.config.model.num_heads for point in points] == [4, 2]


def test_a_long_name_ends_in_a_hash_and_stays_the_name_of_one_folder(make):
    body = (
        'yield from ({"optimizer.name": f"muon(momentum={m}, weight_decay=0.125, adam_factor=2.5, "'
        '"beta1=0.875, beta2=0.96875)"} for m in (0.9, 0.8))'
    )
    names = [point.name for point in make(body)]
    assert [point.name for point in make(body)] == names
    assert len({*names}) == 2
    assert all(len(name) <= 100 and "/" not in name for name in names)
    (short,) = make('yield {"optimizer.name": "muon(momentum=0.9)"}')
    assert short.name == "optimizer.name=muon(momentum=0.9)"


def test_the_command_of_a_point_can_be_typed(make):
    (point,) = make('yield {"model.num_heads": 2}', ["--config.train.steps=7"])
    assert shlex.split(point.as_typed) == [
        "python", "-m", "jformer.main", "--config=configs/tiny.py", "--config.train.steps=7",
        "--config.model.num_heads=2", "--workdir=runs/mine/model.num_heads=2",
    ]  # fmt: skip


def test_further_seeds_are_runs_beside_those_of_the_configs_own(make):
    points = make('yield from ({}, {"model.dropout": 0.2})', ["--config.seed=5"], seeds=3)
    assert [(point.name, point.config.seed) for point in points] == [
        ("base", 5), ("seed=6", 6), ("seed=7", 7), ("model.dropout=0.2", 5),
        ("model.dropout=0.2+seed=6", 6), ("model.dropout=0.2+seed=7", 7),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("only", "taken"),
    [
        ("base", ["base", "seed=1"]),
        ("*dropout=0.2", ["model.dropout=0.2", "model.dropout=0.2+seed=1"]),
    ],
)
def test_a_point_is_taken_with_its_seeds_or_by_its_seed(make, only, taken):
    points = make('yield from ({}, {"model.dropout": 0.2})', only=only, seeds=2)
    assert [point.name for point in points] == taken


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('yield {"model.dropuot": 0.1}', r"--config\.model\.dropuot=0\.1: unknown key.*dropout"),
        ('yield {"model.dropout": 1.5}', r"config\.model\.dropout=1\.5: must be < 1"),
        ("yield from ({}, {})", "base is there twice"),
        ('yield "model.num_heads=4"', r"yields 'model\.num_heads=4'; a point is a dict of keys"),
    ],
)
def test_a_mistake_in_a_sweep_is_named(make, body, message):
    with pytest.raises(UserError, match=message):
        make(body)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--jobs=0"], "--jobs: invalid positive int"),
        (["--seed=2"], r"did you mean config\.seed\?"),
        (["--only=*heads*"], r"--only=\*heads\*: matches none of base, model\.dropout=0\.4"),
        (["--config.model.dropout=2.0"], r"config\.model\.dropout=2\.0: must be < 1"),
        pytest.param(["--submit=slrm"], "--submit=slrm: .*slrm", marks=needs_submitit),
    ],
)
def test_a_mistake_in_the_command_is_one_line_before_anything_runs(
    corpus_directory, tmp_path, flags, message
):
    own = [f"--workdir={tmp_path}", *file_flags(corpus_directory)]
    with pytest.raises(UserError, match=message) as caught:
        run(["sweep", "tests/extras/sweeps/sweep_of_two.py", *own, *flags])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*/config.json"))


def test_without_submitit_one_line_names_the_extra(corpus_directory, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)  # as if it were not there
    flags = [f"--workdir={tmp_path}", *file_flags(corpus_directory), "--submit=local"]
    with pytest.raises(UserError, match="--submit needs packages: pip install submitit"):
        run(["sweep", "tests/extras/sweeps/sweep_of_two.py", *flags])
    assert not list(tmp_path.glob("*/config.json"))


SWEEPS = [path for path in Path("experiments").glob("*.py") if "def sweep()" in path.read_text()]


@pytest.mark.parametrize("path", SWEEPS, ids=str)
def test_every_sweep_of_a_clone_has_points_with_sound_configs(capsys, path):
    assert run(["sweep", str(path), "--dry_run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_a_complete_point_is_one_whose_process_ended_well_with_this_very_config(make, tmp_path):
    (point,) = make("yield {}")
    point = type(point)(tmp_path / "base", point.config, point.flags)
    assert not point.is_complete
    (tmp_path / "base").mkdir()
    write_config(point.config, tmp_path / "base" / "config.json")
    assert not point.is_complete
    point.scores.write_text("{}")
    assert point.is_complete
    (longer,) = make('yield {"train.steps": 9999}')
    assert not type(point)(point.workdir, longer.config, longer.flags).is_complete
