"""Pictures of attention and of learning curves."""

from pathlib import Path

import numpy as np
import pytest

from jformer.decoding.scoring import Attention
from jformer.extras.plots import draw_attention, draw_curves
from jformer.extras.report import read_run
from jformer.rundir import read_metrics

pytest.importorskip("matplotlib", reason="needs the extra plot")

STORED = Path("tests/stored_run/run")
H, T, S = 2, 3, 5
RNG = np.random.default_rng(0)
WEIGHTS = {
    f"decoder_{n}/cross_attention": RNG.dirichlet(np.ones(S), (H, T)).astype(np.float32)
    for n in range(3)
}
ATTENTION = Attention(WEIGHTS, ["a", "b", "c", "d", "#2"], ["#1", "x", "y"])


@pytest.mark.parametrize(("layer", "drawn"), [(None, 1), (1, 0), (3, 2)])
def test_a_panel_a_head_holds_its_weights(layer, drawn):
    figure = draw_attention(ATTENTION, layer)
    *panels, bar = figure.axes
    assert [axes.get_title() for axes in panels] == ["head 1", "head 2"]
    for head, axes in enumerate(panels):
        (image,) = axes.get_images()
        expected = WEIGHTS[f"decoder_{drawn}/cross_attention"][head]
        np.testing.assert_array_equal(image.get_array(), expected)
        assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c", "d", "EOS"]
    rows = [label.get_text() for label in panels[0].get_yticklabels()]
    assert rows == ["BOS", "x", "y"]
    assert bar.get_ylabel() == "weight"
    assert f"layer {drawn + 1}" in figure.get_suptitle()


def test_a_line_per_split_goes_through_the_points_of_the_log():
    (axes,) = draw_curves(read_run(STORED)).axes
    log = read_metrics(STORED)
    for line, split in zip(axes.get_lines(), ("train", "validation"), strict=True):
        points = [(entry["step"], entry["nll"]) for entry in log if entry["split"] == split]
        assert points
        assert list(zip(*line.get_data(), strict=True)) == points
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["train", "validation"]
