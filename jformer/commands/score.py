"""Print the log-probability of the target of each pair, given its source.

    score --workdir=DIR --data=PAIRS [--output=FILE] [--format=text|jsonl|tsv] [MODEL]

jsonl and tsv have that of each token, too.
"""

from jformer.command_line import REQUIRED, one_of, parse
from jformer.commands.model_flags import FORMATS, OF_MODEL, open_run
from jformer.components import find
from jformer.console import say
from jformer.output import check_output, fingerprints, open_output


def main(arguments: list[str]) -> int:
    known = {"workdir": REQUIRED, "data": REQUIRED, "output": "", "format": "text"}
    flag, config = parse(arguments, {**known, **OF_MODEL}, of_run=True)
    one_of("format", flag.format, *FORMATS)

    from jformer.stream import score_stream
    from jformer.training.loss import perplexity

    scorer = find("config.data.scorer", "scorer", config.data.scorer)
    corpus = scorer.open_pairs(flag.data, config)
    check_output(flag.output, map(str, corpus.files))
    fingerprints({str(path): str(path) for path in corpus.files}, config.data.bad_lines)
    run = open_run(flag, config)
    with open_output(flag.output, {}, "") as output:
        total, tokens = score_stream(run, corpus, output, flag.format)
    mean = perplexity(-total, tokens)
    say(f"log-probability {total:.2f} of {tokens:,} tokens, perplexity {mean:.3f}")
    return 0
