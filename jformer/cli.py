"""The command line: flags, the checked config, error lines and exit statuses.

A command is a module with a docstring, `add_flags(parser)` and `main(args)`; `jformer.main` has the
table of commands. argparse reads the flags, and the types of config keys are in the schema.
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import importlib
import logging
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from jformer.components import BUILT_IN, naming_failures_in
from jformer.config import Config, freeze, overridden
from jformer.errors import RunError, Stopped, UserError, nearest
from jformer.rundir import config_to_open
from jformer.schema import flatten, local_paths, walk

# Prefixes of the keys that may change after training.
OF_RUN = ("decode.", "data.directory")
FORMATS = ("text", "jsonl")
OUTPUT = "file to write (default: standard output)"
PAIRS = "PREFIX for PREFIX.en and PREFIX.de (or .gz), FILE.tsv or FILE.parquet"


def exit_status(program: str, run: Callable[[], int], debug: bool) -> int:
    """Call `run` and return its exit status; print an error as one line that names `program`."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, force=True)
    logging.getLogger("jformer").setLevel(logging.INFO)
    message: object
    try:
        status = run()
        print(end="", flush=True)  # a failed write raises here, not at exit
        return status
    except BrokenPipeError:
        # Otherwise Python writes the rest at exit, and reports the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as if SIGPIPE had ended it
    except (UserError, RunError, OSError) as error:
        if debug:
            traceback.print_exc()
        message, status = error, 2 if isinstance(error, UserError) else 1
    except Stopped as stopped:
        message, status = stopped, 128 + stopped.number
    except KeyboardInterrupt:
        message, status = "interrupted; rerun the same command", 130
    print(f"{program}: {message}", file=sys.stderr)
    return status


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UserError` and suggests the nearest flag."""

    def __init__(self, **options: Any):
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=layout, **options)
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def add_path(self, name: str, metavar: str, help: str, **options: Any) -> None:
        """Declare a flag for a local path, empty by default, or a list if the type is `paths`."""
        options = {"default": "", "type": functools.partial(local_paths, name), **options}
        self.add_argument(name, metavar=metavar, help=help, **options)

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Parse flags; `overrides` in the result has the values of --config.KEY=VALUE."""
        args, unknown = self.parse_known_args(arguments)
        if unknown:
            name = unknown[0].partition("=")[0].removeprefix("--")
            if name.removeprefix("config.") in flatten(Config()):
                raise UserError(f"{unknown[0]}: cannot change after training; see --help")
            known = [flag.removeprefix("--") for flag in self._option_string_actions]
            raise UserError(f"{unknown[0]}: unknown flag or key{nearest(name, known)}")
        keys = [name for name in vars(args) if name.startswith("config.")]
        args.overrides = {key.removeprefix("config."): getattr(args, key) for key in keys}
        return args

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "))


def parser_of(name: str, commands: Mapping[str, str]) -> Parser:
    """Return the parser of a command."""
    module = importlib.import_module(commands[name])
    parser = Parser(prog=f"jformer {name}", description=module.__doc__)
    module.add_flags(parser)
    return parser


def add_config_flags(parser: Parser) -> None:
    """Declare --config and all config keys."""
    names, datasets = ", ".join(own_configs()), ", ".join(BUILT_IN["dataset"])
    text = f"file of a config, or a name: {names}; DATASET is one of {datasets}"
    parser.add_argument("--config", required=True, metavar="CONFIG[:DATASET]", help=text)
    add_keys(parser)


def add_run_flags(parser: Parser, ensemble: bool = True) -> None:
    """Declare the flags of a command that opens a run."""
    parser.add_path("--workdir", "DIR", "the run directory", required=True)
    text = "average, last, served (default: the better of these), best, a step, or steps: 1000,2000"
    parser.add_argument("--checkpoint", default="served", metavar="C", help=text)
    if ensemble:
        text = "more runs, whose probabilities are averaged"
        parser.add_path("--ensemble", "RUN[@C],RUN[@C]", text, type=paths, default=[])
    text = "Python files of the run's components, to execute"
    parser.add_path("--plugins", "FILE,FILE", text, type=paths, default=[])
    add_keys(parser, OF_RUN)


def add_keys(parser: Parser, beginnings: tuple[str, ...] = ("",)) -> None:
    """Declare the config keys with these prefixes."""
    parser.usage = "%(prog)s [FLAGS] [--config.KEY=VALUE ...]"
    about = "with their defaults; a resumed run may change keys marked *"
    group = parser.add_argument_group("config keys", about)
    for name, field, default in walk(Config()):
        if name.startswith(beginnings):
            mark = "* " if field.metadata["resumable"] else ""
            text = mark + field.metadata["doc"].replace("%", "%%")
            options: Any = {"nargs": "?", "const": True} if isinstance(default, bool) else {}
            options["type"] = type(default) if isinstance(default, str | float) else literal
            options |= {"metavar": str(default) or "''", "help": text}
            group.add_argument(f"--config.{name}", default=argparse.SUPPRESS, **options)


def literal(text: str) -> Any:
    """Return the Python literal, or the text if it is none; the schema checks the type."""
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text.capitalize() if text in ("true", "false") else text)
    return text


def paths(text: str) -> list[str]:
    """Return local paths that are separated by commas."""
    return local_paths("paths", text).split(",")


def own_configs() -> dict[str, str]:
    """Return the paths of the built-in configs by name, such as `tiny`."""
    package = Path(__file__).parent
    # In a clone they are next to the package; in a wheel they are inside it.
    folders = (package / "configs", package.parent / "configs")
    return {path.stem: str(path) for folder in folders for path in sorted(folder.glob("*.py"))}


def config_from(text: str) -> dict[str, Any]:
    """Call `get_config(DATASET)` in the file of `--config=CONFIG[:DATASET]`."""
    name, *dataset = text.split(":", 1)
    path = own_configs().get(name, os.path.expanduser(name))
    if not os.path.isfile(path):
        raise UserError(f"config={text}: not found{nearest(name, own_configs())}")
    with naming_failures_in(path):
        return dict(runpy.run_path(path)["get_config"](*dataset))


def config_of(args: argparse.Namespace) -> Config:
    """Return the checked config of `--config`, or of the run in `--workdir`, with overrides."""
    if "config" in args:
        return freeze(config_from(args.config), args.overrides)
    stored = config_to_open(Path(args.workdir), args.plugins)
    return overridden(stored, args.overrides, stored)


def config_of_flags(arguments: list[str]) -> Config:
    """Return the checked config for a list of flags: --config and config keys."""
    parser = Parser()
    add_config_flags(parser)
    return config_of(parser.parse(arguments))


def check_output(name: str, inputs: Iterable[Path]) -> None:
    """Raise `UserError` if --output=NAME is an input of the command."""
    if name and Path(name).resolve() in [file.resolve() for file in inputs]:
        raise UserError(f"--output={name}: is an input of this command; choose another file")


def open_run(args: argparse.Namespace, config: Config) -> Any:
    """Open the runs of --workdir and --ensemble, with `config` in place of the stored one."""
    from jformer.run import load

    run = load(args.workdir, args.checkpoint, args.ensemble, args.plugins)
    return dataclasses.replace(run, config=config)
