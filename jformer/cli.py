"""The command line: flags, the checked config, error lines and exit statuses.

A command is a module with a docstring, `add_flags(parser)` and `main(args)`; `jformer.main` has the
table of commands. argparse reads the flags, ml_collections the values of config keys.
"""

import argparse
import dataclasses
import importlib
import io
import logging
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from absl import flags
from ml_collections import config_dict, config_flags

from jformer.components import naming_failures_in
from jformer.config import Config, check_components, freeze
from jformer.errors import RunError, Stopped, UserError, nearest
from jformer.rundir import config_to_open
from jformer.schema import LARGEST, flatten, local_paths, thaw, walk

OF_RUN = ("decode.", "data.bad_lines")  # the keys of a trained run that can change, by beginnings
FORMATS = ("text", "jsonl")
OUTPUT = "file to write (default: standard output)"
PAIRS = (
    "pairs of sentences: PREFIX for PREFIX.en and PREFIX.de (or .gz), FILE.tsv or FILE.parquet; "
    "for a parser FILE.mrg, or a pattern such as 'dev/*.mrg'"
)


def exit_status(program: str, run: Callable[[], int], debug: bool) -> int:
    """Call `run` and return its exit status; an error is printed as one line after `program`."""
    use_utf8()
    logging.basicConfig(format="%(message)s", level=logging.WARNING, force=True)
    logging.getLogger("jformer").setLevel(logging.INFO)
    message: object
    try:
        status = run()
        print(end="", flush=True)  # an output that cannot be written raises here, not at exit
        return status
    except BrokenPipeError:
        drop_output()
        return 128 + signal.SIGPIPE
    except (UserError, RunError, OSError) as error:
        if debug:
            traceback.print_exc()
        drop_output()
        message, status = error, 2 if isinstance(error, UserError) else 1
    except Stopped as stopped:
        message, status = stopped, 128 + stopped.number
    except KeyboardInterrupt:
        message, status = "interrupted; rerun the same command to resume", 130
    print(f"{program}: {message}", file=sys.stderr)
    return status


def use_utf8() -> None:
    """Print UTF-8 in any locale; undecodable bytes of file names are escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def drop_output() -> None:
    """Discard output that cannot be written: Python would fail on it again at exit."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Parser(argparse.ArgumentParser):
    """A parser of flags that raises `UserError`, with the nearest name for an unknown flag."""

    def __init__(self, **options: Any):
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=layout, **options)
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def add_path(self, name: str, metavar: str, help: str, **options: Any) -> None:
        """Declare a flag for a local path, or several with commas between; empty by default."""
        self.add_argument(name, default="", type=path, metavar=metavar, help=help, **options)

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        for argument in arguments:
            name, equals, value = argument.partition("=")
            if name.startswith("--") and name not in self._option_string_actions:
                raise UserError(f"{argument}: {self._unknown(name.removeprefix('--'))}")
            if equals and not value and not name.startswith("--config."):
                raise UserError(f"{argument}: is empty; give it a value, or leave it out")
        return self.parse_args(arguments)

    def error(self, message: str) -> NoReturn:
        hint = "; quote a value with spaces" if message.startswith("unrecognized") else ""
        raise UserError(message.removeprefix("argument ") + hint)

    def _unknown(self, name: str) -> str:
        """Return why there is no such flag, and what to write instead."""
        known = [flag[2:] for flag in self._option_string_actions if flag.startswith("--")]
        if not name.startswith("config.") or "overrides" not in self._defaults:
            # Perhaps the name of a config key without its section.
            same = [flag for flag in known if flag.endswith(f".{name}")]
            return f"unknown flag{nearest(name, same or known)}"
        key, keys = name.removeprefix("config."), flatten(Config())
        if key in keys:
            return "cannot be changed after training; only decode.* and data.bad_lines can"
        if inside := [path for path in keys if path.startswith(f"{key}.")]:
            return f"is a section of the config; set a key of it, such as {inside[0]}"
        return f"unknown key{nearest(key, keys)}"


class Override(argparse.Action):
    """Collects the values of --config.KEY=VALUE in `args.overrides`; the last one counts."""

    def __call__(self, parser: Any, namespace: Any, value: Any, flag: Any = None) -> None:
        namespace.overrides = {**namespace.overrides, self.dest: value}


def parser_of(name: str, commands: Mapping[str, str], parser: Parser | None = None) -> Parser:
    """Return the parser of a command, or add its flags to `parser`."""
    module = importlib.import_module(commands[name])
    parser = parser or Parser(prog=f"jformer {name}", description=module.__doc__)
    parser.set_defaults(commands=commands)
    module.add_flags(parser)
    return parser


def add_config_flags(parser: Parser) -> None:
    """Declare --config and all config keys; after the other flags of a command."""
    text = (
        "path of a config file, or name of a built-in config: "
        f"{', '.join(own_configs())}; :DATASET chooses the corpus: phrases, multi30k, iwslt14, "
        "iwslt17, wmt14, wmt16, tatoeba, hub or files"
    )
    parser.add_argument("--config", required=True, metavar="CONFIG[:DATASET]", help=text)
    add_keys(parser)


