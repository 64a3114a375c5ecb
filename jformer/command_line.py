"""Command-line handling shared by all programs: flags, the checked config and the exit status.

Only this module, `main` and the programs in experiments/ read flags.
"""

import io
import logging
import os
import re
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags
from ml_collections import config_dict, config_flags

from jformer.components import naming_failures_in
from jformer.config import Config, freeze
from jformer.errors import RunError, Stopped, UserError
from jformer.output import drop_output, open_standard_error
from jformer.rundir import config_to_open
from jformer.schema import (
    LARGEST,
    check_flags,
    flatten,
    help_text,
    local_paths,
    nearest,
    thaw,
    walk,
)
from jformer.version import __version__

HUGE_PAGES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")  # a setting of glibc's malloc
REQUIRED = None  # the default of a flag that must be given
LONGEST_LINE = 1000  # of an error message, in characters: a value can have thousands of digits
OF_RUN = r"--?config\.(decode\.|data\.bad_lines)"  # keys of a run that commands may change
SENTENCES = ("source", "target")  # the flags that are no paths and no words like `text` or `1,2`
EXAMPLES = {
    "workdir": "runs/tiny-phrases-en-de",
    "data": "PREFIX for PREFIX.en and PREFIX.de",
    "source": "'3.5 kilometers'",
    "output": "PATH",
    "from": "weights.pt",
    "layout": "pytorch",
    "format": "ctranslate2",
}


def exit_status(program: str, run: Callable[[], int], debug: bool) -> int:
    """Call `run` and return its exit status; an error is printed as one line after `program`."""
    open_standard_error()
    use_utf8()
    logging.basicConfig(format="%(message)s", level=logging.WARNING, force=True)
    logging.getLogger("jformer").setLevel(logging.INFO)
    try:
        status = run()
        print(end="", flush=True)  # a failing standard output raises here, not at exit
        return status
    except BrokenPipeError:
        drop_output()  # the reader has closed the pipe, as `head` does
        return 128 + signal.SIGPIPE
    except (UserError, flags.Error, RunError, OSError) as error:
        if debug:
            traceback.print_exc()
        drop_output()
        told, status = one_line(error), 2 if isinstance(error, UserError | flags.Error) else 1
    except Stopped as stopped:
        told, status = str(stopped), 128 + stopped.number
    except KeyboardInterrupt:
        told, status = "interrupted; the same command goes on", 130
    print(f"{program}: {told}", file=sys.stderr)
    return status


