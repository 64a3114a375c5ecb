"""Translate each line of the input into one line of the output.

With --output, rerun a stopped command to resume after the last whole line. The format jsonl has
config.decode.n_best outputs per line, with scores, tokens and alignments. With
config.decode.choose=mbr, each line has one output: the best of n_best candidates.
"""

import sys
from pathlib import Path
from typing import Any

from jformer import cli
from jformer.console import say
from jformer.data.corpora import read_lines, without_ends
from jformer.errors import UserError
from jformer.files import check_output


def add_flags(parser: cli.Parser) -> None:
    parser.add_path("--input", "FILE", "text to translate (default: standard input)")
    parser.add_path("--output", "FILE", cli.OUTPUT)
    parser.add_path("--prefix", "FILE", "beginnings of the outputs, one per input line")
    parser.add_argument("--format", default="text", choices=cli.FORMATS, help="default: text")
    cli.add_run_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)
    several = config.decode.n_best > 1 and config.decode.choose == "score"
    if args.format == "text" and several:
        raise UserError("--format=text: has one output per line; set jsonl for n_best")

    files = {"input": args.input, "prefix": args.prefix}
    check_output(args.output, files.values())

    from jformer.results import job_of
    from jformer.stream import check_lines, open_output, translate_stream

    total = check_lines([args.input, args.prefix], config.data.bad_lines)
    run = cli.open_run(args, config)
    job = job_of(run, args.format, files) if args.input else {}
    lines = read_lines(Path(args.input)) if args.input else without_ends(sys.stdin.buffer)
    prefixes = read_lines(Path(args.prefix)) if args.prefix else None
    with open_output(args.output, job) as output:
        name = args.input or "standard input"
        if sys.stderr.isatty():  # a pipeline stays silent
            say(f"translating {name}; the first lines take longer ...")
        translate_stream(run, lines, name, prefixes, output, args.format, total)
    return 0
