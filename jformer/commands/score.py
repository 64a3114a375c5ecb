"""Print the log-probability of the target of each pair, given its source.

    score --workdir=DIR --data=PAIRS [--output=FILE] [--format=text|jsonl|tsv] [MODEL]

jsonl and tsv have that of each token, too. A command with --output resumes if it was stopped;
the total is then that of the pairs scored after the stop.
"""

from jformer.command_line import REQUIRED, one_of, parse
from jformer.commands.model_flags import FORMATS, OF_MODEL, open_run
from jformer.console import say
from jformer.data.pipeline import open_pairs
from jformer.output import check_output, open_output


def main(arguments: list[str]) -> int:
    known = {"workdir": REQUIRED, "data": REQUIRED, "output": "", "format": "text"}
    flag, config = parse(arguments, {**known, **OF_MODEL}, of_run=True)
    one_of("format", flag.format, *FORMATS)

    from jformer.results import job_of
    from jformer.stream import check_pairs, score_stream
    from jformer.training.loss import perplexity

    corpus = open_pairs(flag.data, config.data)
    files = {str(path): str(path) for path in corpus.files}
    check_output(flag.output, files)
    check_pairs(corpus, config.data.bad_lines)
    run = open_run(flag, config)
    with open_output(flag.output, job_of(run, flag.format, files), flag.format) as output:
        total, tokens = score_stream(run, corpus, output, flag.format)
    before = f"after line {output.done:,}: " if output.done else ""
    if tokens:
        mean = perplexity(-total, tokens)
        say(f"{before}log-probability {total:.2f} of {tokens:,} tokens, perplexity {mean:.3f}")
    return 0
