"""Print the log-probability of the target of each pair, given its source.

The format jsonl adds the log-probability of each token.
"""

from typing import Any

from jformer import cli
from jformer.components import find
from jformer.console import say
from jformer.data.corpora import read


def add_flags(parser: cli.Parser) -> None:
    parser.add_path("--data", "PAIRS", cli.PAIRS, required=True)
    parser.add_path("--output", "FILE", cli.OUTPUT)
    parser.add_argument("--format", default="text", choices=cli.FORMATS, help="default: text")
    cli.add_run_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)

    from jformer.stream import open_output, score_stream
    from jformer.training.loss import perplexity

    scorer = find("config.data.scorer", "scorer", config.data.scorer)
    corpus = scorer.open_pairs(args.data, config)
    cli.check_output(args.output, corpus.files)
    for _ in read(corpus):
        pass  # raises for a bad line before any work
    run = cli.open_run(args, config)
    with open_output(args.output) as (output, _):
        total, tokens = score_stream(run, corpus, output, args.format)
    if tokens:
        mean = perplexity(-total, tokens)
        say(f"log-probability {total:.2f} of {tokens:,} tokens, perplexity {mean:.3f}")
    return 0
