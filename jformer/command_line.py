"""Flags of the command line into a checked config. No module but this and main reads a flag."""

import re
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from jformer.config import Config, UserError, freeze, read_config
from jformer.keys import check_flags, flatten, nearest, thaw

REQUIRED = None  # the default of a flag that has none
EXAMPLES = {"workdir": "runs/tiny-phrases-en-de", "data": "PREFIX for PREFIX.en and PREFIX.de"}


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


def parse(
    arguments: list[str], defaults: dict[str, str | None], of_run: bool = False
) -> tuple[flags.FlagValues, Config]:
    """The flags of `defaults` and the config, checked and frozen; anything else is an error.

    The config is that of `--config`, or with `of_run` that of the run in `--workdir`, of which only
    `decode` can change.
    """
    check_flags(Config(), arguments)
    values, config_values = flags.FlagValues(), flags.FlagValues()
    flags.DEFINE_bool("debug", False, "", flag_values=values)
    for name, default in defaults.items():
        flags.DEFINE_string(name, default, "", flag_values=values)
    rest = values(["jformer", *arguments], known_only=True)
    for name in defaults:
        if values[name].value is REQUIRED:
            raise UserError(f"--{name} is missing, as in --{name}={EXAMPLES[name]}")
    known: dict[str, Any] = {"sys_argv": rest, "flag_values": config_values}
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
        extra = config_values(rest)[1:]
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
