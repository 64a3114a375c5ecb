"""What every program of the house begins with: its flags as a checked config, its exit status.

No module but this, `main` and the programs in experiments/ reads a flag.
"""

import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from jformer.config import Config, UserError, freeze, read_config
from jformer.keys import RunError, Stopped, check_flags, flatten, nearest, thaw
from jformer.output import drop_output, open_standard_error

REQUIRED = None  # the default of a flag that has none
EXAMPLES = {"workdir": "runs/tiny-phrases-en-de", "data": "PREFIX for PREFIX.en and PREFIX.de"}


def exit_status(program: str, run: Callable[[], int], debug: bool) -> int:
    """What `run` returns, or what became of it: a mistake or a failure is one line of `program`."""
    open_standard_error()
    logging.basicConfig(format="%(message)s", level=logging.WARNING, force=True)
    logging.getLogger("jformer").setLevel(logging.INFO)
    try:
        status = run()
        print(end="", flush=True)  # what standard output cannot take is met here, not at the end
        return status
    except (UserError, flags.Error) as error:
        if debug:
            traceback.print_exc()
        # The last line: ml_collections puts a traceback before it, where a config file fails.
        print(f"{program}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        drop_output()  # who read has gone, as `head` does
        return 128 + signal.SIGPIPE
    except (RunError, OSError) as error:
        if debug:
            traceback.print_exc()
        drop_output()
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(f"{program}: {stopped}", file=sys.stderr)
        return 128 + stopped.number
    except KeyboardInterrupt:
        print(f"{program}: interrupted; the same command goes on", file=sys.stderr)
        return 130


def program_status(program: str, doc: str | None, run: Callable[[list[str]], int]) -> int:
    """The exit status of `python -m program ARGUMENTS`, which without any shows its `doc`."""
    arguments = sys.argv[1:]
    if not arguments or {"--help", "-h"} & {*arguments}:
        print(doc)
        return 0
    return exit_status(program, lambda: run(arguments), "--debug" in arguments)


def use_huge_pages() -> None:
    """Start this process once more, with malloc on huge pages.

    XLA's CPU backend takes fresh memory for the temporaries of each step. With small pages a third
    of the step goes into page faults, and glibc reads this setting only when a process starts.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def one_of(name: str, text: str, *words: str) -> None:
    if text not in words:
        raise UserError(f"--{name}={text}: must be {', '.join(words[:-1])} or {words[-1]}")


def positive(name: str, text: Any, kind: type) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise UserError(f"--{name}={text}: must be {kind.__name__} above 0")
    return number


def own_flags(
    arguments: list[str], defaults: Mapping[str, str | bool | None]
) -> tuple[flags.FlagValues, list[str]]:
    """The flags of `defaults`, and what is none of them; `--debug` is one of every command."""
    values = flags.FlagValues()
    flags.DEFINE_bool("debug", False, "", flag_values=values)
    for name, default in defaults.items():
        define: Any = flags.DEFINE_bool if isinstance(default, bool) else flags.DEFINE_string
        define(name, default, "", flag_values=values)
    rest = values(["", *arguments], known_only=True)[1:]
    for name in defaults:
        if values[name].value is REQUIRED:
            raise UserError(f"--{name} is missing, as in --{name}={EXAMPLES[name]}")
    return values, rest


def flags_and_folders(
    arguments: list[str], defaults: Mapping[str, str | bool | None]
) -> tuple[flags.FlagValues, list[str]]:
    """The flags of `defaults` and at least one folder, of a command that needs no config."""
    values, folders = own_flags(arguments, defaults)
    for name in folders:
        if name.startswith("-"):
            hint = nearest(name.strip("-").partition("=")[0], defaults)
            raise UserError(f"{name} is no flag of this command{hint}")
    if not folders:
        raise UserError(f"DIR is missing, as in {EXAMPLES['workdir']}")
    return values, folders


def parse(
    arguments: list[str], defaults: Mapping[str, str | bool | None], of_run: bool = False
) -> tuple[flags.FlagValues, Config]:
    """The flags of `defaults` and the config, checked and frozen; anything else is an error.

    The config is that of `--config`, or with `of_run` that of the run in `--workdir`, of which only
    `decode` can change.
    """
    check_flags(Config(), arguments)
    values, rest = own_flags(arguments, defaults)
    config_values = flags.FlagValues()
    known: dict[str, Any] = {"sys_argv": ["", *rest], "flag_values": config_values}
    if of_run:
        for argument in rest:
            if re.match(r"--?config(?!\.decode\.|\.data\.bad_lines)", argument):
                raise UserError(
                    f"{argument}: the run is trained; only config.decode.* and "
                    f"config.data.bad_lines can change"
                )
        stored = read_config(Path(values.workdir) / "config.json")
        config_flags.DEFINE_config_dict("config", thaw(stored), **known)
    else:
        config_flags.DEFINE_config_file("config", None, **known)
    try:
        extra = config_values(["", *rest])[1:]
        config = config_values.config
        frozen = None if config is None else freeze(config)  # a file that failed raises only here
    except flags.UnrecognizedFlagError as error:
        keys = [f"config.{key}" for key in flatten(Config())]
        names = [key for key in keys if key.endswith(f".{error.flagname}")]
        hint = nearest(error.flagname, names or ["config", *defaults])
        raise UserError(f"--{error.flagname} is no flag of this command{hint}") from error
    except OSError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"--config: {reason}; there is configs/tiny.py, for one") from error
    except (AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError) as error:
        raise UserError(f"--config: {error}") from error
    if extra:
        raise UserError(f"{extra[0]!r} is neither a flag nor a command; values follow a flag's =")
    if frozen is None:
        raise UserError("--config is missing, as in --config=configs/tiny.py")
    return values, frozen
