"""The exceptions that end a command early with one line; `cli.exit_status` prints them."""

import contextlib
import difflib
import importlib
import signal
from collections.abc import Iterable, Iterator
from typing import Any


class UserError(Exception):
    """A user error: the message names the error, its location and the fix. Exit status 2."""


class RunError(Exception):
    """A failure that ends a run; the message gives the cause and the fix. Exit status 1."""


class Stopped(Exception):  # noqa: N818  not an error: the same command resumes
    """A signal stopped the work without loss. Exit status 128 + the signal's number."""

    def __init__(self, number: int):
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name}; progress saved; rerun the same command to resume")
        self.number = number


def check_strings(name: str, values: Any) -> None:
    """Raise `TypeError` for one string in place of a list of strings."""
    if isinstance(values, str):
        raise TypeError(f"{name} must be a list of strings, not one string")


def import_extra(module: str, user: str, packages: str, way_out: str = "") -> Any:
    """Import a module of optional `packages`; `UserError` names the feature that needs them."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{user} requires packages: pip install {packages}{way_out}") from error


@contextlib.contextmanager
def explaining_out_of_memory(advice: str) -> Iterator[None]:
    """Raise `RunError` with `advice` if the host or a device runs out of memory."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if any(words in text for words in ("MemoryError", "RESOURCE_EXHAUSTED", "Out of memory")):
            raise RunError(f"out of memory {advice}") from error
        raise


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of a message: the most similar of `names`, or a list of them if it is short.

    The most similar to `beam_size` is `config.decode.beam_size`, which ends in it.
    """
    names = [*names]
    end = "." + name.rpartition(".")[2]
    close = [full for full in names if full.endswith(end)]
    if match := close or difflib.get_close_matches(name, names, n=1):
        return f"; did you mean {match[0]}?"
    if len(names) > 30:
        return "; --help lists all"
    return f"; available: {', '.join(names) or 'none'}"
