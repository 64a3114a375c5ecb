"""Translate each line of the input into one line of the output.

    translate --workdir=DIR [--input=FILE] [--output=FILE] [--prefix=FILE]
              [--terms=FILE] [--format=text|jsonl|tsv]
              [--engine=jformer|ctranslate2|ctranslate2:int8] [MODEL]

Reads standard input and writes standard output where no file is named. A stopped command with
--output goes on where it was. Outputs begin with the lines of --prefix; jsonl and tsv have more
of them, by config.decode.n_best, with scores, tokens and alignments. With config.decode.choose=mbr
there is one output a line, chosen from n_best, or the consensus of n_best trees. --terms has lines
of source TAB target: where an input has the source's words, its output contains the target.
--engine=ctranslate2 searches with CTranslate2, and with weights in 8 bits where it ends in :int8.
"""

import sys
from pathlib import Path

from jformer.command_line import REQUIRED, one_of, parse
from jformer.commands.model_flags import FORMATS, OF_MODEL, open_run
from jformer.components import name_of
from jformer.console import say
from jformer.data.corpora import texts
from jformer.errors import UserError
from jformer.output import check_output, fingerprints, open_output, standard_input

ENGINES = ("jformer", "ctranslate2", "ctranslate2:int8")


def main(arguments: list[str]) -> int:
    known = {
        "workdir": REQUIRED,
        "input": "",
        "prefix": "",
        "terms": "",
        "output": "",
        "format": "text",
        "engine": ENGINES[0],
    }
    flag, config = parse(arguments, {**known, **OF_MODEL}, of_run=True)
    one_of("format", flag.format, *FORMATS)
    one_of("engine", flag.engine, *ENGINES)
    several = config.decode.n_best > 1 and config.decode.choose == "score"
    if flag.format == "text" and several:
        raise UserError("--format=text: has one output a line; take jsonl or tsv for n_best")
    for name in ("ensemble", "prefix", "terms"):
        if flag[name].value and flag.engine != ENGINES[0]:
            raise UserError(f"--{name}: is not for --engine={flag.engine}; leave one of them out")

    check_output(flag.output, [flag.input, flag.prefix, flag.terms])
    files = fingerprints({"input": flag.input, "prefix": flag.prefix}, config.data.bad_lines)
    files |= fingerprints({"terms": flag.terms}, config.data.bad_lines)

    from jformer.extras.lexicon import read_terms
    from jformer.results import job_of
    from jformer.stream import translate_stream

    terms = read_terms(Path(flag.terms)) if flag.terms else []
    if terms and name_of(config.decode.search) != "beam":
        raise UserError(f"--terms={flag.terms}: needs config.decode.search=beam")
    run = open_run(flag, config)
    job = job_of(run, flag.format, files)
    if flag.engine != ENGINES[0]:
        from jformer.extras.interop.engine import with_engine

        run = with_engine(run, flag.engine)
        job = job and {**job, "engine": flag.engine}
    lines = texts(Path(flag.input)) if flag.input else standard_input()
    prefixes = texts(Path(flag.prefix)) if flag.prefix else None
    with open_output(flag.output, job, flag.format) as output:
        place, total = flag.input or "standard input", files.get("input", {}).get("lines")
        if sys.stderr.isatty():  # a pipeline stays silent
            say(f"translating {place}; the first lines take longer ...")
        translate_stream(run, lines, place, prefixes, output, flag.format, total, terms)
    return 0
