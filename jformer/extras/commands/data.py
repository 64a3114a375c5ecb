"""Look at a corpus before training on it.

    data --config=CONFIG[:DATASET] [--format=text|json]

Shows pairs, what is skipped and why, duplicates and other suspicious pairs, test sentences that are
in the training text, lengths, vocabulary, padding, odd characters, examples.
"""

import json

from jformer.command_line import one_of, parse


def main(arguments: list[str]) -> int:
    flag, config = parse(arguments, {"format": "text"})
    one_of("format", flag.format, "text", "json")

    from jformer.data.pipeline import open_data
    from jformer.extras.stats import corpus_statistics, page

    facts = corpus_statistics(config, *open_data(config))
    print(json.dumps(facts) if flag.format == "json" else page(facts))
    return 0