def add_run_flags(parser: Parser, ensemble: bool = True) -> None:
    """Declare the flags of a command that opens a run; after the other flags of a command."""
    parser.add_path("--workdir", "DIR", "the run directory", required=True)
    text = (
        "average, last, served (default: the better of these two on validation data at the end of "
        "training), best, a step, or steps to average, such as 1000,2000"
    )
    parser.add_argument("--checkpoint", default="served", metavar="C", help=text)
    if ensemble:
        text = "more runs, to average the probabilities of all"
        parser.add_path("--ensemble", "RUN[@C],RUN[@C]", text)
    text = "Python files of components that the run names, to execute"
    parser.add_path("--plugins", "FILE,FILE", text)
    add_keys(parser, OF_RUN)


def add_keys(parser: Parser, beginnings: tuple[str, ...] = ("",)) -> None:
    """Declare the config keys with these beginnings; after the flags, for a short usage line."""
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    parser.usage = f"{usage} [--config.KEY=VALUE ...]"
    parser.set_defaults(overrides={})
    about = "with the default of each; a resumed run may change keys marked *"
    group = parser.add_argument_group("config keys", about)
    for name, field, default in walk(Config()):
        if name.startswith(beginnings):
            mark = "* " if field.metadata["resumable"] else ""
            text = mark + field.metadata["doc"].replace("%", "%%")
            options: Any = {"action": Override, "dest": name, "default": argparse.SUPPRESS}
            if isinstance(default, bool):
                options |= {"nargs": "?", "const": "true"}
            metavar = str(default) or "''"
            group.add_argument(f"--config.{name}", metavar=metavar, help=text, **options)


def path(text: str) -> str:
    """Return local paths, with `~` as the home folder; `UserError` for a URL."""
    return local_paths("path", text)


def files_in(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def positive(kind: type) -> Callable[[str], Any]:
    """Return the type of flags for a number above 0."""

    def number(text: str) -> Any:
        if not 0 < (value := kind(text)) <= LARGEST:
            raise ValueError
        return value

    number.__name__ = f"positive {kind.__name__}"  # for argparse's message
    return number


def own_configs() -> dict[str, str]:
    """Return the paths of the package's own configs by their names, such as `tiny`."""
    package = Path(__file__).parent
    # A clone has them in the folder of the package; a wheel has them inside of the package.
    folders = (package / "configs", package.parent / "configs")
    return {path.stem: str(path) for folder in folders for path in sorted(folder.glob("*.py"))}


def config_from(text: str) -> config_dict.ConfigDict:
    """Return what `get_config(DATASET)` returns in the file of `--config=CONFIG[:DATASET]`."""
    name, *dataset = text.split(":", 1)
    if name not in own_configs():
        name = local_paths("config", text).split(":", 1)[0]  # raises for a URL
    path = own_configs().get(name, name)
    if not os.path.isfile(path):
        reason = "is a folder" if os.path.isdir(path) else "no such file"
        raise UserError(f"config={name}: {reason}{nearest(name, own_configs())}")
    try:
        with naming_failures_in(path):
            get_config = runpy.run_path(path).get("get_config")
            if get_config is None:
                raise UserError(f"{path}: must define get_config(), which returns a config")
            config = get_config(*dataset)
    except TypeError as error:  # raised by the call itself
        raise UserError(f"{path}: get_config() cannot be called ({error})") from error
    if not isinstance(config, dict | config_dict.ConfigDict):
        fix = "it must return a config, such as default_config()"
        raise UserError(f"{path}: get_config() returned {config!r}; {fix}")
    return config_dict.ConfigDict(config)


def with_overrides(
    config: config_dict.ConfigDict, overrides: Mapping[str, str]
) -> config_dict.ConfigDict:
    """Put the values of `{key: text}` into the config, each with the type of the key.

    The word None unsets an optional key, which ml_collections cannot do.
    """
    optional = [key for key, field, _ in walk(Config()) if field.default is None]
    unset = [key for key in optional if overrides.get(key) == "None"]
    others = [f"--config.{key}={text}" for key, text in overrides.items() if key not in unset]
    arguments, values = ["", *others], flags.FlagValues()
    try:
        config.update_from_flattened_dict(dict.fromkeys(unset))
        config_flags.DEFINE_config_dict("config", config, sys_argv=arguments, flag_values=values)
        values(arguments)
    except (flags.Error, AttributeError, LookupError, TypeError) as error:
        reason = str(error).strip().splitlines()[-1]  # after a traceback
        raise UserError(reason.removeprefix("flag ")) from error
    return config


def config_of(args: argparse.Namespace) -> Config:
    """Return the checked config of `--config`, or of the run in `--workdir`, with overrides."""
    if "config" in args:
        return freeze(with_overrides(config_from(args.config), args.overrides))
    stored = config_to_open(Path(args.workdir), args.plugins)
    config = freeze(with_overrides(thaw(stored), args.overrides), of_run=True)
    check_components(config, stored)
    return config


def config_of_flags(arguments: list[str]) -> Config:
    """Return the checked config of a list of flags: --config and config keys."""
    parser = Parser()
    add_config_flags(parser)
    return config_of(parser.parse(arguments))


def open_run(args: argparse.Namespace, config: Config) -> Any:
    """Open the run of --workdir with those of --ensemble, and with `config` instead of its own."""
    from jformer.run import load

    ensemble: list[str] = []
    for name in files_in(args.ensemble):
        if ensemble and name.isdecimal() and not os.path.exists(name):
            ensemble[-1] += f",{name}"  # one more step of RUN@STEP,STEP
        else:
            ensemble.append(name)
    run = load(args.workdir, args.checkpoint, ensemble, plugins=files_in(args.plugins))
    return dataclasses.replace(run, config=config)
