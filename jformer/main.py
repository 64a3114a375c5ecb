"""Train, translate and score Transformers.

    python -m jformer.main [COMMAND] [FLAGS]        the same as: jformer [COMMAND] [FLAGS]

COMMAND is train if none is named. `COMMAND --help` shows one command, --version the version, and
--debug the traceback of a mistake.

CONFIG is the path of a config file, or the name of one of ours, as tiny; CONFIG:DATASET chooses
the corpus: phrases, multi30k, iwslt14, iwslt17, wmt14, wmt16, tatoeba, hub or files.

MODEL is --checkpoint=C, which is average (the default), last, best, a step, or steps to average as
1000,2000; and --ensemble=RUN[@C],RUN[@C] with runs whose probabilities are averaged with it.

PAIRS is PREFIX for PREFIX.en and PREFIX.de (or .gz), FILE.tsv or FILE.parquet.

Results go to standard output, everything else to standard error, both as UTF-8. Exit status: 0
done, 2 the user's mistake in one line, 1 a failure of ours or of the run. A run in training that is
stopped saves all it has and ends with 129 (SIGHUP), 130 (Ctrl-C) or 143 (SIGTERM). 141: who reads
the output has gone, as head does; nothing more is saved, and training goes on from its last
checkpoint.
"""
# Flags and sub-commands only. Modules that import JAX are imported where they are used, so that
# --help and a mistyped flag answer at once.

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from jformer.command_line import (
    REQUIRED,
    command_of,
    exit_status,
    flags_and_folders,
    one_of,
    parse,
    positive,
    use_huge_pages,
)
from jformer.config import Config
from jformer.console import say
from jformer.data.corpora import open_corpus, texts
from jformer.errors import UserError
from jformer.files import check_writable, write_file
from jformer.output import check_output, fingerprints, open_output, standard_input
from jformer.rundir import default_workdir

FORMATS = ("text", "jsonl", "tsv")
OF_MODEL = {"checkpoint": "average", "ensemble": ""}  # flags of the commands that open a run


def main(argv: list[str]) -> int:
    """Run one command line, program name first, and return its exit status."""
    arguments = argv[1:]

    def run() -> int:
        return command_of(arguments, __doc__, COMMANDS)(arguments)

    return exit_status("jformer", run, "--debug" in argv)


def run_main() -> None:
    """Run the console script `jformer`."""
    use_huge_pages()
    sys.exit(main(sys.argv))


def train_command(arguments: list[str]) -> int:
    """Train a model, then score it.

        train --config=CONFIG[:DATASET] [--workdir=DIR] [--profile=STEP:COUNT]

    The same command again resumes the run, or prints the scores of a complete one. --profile writes
    JAX's trace of some steps.
    """
    flag, config = parse(arguments, {"workdir": "", "profile": ""})

    from jformer.results import as_test_set, known_scores, read_results, score_all
    from jformer.run import load
    from jformer.training.processes import is_first, join
    from jformer.training.setup import check_same_config, describe_complete
    from jformer.training.train import train

    workdir = Path(flag.workdir or default_workdir(config))
    check_same_config(config, workdir)
    read_results(workdir)  # raises for damaged ones before any work
    join(config.parallel)
    splits = train(config, workdir, flag.profile)
    if not is_first():
        return 0
    run = load(workdir).with_decode(**dataclasses.asdict(config.decode))
    tests = {name: as_test_set(split) for name, split in splits.items()}
    known = known_scores(run, tests)
    if tests.keys() <= known.keys():
        say(describe_complete(config, run.step, workdir))
        scores = known
    else:
        scores = score_all(run, tests)
    print(json.dumps(scores))
    return 0


def evaluate_command(arguments: list[str]) -> int:
    """Score a run on its validation and test splits, or on other pairs.

        evaluate --workdir=DIR [--data=PAIRS] [--references=FILE,FILE] [--against=RUN[@C]] [MODEL]

    PAIRS can also be sacrebleu:NAME here; --references are more of them, and --against is compared
    with the run by the paired bootstrap. Prints a table, and all as JSON in the last line.
    """
    known = {"workdir": REQUIRED, "data": "", "references": "", "against": "", **OF_MODEL}
    flag, config = parse(arguments, known, of_run=True)
    if flag.references and not flag.data:
        raise UserError(f"--references={flag.references}: is for --data=PREFIX")

    from jformer.evaluation.table import table
    from jformer.results import named_test_set, own_test_sets, read_results, score_all
    from jformer.run import load
    from jformer.training.restore import run_and_checkpoint

    read_results(Path(flag.workdir))  # raises for damaged ones before any work
    if flag.data:
        tests = {flag.data: named_test_set(flag.data, flag.references, config)}
    else:
        tests = own_test_sets(config)
    run = open_run(flag, config)
    against = load(*run_and_checkpoint(flag.against)) if flag.against else None
    scores = score_all(run, tests, against)
    print(table(scores))
    print(json.dumps(scores))
    return 0


