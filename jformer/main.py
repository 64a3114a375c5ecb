"""Train, translate and score Transformers.

    python -m jformer.main [train] --config=configs/tiny.py[:DATASET] [--workdir=DIR]
                                     [--profile=STEP:COUNT]
    python -m jformer.main translate --workdir=DIR [--input=FILE] [--output=FILE] [--checkpoint=C]
    python -m jformer.main evaluate  --workdir=DIR [--data=PREFIX] [--checkpoint=C]
    python -m jformer.main data      --config=configs/tiny.py[:DATASET] [--format=json]
    python -m jformer.main summary   --config=configs/base.py [--source_length=32]
                                     [--target_length=32] [--memory=GB] [--plot=FILE]

    train      train, then score; the same command again resumes, or prints the scores of a
               complete run; --profile=STEP:COUNT writes JAX's trace of some steps
    translate  one line out for each line in; standard input and output by default
    evaluate   score the run's validation and test splits, or PREFIX.en and PREFIX.de (or .gz);
               C is average (the default), last, best, a step, or steps to average as 1000,2000
    data       a look at the corpus before training: pairs, what is skipped and why, lengths,
               vocabulary, padding, odd characters, examples as the model sees them
    summary    parameters, multiply-adds and FLOPs by module, and the memory of a train step (which
               is compiled for it), with the largest train.batch_tokens that --memory holds;
               --plot draws the learning rate of every step into a .png or .svg file

Results go to standard output, everything else to standard error. Exit status: 0 done, 2 the
user's mistake in one line, 1 a failure of ours or of the run, 130 and 143 stopped by Ctrl-C and
SIGTERM with all saved. DATASET is phrases, multi30k, iwslt14, iwslt17, wmt14, wmt16, tatoeba, hub
or files. --debug shows the traceback of a mistake.
"""
# Flags and sub-commands only: no other module reads a flag. Whatever imports JAX is imported where
# it is used, so that --help and a mistyped flag answer at once.

import dataclasses
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from jformer.command_line import REQUIRED, parse, positive
from jformer.config import Config, UserError
from jformer.keys import RunError, Stopped, help_text, nearest

EXAMPLES_SHOWN = 5


def main(argv: list[str]) -> int:
    """Run one command line, program name first, and return its exit status."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, force=True)
    logging.getLogger("jformer").setLevel(logging.INFO)
    if "--help" in argv or "-h" in argv:
        keys = help_text(Config())
        print(f"{__doc__}\nConfig keys, with the paper's base model as default:\n{keys}")
        return 0
    try:
        command, arguments = split_command(argv[1:])
        return command(arguments)
    except (UserError, flags.Error) as error:
        if "--debug" in argv:
            traceback.print_exc()
        # The last line: ml_collections puts a traceback before it, where a config file fails.
        print(f"jformer: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        return 2
    except (RunError, OSError) as error:
        if "--debug" in argv:
            traceback.print_exc()
        print(f"jformer: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(f"jformer: {stopped}; the same command goes on", file=sys.stderr)
        return 128 + stopped.number
    except KeyboardInterrupt:
        print("jformer: interrupted; the same command goes on", file=sys.stderr)
        return 130


def run_main() -> None:
    """The console script."""
    use_huge_pages()
    sys.exit(main(sys.argv))


def use_huge_pages() -> None:
    """Start this process once more, with malloc on huge pages.

    XLA's CPU backend takes fresh memory for the temporaries of each step. With small pages a third
    of the step goes into page faults, and glibc reads this setting only when a process starts.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def split_command(arguments: list[str]) -> tuple[Callable[[list[str]], int], list[str]]:
    commands = {
        "train": train_command,
        "translate": translate_command,
        "evaluate": evaluate_command,
        "data": data_command,
        "summary": summary_command,
    }
    if not arguments or arguments[0].startswith("-"):
        return train_command, arguments
    if arguments[0] not in commands:
        raise UserError(f"no command {arguments[0]!r}{nearest(arguments[0], commands)}")
    return commands[arguments[0]], arguments[1:]


