"""Train, translate and score Transformers.

    python -m jformer.main [COMMAND] [FLAGS]        the same as: jformer [COMMAND] [FLAGS]

COMMAND is train by default. `COMMAND --help` shows the flags and config keys of a command.

Results go to standard output, everything else to standard error. Exit status:

    0               done
    1               an internal or runtime error
    2               a user error, reported in one line; --debug adds the traceback
    129, 130, 143   stopped by SIGHUP, Ctrl-C or SIGTERM; training has saved its state
    141             output pipe closed, for example by head
"""

import importlib
import os
import sys

from jformer import __version__
from jformer.errors import UserError, nearest

# The modules of the commands, imported when used. Each has `add_flags(parser)` and `main(args)`.
COMMANDS = {
    "train": "jformer.commands.train",
    "translate": "jformer.commands.translate",
    "score": "jformer.commands.score",
    "evaluate": "jformer.commands.evaluate",
    "attention": "jformer.extras.attention_page",
    "export": "jformer.extras.interop.export_command",
    "data": "jformer.extras.stats",
    "summary": "jformer.extras.summary",
    "report": "jformer.extras.report",
    "sweep": "jformer.extras.sweep",
    "import": "jformer.extras.interop.import_command",
    "doctor": "jformer.extras.doctor",
}
HUGE_PAGES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")  # a setting of glibc's malloc


def main(argv: list[str]) -> int:
    """Run one command line, program name first, and return its exit status."""
    from jformer.cli import exit_status  # slow to import: only after the restart of `run_main`

    return exit_status("jformer", lambda: run(argv[1:]), "--debug" in argv)


def run(arguments: list[str]) -> int:
    from jformer import cli

    if arguments == ["--version"]:
        print(f"jformer {__version__}")
        return 0
    if arguments[:1] in (["--help"], ["-h"]):
        print_help()
        return 0
    name, flags = name_and_flags(arguments)
    if name not in COMMANDS:
        raise UserError(f"{name}: unknown command{nearest(name, COMMANDS)}")
    args = cli.parser_of(name, COMMANDS).parse(flags)
    return importlib.import_module(COMMANDS[name]).main(args)


def print_help() -> None:
    print(f"{__doc__}\nCommands:\n")
    for name, path in COMMANDS.items():
        summary = (importlib.import_module(path).__doc__ or "").partition("\n")[0]
        print(f"    {name:<12}{summary}")


def name_and_flags(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the command, which is train if none is named, and the remaining arguments."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return "train", arguments


def use_huge_pages() -> None:
    """Restart the process with malloc on huge pages, for training and `summary --measure`.

    With small pages, a third of a step on a CPU is spent in page faults. glibc reads this setting
    only at process start.
    """
    variable, value = HUGE_PAGES
    trains = name_and_flags(sys.argv[1:])[0] == "train" or "--measure" in sys.argv
    if sys.platform == "linux" and trains and variable not in os.environ:
        os.environ[variable] = value
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def quiet_xla() -> None:
    """Hide the errors in XLA's log, unless the user has set a level or is debugging.

    The log warns of each compilation of two minutes. Real errors reach Python as exceptions.
    """
    if not {"--debug", "doctor"} & {*sys.argv}:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def run_main() -> None:
    """Run the console script `jformer`."""
    use_huge_pages()
    quiet_xla()
    sys.exit(main(sys.argv))


if __name__ == "__main__":
    run_main()