def use_utf8() -> None:
    """Print UTF-8 whatever the locale is; undecodable bytes of file names are escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def one_line(error: Exception) -> str:
    """Return the last line (ml_collections puts a traceback before it), shortened if long."""
    line = str(error).strip().splitlines()[-1]
    if len(line) <= LONGEST_LINE:
        return line
    return f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"


def program_status(program: str, doc: str | None, run: Callable[[list[str]], int]) -> int:
    """Run `python -m program ARGUMENTS`, or print `doc` without any; return the exit status."""
    arguments = sys.argv[1:]
    if not arguments or {"--help", "-h"} & {*arguments}:
        print(doc)
        return 0
    return exit_status(program, lambda: run(arguments), "--debug" in arguments)


def command_of(
    arguments: list[str], general: str, commands: Mapping[str, ModuleType]
) -> Callable[[list[str]], int]:
    """Return the command that the arguments name, and remove its name from them."""
    name = ""
    if arguments and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        if name not in commands:
            raise UserError(f"no command {name!r}{nearest(name, commands)}")
    if {"--help", "-h"} & {*arguments}:
        chosen = [commands[name]] if name else [*commands.values()]
        return lambda _: print_help(general, chosen)
    if arguments == ["--version"]:
        return print_version
    return commands[name or "train"].main


def print_version(arguments: list[str]) -> int:
    print(f"jformer {__version__}")
    return 0


def print_help(general: str, commands: Sequence[ModuleType]) -> int:
    """Print the docstrings of all commands after `general`, or that of one; then config keys.

    For one command, only the paragraphs of `general` are printed that explain its words, as MODEL.
    """
    told = [(command.__doc__ or "").strip() for command in commands]
    keys = help_text(Config())
    if len(commands) > 1:
        told.insert(0, general.strip())
    else:
        words = told[0].translate(str.maketrans("[]=:", "    ")).split()
        explained = {part.split()[0]: part for part in general.split("\n\n")}
        told += [part for word, part in explained.items() if word in words]
        if "MODEL" in words:
            lines = keys.splitlines(keepends=True)
            keys = "".join(line for line in lines if re.match(rf"[* ]*{OF_RUN}", line))
        elif "CONFIG" not in words:
            keys = ""
    if keys:
        told.append(
            "Config keys, with the paper's base model as default. A resumed run may change those "
            f"marked *:\n{keys}"
        )
    print("\n\n".join(told).rstrip())
    return 0


def use_huge_pages() -> None:
    """Restart this process with malloc on huge pages.

    XLA's CPU backend allocates fresh memory for the temporaries of each step. With small pages a
    third of the step is spent in page faults. glibc reads this setting only at process start.
    """
    at_once = {"--help", "-h", "--version"} & {*sys.argv}
    name, value = HUGE_PAGES
    if sys.platform == "linux" and name not in os.environ and not at_once:
        os.environ[name] = value
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def quiet_xla() -> None:
    """Hide the errors in XLA's log, unless the user has chosen a level or wants to find a fault.

    The log interrupts the progress with "Very slow compile?" whenever one takes two minutes, which
    no XLA flag turns off. Real errors reach Python as exceptions. XLA reads this setting when it is
    loaded.
    """
    if not {"--debug", "doctor"} & {*sys.argv}:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def one_of(name: str, text: str, *words: str) -> None:
    if text not in words:
        raise UserError(f"--{name}={text}: must be {', '.join(words[:-1])} or {words[-1]}")


def positive(name: str, text: Any, kind: type) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not 0 < number <= LARGEST:
        raise UserError(f"--{name}={text}: must be {kind.__name__} above 0, at most {LARGEST}")
    return number


def own_flags(
    arguments: list[str], defaults: Mapping[str, str | bool | None]
) -> tuple[flags.FlagValues, list[str]]:
    """Return the flags of `defaults` and `--debug`, and the remaining arguments."""
    values = flags.FlagValues()
    flags.DEFINE_bool("debug", False, "", flag_values=values)
    for name, default in defaults.items():
        define: Any = flags.DEFINE_bool if isinstance(default, bool) else flags.DEFINE_string
        define(name, default, "", flag_values=values)
    rest = values(["", *arguments], known_only=True)[1:]
    for name in (*defaults, "config"):
        if f"--{name}=" in arguments:
            raise UserError(f"--{name}=: is empty; give it a value, or leave it out")
    for name in defaults:
        value = values[name].value
        if value is REQUIRED:
            raise UserError(f"--{name} is missing, as in --{name}={EXAMPLES[name]}")
        written = {f"-{name}={value}", f"--{name}={value}"}
        if isinstance(value, str) and value.startswith("--") and not written & {*arguments}:
            raise UserError(f"--{name} {value}: has no value; write --{name}=VALUE")
        if isinstance(value, str) and name not in SENTENCES:
            values[name].value = local_paths(f"--{name}", value)
    return values, rest


def flags_and_folders(
    arguments: list[str], defaults: Mapping[str, str | bool | None]
) -> tuple[flags.FlagValues, list[str]]:
    """Return the flags of `defaults` and one or more folders, for a command without a config."""
    values, folders = own_flags(arguments, defaults)
    for name in folders:
        if name.startswith("-"):
            hint = nearest(name.strip("-").partition("=")[0], defaults)
            raise UserError(f"{name} is no flag of this command{hint}")
    if not folders:
        raise UserError(f"DIR is missing, as in {EXAMPLES['workdir']}")
    return values, folders


def own_configs() -> dict[str, str]:
    """Return the paths of the package's own configs by their names, such as `tiny`."""
    package = Path(__file__).parent
    # A clone has them beside the package; a wheel takes them along within it.
    folders = (package / "configs", package.parent / "configs")
    return {path.stem: str(path) for folder in folders for path in sorted(folder.glob("*.py"))}


