"""Config schemas: keys with bounds, and operations on a tree of sections of keys.

The keys themselves are declared in `jformer.config`.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ml_collections import config_dict

from jformer import components
from jformer.errors import UserError, nearest

Words = tuple[str, ...]
RATE = (">= 0", "< 1")  # bounds of a probability, such as dropout
URL = re.compile("[a-zA-Z][a-zA-Z0-9+.-]+:/")  # one slash: `Path("gs://bucket")` has no second


def key(
    default: Any, doc: str, *bounds: str, only_if: Words = (), resumable: bool = False, **more: Any
) -> Any:
    """Declare a config key; a default of None means an integer that may be unset.

    `bounds` are conditions such as ">= 1". `only_if` has a key of the same section, and the values
    that enable this one. A resumed run may change a `resumable` key.
    """
    if only_if:
        doc += f"; only if {only_if[0]}={' or '.join(only_if[1:])}"
    metadata = {"doc": doc, "bounds": bounds, "only_if": only_if, "resumable": resumable}
    return dataclasses.field(default=default, metadata=metadata | more)


def choice(doc: str, *words: str, resumable: bool = False) -> Any:
    """Declare a config key whose value is one of `words`; the first is the default."""
    return key(words[0], f"{doc}: {', '.join(words)}", *words, resumable=resumable)


def component(default: str, kind: str, doc: str, **options: Any) -> Any:
    """Declare a key that names a component of a kind of `jformer.components`, or a list of them."""
    doc = f"{doc}: {', '.join(components.BUILT_IN[kind])}, or your own as FILE.py:NAME"
    return key(default, doc, component=kind, **options)


def paths(doc: str, only_if: Words = ()) -> Any:
    """Declare a key that is empty or has local files or folders, separated by commas.

    A resumed run may use other paths: hashes of their contents decide whether it is the same run.
    """
    return key("", doc, only_if=only_if, resumable=True, is_path=True)


def local_paths(name: str, text: str) -> str:
    """Return comma-separated paths of the user with `~` expanded; `UserError` for a URL."""
    for path in text.split(","):
        if URL.match(path):
            raise UserError(f"{name}={path}: must be a local path; mount it, or copy its content")
    return ",".join(map(os.path.expanduser, text.split(",")))


class Section:
    """A frozen dataclass of keys, at `path` of the config."""

    path: ClassVar[str]

    def assignment(self, name: str) -> str:
        """Return a key and its value for a message: `config.train.steps=3`."""
        return f"{self.path}.{name}={getattr(self, name)}"

    def wrong(self, name: str, reason: str) -> UserError:
        return UserError(f"{self.assignment(name)}: {reason}")

    def check(self: Any) -> None:
        """Raise `UserError` for a key that is out of bounds, or unused because of another.

        Sections add checks of several keys.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Section):
                value.check()
            elif reason := violation(field, value):
                raise self.wrong(field.name, reason)
            elif field.metadata["only_if"] and value != field.default:
                other, *values = field.metadata["only_if"]
                # A component of the user's own, without a name here, may read any key.
                if components.name_of(str(getattr(self, other))) not in ("", *values):
                    reason = f"requires {self.path}.{other}={' or '.join(values)}"
                    raise self.wrong(field.name, reason)


def violation(field: dataclasses.Field, value: Any) -> str:
    """Return the violation of the field's type or bounds by `value`; empty if it is valid."""
    if value is None and field.default is None:
        return ""
    kind = int if field.default is None else type(field.default)
    accepted: Any = (int, float) if kind is float else kind  # also numpy's float64, a float
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, accepted):
        return f"must be {kind.__name__}, not {type(value).__name__}"
    bounds = field.metadata["bounds"]
    if names := field.metadata.get("component"):
        errors = [components.error_in(names, item) for item in components.split_list(value)]
        return next(filter(None, errors), "")
    if kind is str:
        return f"is unknown{nearest(value, bounds)}" if bounds and value not in bounds else ""
    for bound in bounds:
        comparison, limit = bound.split()
        is_below = value < float(limit)
        if is_below != (comparison == "<"):
            return f"must be {bound}"
    return ""


def walk(config: Any, path: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yield `("model.dropout", field, 0.1)` and so on, in the schema's order."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{path}{field.name}.")
        else:
            yield path + field.name, field, value


def walk_components(config: Any) -> Iterator[tuple[str, str, str]]:
    """Yield `("config.model.norm", "norm", "layer_norm")` for each component of the config."""
    for path, field, value in walk(config):
        if kind := field.metadata.get("component"):
            for item in components.split_list(value):
                yield f"config.{path}", kind, item


def flatten(config: Any) -> dict[str, Any]:
    """Return `{"model.dropout": 0.1, ...}` in the schema's order."""
    return {path: value for path, _, value in walk(config)}


def thaw(config: Any) -> config_dict.ConfigDict:
    """Return the values as a locked `ConfigDict`, which a config file can edit."""
    return config_dict.ConfigDict(dataclasses.asdict(config)).lock()


def replaced(config: Any, values: Mapping[str, Any], path: str = "config.") -> Any:
    """Return a config with other values of some keys, at `path` in messages.

    `values` is `{"model.dropout": 0.3}`, or a tree `{"model": {"dropout": 0.3}}`.
    """
    changes: dict[str, Any] = {}
    fields = {field.name: field for field in dataclasses.fields(config)}  # without properties
    for key, value in values.items():
        name, _, rest = key.partition(".")
        if name not in fields:
            raise UserError(f"{path}{key} is unknown{nearest(key, flatten(config))}")
        before = changes.get(name, getattr(config, name))
        if dataclasses.is_dataclass(before):
            value = replaced(before, {rest: value} if rest else value, f"{path}{name}.")
        elif fields[name].metadata.get("is_path"):
            value = local_paths(path + name, str(value))
        changes[name] = value
    return dataclasses.replace(config, **changes)
