"""Translate each line of the input into one line of the output.

With --input and --output, rerun a stopped command to resume after the last whole line. The format
jsonl has config.decode.n_best outputs per line, with scores, tokens and alignments. With
config.decode.choose=mbr, each line has one output: the best of n_best candidates.
"""

import sys
from pathlib import Path
from typing import Any

from jformer import cli
from jformer.data.corpora import read_lines, require_file
from jformer.errors import UserError
from jformer.files import sha256_of


def add_flags(parser: cli.Parser) -> None:
    parser.add_path("--input", "FILE", "text to translate (default: standard input)")
    parser.add_path("--output", "FILE", cli.OUTPUT)
    parser.add_path("--prefix", "FILE", "beginnings of the outputs, one per input line")
    parser.add_argument("--format", default="text", choices=cli.FORMATS, help="default: text")
    cli.add_run_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)
    if args.format == "text" and config.decode.n_best > 1 and config.decode.choose == "score":
        raise UserError("--format=text: has one output per line; set jsonl for n_best")
    # A pipe as --input could be read only once.
    files = [require_file(Path(name)) for name in (args.input, args.prefix) if name]
    cli.check_output(args.output, files)

    from jformer.results import made_by
    from jformer.stream import open_output, parallel, translate_stream

    total = None
    if args.input:  # a bad or a missing line is an error before any work
        total = sum(1 for _ in parallel(open_texts(args)))
    run, job = cli.open_run(args, config), None
    if args.input and args.output:
        inputs = [sha256_of(file) for file in files]
        job = {"inputs": inputs, "workdir": args.workdir, "format": args.format, **made_by(run)}
    with open_output(args.output, job) as (output, done):
        translate_stream(run, open_texts(args), output, args.format, total, done)
    return 0


def open_texts(args: Any) -> list[tuple[str, Any]]:
    """Return the name and the lines of the input and, if given, of the prefixes."""
    texts = [(name, read_lines(Path(name))) for name in (args.input, args.prefix) if name]
    return texts if args.input else [("standard input", sys.stdin.buffer), *texts]
