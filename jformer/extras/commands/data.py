"""Inspect a corpus before training.

Shows pairs, skipped lines with reasons, duplicates and other suspicious pairs, test sentences that
are also in the training text, lengths, vocabulary, padding, odd characters and examples.
"""

import json
from typing import Any

from jformer import cli


def add_flags(parser: cli.Parser) -> None:
    parser.add_argument("--format", default="text", choices=("text", "json"), help="default: text")
    cli.add_config_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)

    from jformer.data.datasets import open_data
    from jformer.extras.stats import corpus_statistics, page

    facts = corpus_statistics(config, *open_data(config))
    print(json.dumps(facts) if args.format == "json" else page(facts))
    return 0
