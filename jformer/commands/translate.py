"""Translate each line of the input into one line of the output.

    translate --workdir=DIR [--input=FILE] [--output=FILE] [--prefix=FILE]
              [--terms=FILE] [--format=text|jsonl|tsv] [MODEL]

Reads standard input and writes standard output if no file is named. A command with --input and
--output resumes if it was stopped. Outputs begin with the lines of --prefix; jsonl and tsv have
more of them, by config.decode.n_best, with scores, tokens and alignments. With
config.decode.choose=mbr there is one output a line, chosen from n_best, or the consensus of n_best
trees. --terms has lines of source TAB target: where an input has the source's words, its output
contains the target.
"""

import sys
from pathlib import Path

from jformer.command_line import REQUIRED, one_of, parse
from jformer.commands.model_flags import FORMATS, OF_MODEL, open_run
from jformer.console import say
from jformer.data.corpora import texts
from jformer.errors import UserError
from jformer.output import check_output, open_output, standard_input


def main(arguments: list[str]) -> int:
    named = {"input": "", "prefix": "", "terms": "", "output": "", "format": "text"}
    flag, config = parse(arguments, {"workdir": REQUIRED, **named, **OF_MODEL}, of_run=True)
    one_of("format", flag.format, *FORMATS)
    several = config.decode.n_best > 1 and config.decode.choose == "score"
    if flag.format == "text" and several:
        raise UserError("--format=text: has one output a line; take jsonl or tsv for n_best")
    files = {"input": flag.input, "prefix": flag.prefix, "terms": flag.terms}
    check_output(flag.output, files.values())

    from jformer.extras.lexicon import read_terms
    from jformer.results import job_of
    from jformer.stream import check_lines, translate_stream

    total = check_lines([flag.input, flag.prefix], config.data.bad_lines)
    terms = read_terms(Path(flag.terms)) if flag.terms else []
    if terms and config.decode.search != "beam":
        raise UserError(f"--terms={flag.terms}: needs config.decode.search=beam")
    run = open_run(flag, config)
    job = job_of(run, flag.format, files) if flag.input else {}
    lines = texts(Path(flag.input)) if flag.input else standard_input()
    prefixes = texts(Path(flag.prefix)) if flag.prefix else None
    with open_output(flag.output, job, flag.format) as output:
        place = flag.input or "standard input"
        if sys.stderr.isatty():  # a pipeline stays silent
            say(f"translating {place}; the first lines take longer ...")
        translate_stream(run, lines, place, prefixes, output, flag.format, total, terms)
    return 0
