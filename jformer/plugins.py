"""Parts of a user's own in Python files: an attention, norm, activation, optimizer or data set.

A config key names such a part as it names one of ours, `config.model.norm=RMSNorm`, and
`config.plugins` names the files that define it. Only files that the caller has named are run. Those
that a stored run names are never run by themselves: see `rundir.config_to_open`.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from jformer.console import say
from jformer.errors import UserError
from jformer.schema import Section, nearest, shown


@dataclasses.dataclass(frozen=True)
class Plugin:
    content: bytes
    module: ModuleType


def find_parts(section: Section, plugins: str) -> dict[str, Any]:
    """Return the objects that a section's keys name in the files of `config.plugins`, by name."""
    for key, name in section.our_parts().items():
        check_ours(section, key, name, plugins)
    return {
        name: find_part(section, key, name, plugins) for key, name in section.own_parts().items()
    }


def check_ours(section: Section, key: str, name: str, plugins: str) -> None:
    """Raise `UserError` if a plugin defines what a key names, though it names a part of ours."""
    for file, plugin in load_all(plugins).items():
        part = vars(plugin.module).get(name)
        if getattr(part, "__module__", "") == plugin.module.__name__:  # not one that it imports
            raise section.wrong(key, f"is one of ours, and {file} defines another; rename that")


def find_part(section: Section, key: str, name: str, plugins: str) -> Any:
    """Return what `name`, the value of a key, is in the first of the files that defines it."""
    loaded = load_all(plugins)
    for file, plugin in loaded.items():
        part = vars(plugin.module).get(name)
        if callable(part):
            return part
        if part is not None:
            raise section.wrong(key, f"is no function and no class in {file}")
    if not loaded:
        raise section.wrong(key, "is defined in a plugin; name its file, as --plugins=FILE.py")
    parts = [vars(plugin.module) for plugin in loaded.values()]
    names = [name for each in parts for name, part in each.items() if callable(part)]
    raise section.wrong(key, f"is not defined in {' or '.join(loaded)}{nearest(name, names)}")


def load_all(plugins: str) -> dict[str, Plugin]:
    """Return the plugins by file name."""
    return {file: load(file, os.path.abspath(file)) for file in plugins.split(",") if file}


@functools.cache
def load(file: str, path: str) -> Plugin:
    """Run a Python file, once in a process, as an import does."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"config.plugins={file}: cannot be read ({error.strerror})") from error
    module = ModuleType(f"jformer_plugin_{hashlib.sha256(path.encode()).hexdigest()[:8]}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # where dataclasses, as flax's modules are, look for it
    with naming_failures_in(file):
        exec(compile(content, file, "exec"), vars(module))
    return Plugin(content, module)


def tell_changed(plugins: str) -> None:
    """Print a line for each plugin that has another content by now than when it was run."""
    for file, plugin in load_all(plugins).items():
        path = Path(file)
        if not path.exists() or path.read_bytes() != plugin.content:
            say(f"{file}: has changed since this process has run it; start anew to take the change")


def plugin_hashes(plugins: str) -> dict[str, str]:
    """Return `{file name: hash of its content}`, which stands for the version of a plugin."""
    loaded = load_all(plugins)
    return {
        Path(file).name: hashlib.sha256(plugin.content).hexdigest()[:12]
        for file, plugin in loaded.items()
    }


@contextlib.contextmanager
def naming_failures_in(path: str) -> Iterator[None]:
    """Turn any exception raised in a user's Python file into a `UserError` with its line number."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        places = [(at.filename, at.lineno) for at in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError):
            places.append((error.filename or "", error.lineno))
        lines = [line for name, line in places if os.path.abspath(name) == os.path.abspath(path)]
        if not lines:
            raise
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{path}:{lines[-1]}: {shown(told)}") from error