def config_from(text: str) -> config_dict.ConfigDict:
    """Return what `get_config(DATASET)` returns in the file of `--config=FILE[:DATASET]`.

    FILE is a path, or the name of one of the package's own configs.
    """
    name, *dataset = local_paths("config", text).split(":", 1)
    path = own_configs().get(name, name)
    if os.path.isdir(path):
        raise UserError(f"config={path}: is a folder{nearest(path, own_configs())}")
    try:
        with naming_failures_in(path):
            get_config = runpy.run_path(path).get("get_config")
            if get_config is None:
                raise UserError(f"{path}: has no function get_config(), which makes a config")
            config = get_config(*dataset)
    except (OSError, ImportError) as error:
        reason, hint = getattr(error, "strerror", None) or error, nearest(name, own_configs())
        raise UserError(f"config={name}: cannot be read ({reason}){hint}") from error
    except TypeError as error:
        raise UserError(f"{path}: get_config() cannot be called ({error})") from error
    if isinstance(config, dict):
        return config_dict.ConfigDict(config)
    if not isinstance(config, config_dict.ConfigDict):
        raise UserError(
            f"{path}: get_config() returned {config!r}; it must return a config, as that of "
            f"default_config()"
        )
    return config


def parse(
    arguments: list[str], defaults: Mapping[str, str | bool | None], of_run: bool = False
) -> tuple[flags.FlagValues, Config]:
    """Return the flags of `defaults` and the config, checked and frozen; all else is an error.

    The config is that of `--config`, or with `of_run` that of the run in `--workdir`, of which only
    `decode.*` and `data.bad_lines` can change.
    """
    check_flags(Config(), arguments)
    values, rest = own_flags(arguments, defaults if of_run else {"config": "", **defaults})
    if of_run:
        for argument in rest:
            if re.match("--?config", argument) and not re.match(OF_RUN, argument):
                raise UserError(
                    f"{argument}: the run is trained; only config.decode.* and "
                    f"config.data.bad_lines can change"
                )
        config = thaw(config_to_open(Path(values.workdir), values.plugins))
    else:
        # Without a --config another mistake is told first: that of --cfg, for one.
        config = config_from(values.config) if values.config else thaw(Config())
    edited = with_overrides(config, rest, defaults)
    if not of_run and not values.config:
        raise UserError("--config is missing, as in --config=tiny")
    return values, freeze(edited, of_run)


def without_unset(arguments: list[str]) -> tuple[list[str], dict[str, None]]:
    """Return all other arguments, and the optional keys whose last value is the word None.

    The flags of ml_collections take an integer for such a key, but not None.
    """
    optional = {f"config.{path}" for path, field, _ in walk(Config()) if field.default is None}
    others: list[str] = []
    values: dict[str, str] = {}
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        key = name.lstrip("-")
        if key in optional and key != name:
            values[key] = value if equals else next(remaining, "")
        else:
            others.append(argument)
    others += [f"--{key}={value}" for key, value in values.items() if value != "None"]
    unset = [key.removeprefix("config.") for key, value in values.items() if value == "None"]
    return others, dict.fromkeys(unset)


def with_overrides(
    config: config_dict.ConfigDict, rest: list[str], defaults: Mapping[str, Any]
) -> config_dict.ConfigDict:
    """Put the values of `--config.KEY=VALUE` into the config; any other argument is an error."""
    try:
        rest, unset = without_unset(rest)
        config.update_from_flattened_dict(unset)
        overrides = flags.FlagValues()
        known: dict[str, Any] = {"sys_argv": ["", *rest], "flag_values": overrides}
        config_flags.DEFINE_config_dict("config", config, **known)
        extra = overrides(["", *rest])[1:]
    except flags.UnrecognizedFlagError as error:
        keys = [f"config.{key}" for key in flatten(Config())]
        names = [key for key in keys if key.endswith(f".{error.flagname}")]
        hint = nearest(error.flagname, names or ["config", *defaults])
        raise UserError(f"--{error.flagname} is no flag of this command{hint}") from error
    except (AttributeError, LookupError, TypeError) as error:
        raise UserError(f"--config: {error}") from error
    if extra:
        raise UserError(f"{extra[0]!r} is neither a flag nor a command; values follow a flag's =")
    return config
