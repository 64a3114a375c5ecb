"""Matplotlib pictures (the extra `plot`): attention and learning curves."""

from typing import Any

from jformer.decoding.scoring import Attention
from jformer.errors import import_extra
from jformer.extras.report import RunSummary

PANEL = 0.22  # inches per token of a plot of attention


def new_figure(width: float, height: float, dpi: int) -> Any:
    """Return an empty `Figure` of `width` x `height` inches with the constrained layout."""
    matplotlib = import_extra("matplotlib.figure", "a picture", "matplotlib")
    return matplotlib.Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def draw_attention(attention: Attention, layer: int | None = None) -> Any:
    """Return a matplotlib `Figure` of a decoder layer's cross-attention; layers count from 1.

    The default is the last layer but one, which aligns best (Garg et al. 2019). A row shows the
    weights with which the token *after* its label is predicted; they sum to 1.
    """
    layers = attention.layers("decoder", "cross_attention")
    number = layer or max(1, len(layers) - 1)
    weights_HTS = layers[number - 1]
    H, T, S = weights_HTS.shape
    figure = new_figure(max(3.0, PANEL * S) * H, max(3.0, PANEL * T) + 1, dpi=80)
    panels = figure.subplots(1, H, sharey=True, squeeze=False)[0]
    for head, axes in enumerate(panels, start=1):
        image = axes.imshow(weights_HTS[head - 1], vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axes.set_title(f"head {head}")
        axes.set_xticks(range(S), [*attention.source_tokens[:-1], "EOS"], rotation=90)
    panels[0].set_yticks(range(T), ["BOS", *attention.target_tokens[1:]])
    figure.colorbar(image, ax=panels, label="weight")
    figure.suptitle(f"Attention of decoder layer {number} to the source")
    return figure


def draw_curves(run: RunSummary) -> Any:
    """Return a matplotlib `Figure` of the training NLL (with dropout) and the validation NLL."""
    figure = new_figure(7, 3.5, dpi=100)
    axes = figure.subplots()
    for split in ("train", "validation"):
        curve = run.curve(split, "nll")
        axes.plot([step for step, _ in curve], [nll for _, nll in curve], label=split)
    axes.set(xlabel="step (parameter updates)", ylabel="NLL, nats per token", ylim=(0, None))
    axes.legend()
    return figure
