"""The picture of a schedule: what it shows, and the file that it is written to."""

import re

import numpy as np
import pytest

from jformer.config import Config, OptimizerConfig, TrainConfig
from jformer.extras.views.schedule import draw_schedule
from jformer.main import main
from jformer.training.schedules import learning_rate

LINEAR = Config(
    name="straight",
    train=TrainConfig(steps=70),
    optimizer=OptimizerConfig(schedule="linear(end=1e-4)", warmup_steps=13),
)


@pytest.fixture
def _matplotlib():
    pytest.importorskip("matplotlib", reason="needs the extra plot")


def lines(config: Config):
    """The learning rate, then the mark of the warm-up's end where there is one, as drawn."""
    (axes,) = draw_schedule(config).axes
    return [line.get_xydata() for line in axes.lines]


@pytest.mark.usefixtures("_matplotlib")
def test_the_line_is_the_learning_rate_of_every_step():
    expected = [(n, float(learning_rate(LINEAR)(n - 1))) for n in range(1, 71)]
    np.testing.assert_allclose(lines(LINEAR)[0], expected, rtol=1e-6)  # float32


def summary(*arguments) -> int:
    small = ["--config.model.num_layers=1", "--config.data.max_length=8"]
    return main(["jformer", "summary", "--config=configs/tiny.py", *small, *arguments])


@pytest.mark.usefixtures("_matplotlib")
@pytest.mark.parametrize(
    ("name", "start"), [("rate.png", b"\x89PNG\r\n\x1a\n"), ("rate.svg", b"<?xml")]
)
def test_summary_writes_a_picture_of_the_kind_that_its_name_says(tmp_path, capsys, name, start):
    assert summary(f"--plot={tmp_path / name}") == 0
    content = (tmp_path / name).read_bytes()
    assert content.startswith(start)
    assert (b"<svg" in content) == name.endswith("svg")
    assert capsys.readouterr().out.splitlines()[-1].startswith("train step:")


@pytest.mark.parametrize("name", ["rate.pdf", "rate"])
def test_a_picture_that_cannot_be_written_is_named_before_anything_runs(tmp_path, capsys, name):
    assert summary(f"--plot={tmp_path / name}") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"jformer: --plot={tmp_path / name}: .*\.png.*\.svg.*\n", captured.err)
