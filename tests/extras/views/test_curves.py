"""The learning curves of a run as a picture."""

import pytest

from jformer.extras.views.curves import draw_curves
from jformer.extras.views.report import read_run
from jformer.rundir import read_metrics

pytest.importorskip("matplotlib", reason="needs the extra plot")


@pytest.mark.process
def test_a_line_a_split_goes_through_what_the_log_has(trained_workdir):
    (axes,) = draw_curves(read_run(trained_workdir)).axes
    log = read_metrics(trained_workdir)
    for line, split in zip(axes.get_lines(), ("train", "validation"), strict=True):
        points = [(entry["step"], entry["nll"]) for entry in log if entry["split"] == split]
        assert len(points) > 1
        assert list(zip(*line.get_data(), strict=True)) == points
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["train", "validation"]
