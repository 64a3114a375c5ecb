"""Train, translate and score Transformers.

    python -m jformer.main [train] --config=configs/tiny.py[:DATASET] [--workdir=DIR]
                                     [--profile=STEP:COUNT]
    python -m jformer.main translate --workdir=DIR [--input=FILE] [--output=FILE] [--prefix=FILE]
                                     [--format=text|jsonl|tsv] [MODEL]
    python -m jformer.main score     --workdir=DIR --data=PAIRS [--output=FILE]
                                     [--format=text|jsonl|tsv] [MODEL]
    python -m jformer.main evaluate  --workdir=DIR [--data=PAIRS] [--references=FILE,FILE]
                                     [--against=RUN[@C]] [MODEL]
    python -m jformer.main data      --config=configs/tiny.py[:DATASET] [--format=json]
    python -m jformer.main summary   --config=configs/base.py [--source_length=32]
                                     [--target_length=32] [--memory=GB] [--plot=FILE]
    python -m jformer.main report DIR... [--output=report.html]

    train      train, then score; the same command again resumes, or prints the scores of a
               complete run; --profile=STEP:COUNT writes JAX's trace of some steps
    translate  one line out for each line in, by standard input and output if no file is named; a
               stopped command that writes a --output goes on where it was; outputs begin with the
               lines of --prefix; jsonl and tsv have n_best, scores, tokens and alignments
    score      log-probability of each target of PAIRS, which is PREFIX for PREFIX.en and PREFIX.de
               (or .gz), FILE.tsv or FILE.parquet; jsonl and tsv have that of each token, too
    evaluate   score the run's validation and test splits, or PAIRS, which here can also be
               sacrebleu:NAME; --references are more of them, --against is compared with the run by
               the paired bootstrap; prints a table, and all as JSON in the last line
    data       a look at the corpus before training: pairs, what is skipped and why, lengths,
               vocabulary, padding, odd characters, examples as the model sees them
    summary    parameters, multiply-adds and FLOPs by module, and the memory of a train step (which
               is compiled for it), with the largest train.batch_tokens that --memory holds;
               --plot draws the learning rate of every step into a .png or .svg file
    report     runs side by side, also while they are going on: a row for what makes each differ,
               with scores, parameters, FLOPs and time; DIR is a run or a folder of runs; --output
               is a page with the table and the learning curves

MODEL is --checkpoint=C, which is average (the default), last, best, a step, or steps to average as
1000,2000; and --ensemble=RUN[@C],RUN[@C] with runs whose probabilities are averaged with it.

Results go to standard output, everything else to standard error, both as UTF-8. Exit status: 0
done, 2 the user's mistake in one line, 1 a failure of ours or of the run. A run in training that is
stopped saves all it has and ends with 129 (SIGHUP), 130 (Ctrl-C) or 143 (SIGTERM). 141: who reads
the output has gone, as head does; nothing more is saved, and training goes on from its last
checkpoint.

DATASET is phrases, multi30k, iwslt14, iwslt17, wmt14, wmt16, tatoeba, hub or files. --debug shows
the traceback of a mistake.
"""
# Flags and sub-commands only. Modules that import JAX are imported where they are used, so that
# --help and a mistyped flag answer at once.

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jformer.command_line import (
    REQUIRED,
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
from jformer.schema import help_text, nearest

EXAMPLES_SHOWN = 5
FORMATS = ("text", "jsonl", "tsv")
OF_MODEL = {"checkpoint": "average", "ensemble": ""}  # flags of the commands that open a run


def main(argv: list[str]) -> int:
    """Run one command line, program name first, and return its exit status."""
    arguments = argv[1:]
    return exit_status("jformer", lambda: command_of(arguments)(arguments), "--debug" in argv)


def run_main() -> None:
    """Run the console script `jformer`."""
    use_huge_pages()
    sys.exit(main(sys.argv))


def command_of(arguments: list[str]) -> Callable[[list[str]], int]:
    """Return the command, and remove its name from the arguments."""
    commands = {
        "train": train_command,
        "translate": translate_command,
        "score": score_command,
        "evaluate": evaluate_command,
        "data": data_command,
        "summary": summary_command,
        "report": report_command,
    }
    if {"--help", "-h"} & {*arguments}:
        return help_command
    if not arguments or arguments[0].startswith("-"):
        return train_command
    name = arguments.pop(0)
    if name not in commands:
        raise UserError(f"no command {name!r}{nearest(name, commands)}")
    return commands[name]


def help_command(arguments: list[str]) -> int:
    keys = help_text(Config())
    print(f"{__doc__}\nConfig keys, with the paper's base model as default:\n{keys}")
    return 0


def train_command(arguments: list[str]) -> int:
    flag, config = parse(arguments, {"workdir": "", "profile": ""})

    from jformer.results import as_test_set, known_scores, read_results
    from jformer.run import load
    from jformer.training.processes import is_first, join
    from jformer.training.setup import check_same_config
    from jformer.training.train import train

    data = config.data
    languages = f"{data.source_language}-{data.target_language}"
    workdir = Path(flag.workdir or f"runs/{config.name}-{data.name}-{languages}")
    check_same_config(config, workdir)
    read_results(workdir)  # raises for damaged ones before any work
    join(config.parallel)
    if is_first():
        say(f"workdir     {workdir}")
        say(f"config      {config.name}, {config.train.steps:,} steps on {data.name}, {languages}")
    splits = train(config, workdir, flag.profile)
    if not is_first():
        return 0
    run = load(workdir).with_decode(**dataclasses.asdict(config.decode))
    tests = {name: as_test_set(split) for name, split in splits.items()}
    known = known_scores(run, tests)
    if tests.keys() <= known.keys():
        way_on = "steps=MORE goes on"
        if run.step < config.train.steps:
            way_on = "patience=0 goes on"
        elif config.optimizer.depends_on_train_steps:
            way_on = f"init_from={workdir} begins another one, with another --workdir"
        say(f"the run is complete at step {run.step}; --config.train.{way_on}")
        scores = known
    else:
        scores = score_all(run, tests)
    print(json.dumps(scores))
    return 0


def evaluate_command(arguments: list[str]) -> int:
    known = {"workdir": REQUIRED, "data": "", "references": "", "against": "", **OF_MODEL}
    flag, config = parse(arguments, known, of_run=True)
    if flag.references and not flag.data:
        raise UserError(f"--references={flag.references}: is for --data=PREFIX")

    from jformer.evaluation.table import table
    from jformer.results import named_test_set, own_test_sets, read_results
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
    flag, config = parse(arguments, {"format": "text"})
    one_of("format", flag.format, "text", "json")

    from jformer.data.pipeline import open_data
    from jformer.data.stats import corpus_statistics, page

    facts = corpus_statistics(config, *open_data(config))
    print(json.dumps(facts) if flag.format == "json" else page(facts))
    return 0


def summary_command(arguments: list[str]) -> int:
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


def score_all(run: Any, tests: dict[str, Any], against: Any = None) -> dict[str, Any]:
    """Translate and score each test set, print some translations, and store the scores."""
    from jformer.results import keep_scores, score_test_set

    scores = {}
    for name, test in tests.items():
        number = len(test.sources)
        say(f"\nscoring {name}: {number:,} pairs ...")
        scores[name], outputs = score_test_set(run, test, against)
        say(f"{name}: {number:,} pairs, BLEU {scores[name]['bleu']:.2f}")
        for i in range(0, number, -(-number // EXAMPLES_SHOWN)):
            say(f"  source     {test.sources[i]}")
            say(f"  reference  {test.references[0][i]}")
            say(f"  output     {outputs[i]}")
        keep_scores(run, name, scores[name])
    return scores


if __name__ == "__main__":
    run_main()