def train_command(arguments: list[str]) -> int:
    flag, config = parse(arguments, {"workdir": "", "profile": ""})

    from jformer.run import load, read_results
    from jformer.training.loop import train
    from jformer.training.prepare import check_same_config
    from jformer.training.processes import is_first, join

    data = config.data
    languages = f"{data.source_language}-{data.target_language}"
    workdir = Path(flag.workdir or f"runs/{config.name}-{data.name}-{languages}")
    check_same_config(config, workdir)
    join(config.parallel)
    if is_first():
        say(f"workdir     {workdir}")
        say(f"config      {config.name}, {config.train.steps:,} steps on {data.name}, {languages}")
    tests = train(config, workdir, flag.profile)
    if not is_first():
        return 0
    run = load(workdir)
    as_now = {
        "step": run.step, "checkpoint": run.checkpoint, "decode": dataclasses.asdict(config.decode)
    }  # fmt: skip
    known = {n: s for n, s in read_results(workdir).items() if as_now.items() <= s.items()}
    if tests.keys() <= known.keys():
        more = "steps=MORE" if run.step >= config.train.steps else "patience=0"
        say(f"the run is complete at step {run.step}; --config.train.{more} goes on")
        scores = {name: known[name] for name in tests}
    else:
        scores = score_splits(run, tests)
    print(json.dumps(scores))
    return 0


def evaluate_command(arguments: list[str]) -> int:
    flag, config = parse(
        arguments, {"workdir": REQUIRED, "data": "", "checkpoint": "average"}, of_run=True
    )

    from jformer.data.corpora import open_corpus
    from jformer.data.pipeline import open_corpora, read_split
    from jformer.run import load

    data = config.data
    if flag.data:
        corpora = {flag.data: [open_corpus(flag.data, data.source_language, data.target_language)]}
    else:
        corpora = open_corpora(data, config.seed, with_train=False)
    tests = {name: read_split(split, data) for name, split in corpora.items()}
    run = load(flag.workdir, flag.checkpoint).with_decode(config.decode)
    print(json.dumps(score_splits(run, tests)))
    return 0


def translate_command(arguments: list[str]) -> int:
    known = {"workdir": REQUIRED, "input": "", "output": "", "checkpoint": "average"}
    flag, config = parse(arguments, known, of_run=True)

    from jformer.data.corpora import existing, read_text, texts, without_ends
    from jformer.run import load

    output = Path(flag.output) if flag.output else None
    if output and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise UserError(f"--output={output}: cannot be written; its folder must exist")
    lines = texts(existing(Path(flag.input))) if flag.input else without_ends(sys.stdin.buffer)
    sentences = read_text(lines, flag.input or "standard input", config.data.bad_lines)
    run = load(flag.workdir, flag.checkpoint).with_decode(config.decode)
    outputs = run.translate(sentences)
    # A translation could hold a line break of its own; the lines must stay those of the input.
    content = "".join(text.replace("\n", " ") + "\n" for text in outputs).encode()
    if output:
        output.write_bytes(content)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    return 0


def data_command(arguments: list[str]) -> int:
    flag, config = parse(arguments, {"format": "text"})
    if flag.format not in ("text", "json"):
        raise UserError(f"--format={flag.format}: must be text or json")

    from jformer.data.look import look, page
    from jformer.data.pipeline import open_data

    facts = look(config, *open_data(config))
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
        write_schedule(config, Path(flag.plot))
    for line in summary(config, S, T, gigabytes):
        print(line)
    return 0


def score_splits(run: Any, tests: dict[str, Any]) -> dict[str, Any]:
    """Translate and score each split, showing some of its translations."""
    from jformer.run import score_split

    scores = {}
    for name, split in tests.items():
        say(f"\nscoring {name}: {len(split):,} pairs ...")
        scores[name], hypotheses = score_split(run, name, split)
        say(f"{name}: {len(split):,} pairs, BLEU {scores[name]['bleu']:.2f}")
        for i in range(0, len(split), -(-len(split) // EXAMPLES_SHOWN)):
            say(f"  source     {split.sources[i]}")
            say(f"  reference  {split.targets[i]}")
            say(f"  output     {hypotheses[i]}")
    return scores


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_main()