def translate_command(arguments: list[str]) -> int:
    """Translate each line of the input into one line of the output.

        translate --workdir=DIR [--input=FILE] [--output=FILE] [--prefix=FILE]
                  [--format=text|jsonl|tsv] [MODEL]

    Reads standard input and writes standard output where no file is named. A stopped command with
    --output goes on where it was. Outputs begin with the lines of --prefix; jsonl and tsv have more
    of them, by config.decode.n_best, with scores, tokens and alignments.
    """
    known = {"workdir": REQUIRED, "input": "", "prefix": "", "output": "", "format": "text"}
    flag, config = parse(arguments, {**known, **OF_MODEL}, of_run=True)
    one_of("format", flag.format, *FORMATS)
    if flag.format == "text" and config.decode.n_best > 1:
        raise UserError("--format=text: has one output a line; take jsonl or tsv for n_best")

    check_output(flag.output, [flag.input, flag.prefix])
    files = fingerprints({"input": flag.input, "prefix": flag.prefix}, config.data.bad_lines)

    from jformer.results import job_of
    from jformer.stream import translate_stream

    run = open_run(flag, config)
    lines = texts(Path(flag.input)) if flag.input else standard_input()
    prefixes = texts(Path(flag.prefix)) if flag.prefix else None
    with open_output(flag.output, job_of(run, flag.format, files), flag.format) as output:
        place, total = flag.input or "standard input", files.get("input", {}).get("lines")
        translate_stream(run, lines, place, prefixes, output, flag.format, total)
    return 0


def score_command(arguments: list[str]) -> int:
    """Print the log-probability of the target of each pair, given its source.

        score --workdir=DIR --data=PAIRS [--output=FILE] [--format=text|jsonl|tsv] [MODEL]

    jsonl and tsv have that of each token, too.
    """
    known = {"workdir": REQUIRED, "data": REQUIRED, "output": "", "format": "text"}
    flag, config = parse(arguments, {**known, **OF_MODEL}, of_run=True)
    one_of("format", flag.format, *FORMATS)

    from jformer.stream import score_stream
    from jformer.training.loss import perplexity

    corpus = open_corpus(flag.data, config.data.source_language, config.data.target_language)
    check_output(flag.output, map(str, corpus.files))
    fingerprints({str(path): str(path) for path in corpus.files}, config.data.bad_lines)
    run = open_run(flag, config)
    with open_output(flag.output, {}, "") as output:
        total, tokens = score_stream(run, corpus, output, flag.format)
    mean = perplexity(-total, tokens)
    say(f"log-probability {total:.2f} of {tokens:,} tokens, perplexity {mean:.3f}")
    return 0


def data_command(arguments: list[str]) -> int:
    """Look at a corpus before training on it.

        data --config=CONFIG[:DATASET] [--format=text|json]

    Shows pairs, what is skipped and why, lengths, vocabulary, padding, odd characters, examples.
    """
    flag, config = parse(arguments, {"format": "text"})
    one_of("format", flag.format, "text", "json")

    from jformer.data.pipeline import open_data
    from jformer.data.stats import corpus_statistics, page

    facts = corpus_statistics(config, *open_data(config))
    print(json.dumps(facts) if flag.format == "json" else page(facts))
    return 0


def summary_command(arguments: list[str]) -> int:
    """Count parameters, multiply-adds and FLOPs by module, and the memory of a train step.

        summary --config=CONFIG[:DATASET] [--source_length=32] [--target_length=32] [--memory=GB]
                [--plot=FILE]

    The train step is compiled for its memory. --memory asks for the largest train.batch_tokens that
    fits; --plot draws the learning rate of every step into a .png or .svg file.
    """
    lengths = {"source_length": "32", "target_length": "32"}
    flag, config = parse(arguments, {**lengths, "memory": "", "plot": ""})
    S, T = (positive(name, flag[name].value, int) for name in lengths)
    gigabytes = positive("memory", flag.memory, float) if flag.memory else 0.0

    from jformer.training.cost import summary
    from jformer.views.schedule import write_schedule

    if flag.plot:
        write_schedule(config, flag.plot)
    for line in summary(config, S, T, gigabytes):
        print(line)
    return 0


def report_command(arguments: list[str]) -> int:
    """Compare runs side by side, also while they are going on.

        report DIR... [--output=report.html]

    DIR is a run or a folder of runs. Has a row for what makes each differ, with scores, parameters,
    FLOPs and time; --output is a page with the table and the learning curves.
    """
    flag, folders = flags_and_folders(arguments, {"output": ""})
    if flag.output:
        check_writable("output", flag.output)

    from jformer.views.page import page
    from jformer.views.report import find_runs, markdown, read_rows

    rows = read_rows(find_runs(folders))
    if not rows:
        raise UserError("none of the runs can be read")
    if flag.output:
        write_file("output", flag.output, page(rows).encode())
    print(markdown(rows))
    return 0


def open_run(flag: Any, config: Config) -> Any:
    """Open the run of --workdir with those of --ensemble, and with `config` in place of its own."""
    from jformer.run import load

    run = load(flag.workdir, flag.checkpoint, [name for name in flag.ensemble.split(",") if name])
    return dataclasses.replace(run, config=config)


def doctor_command(arguments: list[str]) -> int:
    """Show versions, devices and optional packages, and how to get what is missing.

    doctor
    """
    if arguments:
        raise UserError(f"{arguments[0]!r}: doctor takes no flags")

    from jformer.doctor import findings

    print("\n".join(findings()))
    return 0


COMMANDS = {
    "train": train_command,
    "translate": translate_command,
    "score": score_command,
    "evaluate": evaluate_command,
    "data": data_command,
    "summary": summary_command,
    "report": report_command,
    "doctor": doctor_command,
}


if __name__ == "__main__":
    run_main()
