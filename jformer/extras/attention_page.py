"""Show the attention of a run for one pair of sentences, on a page for the browser.

Without --target, shows and prints the run's translation. For an ensemble, shows the first run.
"""

import base64
import importlib.resources
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jformer import cli

if TYPE_CHECKING:  # importing it takes a second
    from jformer.decoding.scoring import Attention

KINDS = (
    ("encoder", "self_attention"),
    ("decoder", "self_attention"),
    ("decoder", "cross_attention"),
)


def add_flags(parser: cli.Parser) -> None:
    add, text = parser.add_argument, "the target sentence (default: the run's translation)"
    add("--source", required=True, metavar="TEXT", help="the source sentence")
    add("--target", default="", metavar="TEXT", help=text)
    parser.add_path("--output", "FILE", "page to write, such as attention.html", required=True)
    cli.add_run_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)
    run = cli.open_run(args, config)
    target = args.target or run.translate([args.source])[0]
    about = {"run": f"{run.workdir}, step {run.step:,}", "source": args.source}
    about["target" if args.target else "translation"] = target
    text = page(run.attention(args.source, target), about)
    Path(args.output).write_text(text, encoding="utf-8")
    if not args.target:
        print(target)
    return 0


def page(attention: "Attention", about: Mapping[str, str] | None = None) -> str:
    """Return the weights of one pair as a self-contained HTML page: attention.html with its data.

    `about` has the lines of the page's header by name, such as the source.
    """
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
    # In bfloat16 a weight may be a little more than 1.
    integers = (weights_HQM.clip(0, 1) * 65_535).round().astype("<u2")
    return base64.b64encode(integers.tobytes()).decode()


def shown(token: str) -> str:
    """Return a token with a visible space and codes for invisible characters."""
    seen = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in token)
    return "".join(seen).replace(" ", "␣")
