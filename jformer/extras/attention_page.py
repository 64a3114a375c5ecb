"""One pair's attention weights as one self-contained HTML page: attention.html with its data."""

import base64
import importlib.resources
import json
from collections.abc import Mapping

import numpy as np

from jformer.decoding.scoring import Attention
from jformer.errors import RunError, UserError

MAX_WEIGHTS = 50_000_000  # of a page, at three bytes per weight
KINDS = (
    ("encoder", "self_attention"),
    ("decoder", "self_attention"),
    ("decoder", "cross_attention"),
)


def page(attention: Attention, about: Mapping[str, str] | None = None) -> str:
    """Return the page; `about` has the lines of its header by name, such as the source."""
    count = sum(weights.size for weights in attention.weights.values())
    if count > MAX_WEIGHTS:
        raise UserError(f"{count:,} weights are too many for a page; shorten the texts")
    content = {
        "about": {**(about or {})},
        "source": [*map(shown, attention.source_tokens[:-1])],  # the page adds EOS and BOS
        "target": [*map(shown, attention.target_tokens[1:])],
        "layers": {
            f"{stack} {kind}": [encoded(weights) for weights in attention.layers(stack, kind)]
            for stack, kind in KINDS
        },
    }
    # "<" occurs only within strings of the JSON; in a page it could end the script.
    data = json.dumps(content).replace("<", "\\u003c")
    template = importlib.resources.files("jformer.extras") / "attention.html"
    return template.read_text(encoding="utf-8").replace("{data}", data)


def encoded(weights_HQM: np.ndarray) -> str:
    """Return weights as base64 of 16-bit integers; the largest integer is a weight of 1."""
    if not np.isfinite(weights_HQM).all():
        raise RunError("the attention weights are not finite; try another checkpoint")
    # In bfloat16 a weight may be a little more than 1.
    integers = (weights_HQM.clip(0, 1) * 65_535).round().astype("<u2")
    return base64.b64encode(integers.tobytes()).decode()


def shown(token: str) -> str:
    """Return a token with a visible space and codes for invisible characters."""
    seen = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in token)
    return "".join(seen).replace(" ", "␣")
