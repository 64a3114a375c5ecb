"""Train, translate and score Transformers.

    python -m jformer.main [COMMAND] [FLAGS]        the same as: jformer [COMMAND] [FLAGS]

COMMAND is train if none is named. `COMMAND --help` shows one command, --version the version, and
--debug the traceback of a mistake and the errors in XLA's log.

CONFIG is the path of a config file, or the name of one of ours, as tiny; CONFIG:DATASET chooses
the corpus: phrases, multi30k, iwslt14, iwslt17, wmt14, wmt16, tatoeba, hub or files.

MODEL is --checkpoint=C, which is average, last, served (the default: of these two, the one that
validated better at the end of training), best, a step, or steps to average as 1000,2000;
--ensemble=RUN[@C],RUN[@C] with runs whose probabilities are averaged with it; and
--plugins=FILE,FILE, Python files that define parts of the author's own, which are then run.

PAIRS is PREFIX for PREFIX.en and PREFIX.de (or .gz), FILE.tsv or FILE.parquet;
for a parser FILE.mrg or a pattern such as dev/*.mrg.

Results go to standard output, everything else to standard error, both as UTF-8. Exit status: 0
done, 2 the user's mistake in one line, 1 a failure of ours or of the run. A run in training that is
stopped saves all it has and ends with 129 (SIGHUP), 130 (Ctrl-C) or 143 (SIGTERM). 141: who reads
the output has gone, as head does; nothing more is saved, and training goes on from its last
checkpoint.
"""

import sys

from jformer.command_line import command_of, exit_status, quiet_xla, use_huge_pages
from jformer.commands import evaluate, score, train, translate
from jformer.extras.commands import (
    attention,
    completion,
    data,
    doctor,
    export,
    import_,
    report,
    summary,
    sweep,
)

COMMANDS = {
    "train": train,
    "translate": translate,
    "score": score,
    "evaluate": evaluate,
    "attention": attention,
    "export": export,
    "data": data,
    "summary": summary,
    "report": report,
    "sweep": sweep,
    "import": import_,
    "doctor": doctor,
    "completion": completion,
}


def main(argv: list[str]) -> int:
    """Run one command line, program name first, and return its exit status."""
    arguments = argv[1:]

    def run() -> int:
        return command_of(arguments, __doc__, COMMANDS)(arguments)

    return exit_status("jformer", run, "--debug" in argv)


def run_main() -> None:
    """Run the console script `jformer`."""
    use_huge_pages()
    quiet_xla()
    sys.exit(main(sys.argv))


if __name__ == "__main__":
    run_main()
