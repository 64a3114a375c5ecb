"""Generate the reference pages: command line, config keys, Python API and results."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import jformer
from jformer import main
from jformer.cli import parser_of
from jformer.config import Config
from jformer.decoding.scoring import Attention
from jformer.decoding.translate import Hypothesis
from jformer.run import Run, Scored
from jformer.schema import walk

ROOT = Path(__file__).parents[2]
FUNCTIONS = ("get_config", "load", "train")
METHODS = ("translate", "hypotheses", "score", "attention", "with_decode")
ERRORS = (jformer.UserError, jformer.RunError, jformer.Stopped)


def commands() -> str:
    """Return the program's docstring and the help of each command, without config keys."""
    parts = [code(main.__doc__, "text")]
    for name in main.COMMANDS:
        text = parser_of(name, main.COMMANDS).format_help().partition("\nconfig keys:")[0]
        parts += [f"## {name}", code(text, "text")]
    return "\n\n".join(parts)


def code(text: str | None, language: str) -> str:
    return f"```{language}\n{(text or '').strip()}\n```"


def config_keys() -> str:
    """Return a table of config keys per section."""
    config = Config()
    sections: dict[str, list[list[str]]] = {}
    for path, field, value in walk(config):
        section, _, _ = path.rpartition(".")
        mark = "\\*" if field.metadata["resumable"] else ""
        name = f"`{path}`{{#{path}}}{mark}"
        cells = [name, default(value), values(field), meaning(field)]
        sections.setdefault(section, []).append(cells)
    parts = []
    for section, rows in sections.items():
        doc = inspect.getdoc(inspect.getmodule(getattr(config, section or "model")))
        title = (doc or "").partition(": ")[2] if section else "Keys outside of any section."
        parts.append(f"## {section or 'top level'}\n\n{title[:1].upper()}{title[1:]}")
        parts.append(table(["key", "default", "values", "meaning"], rows))
    return "\n\n".join(parts)


def default(value: Any) -> str:
    if value is None:
        return "unset"
    return f"`{value}`" if value != "" else "empty"


def values(field: dataclasses.Field) -> str:
    """Return the allowed words of a key, or its type and bounds."""
    bounds = field.metadata["bounds"]
    if isinstance(field.default, str):
        return ", ".join(f"`{word}`" for word in bounds) or "text"
    kind = "int or unset" if field.default is None else type(field.default).__name__
    return ", ".join([kind, *bounds]).replace(">= ", "≥\u00a0")


def meaning(field: dataclasses.Field) -> str:
    """Return the help of a key, without the allowed words, which have their own column."""
    doc = field.metadata["doc"]
    if isinstance(field.default, str) and field.metadata["bounds"]:
        doc = doc.replace(f": {', '.join(field.metadata['bounds'])}", "")
    return escaped(doc)


def escaped(text: str) -> str:
    return re.sub(r"([|<>*_`])", r"\\\1", text)


def table(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def python_api() -> str:
    """Return the signatures and docstrings of the public API."""
    functions = [function(f"jformer.{name}", getattr(jformer, name)) for name in FUNCTIONS]
    methods = [function(f"run.{name}", getattr(Run, name)) for name in METHODS]
    errors = [f"### jformer.{error.__name__}\n\n{prose(error)}" for error in ERRORS]
    attributes = f"{prose(Run)}\n\n{fields(Run)}"
    vocabulary = f"`run.vocabulary`: {prose(Run.vocabulary)}"
    parts = ["## Functions", *functions, "## Run", attributes, vocabulary, *methods]
    parts += ["## Return types", *map(record, (Hypothesis, Scored, Attention))]
    return "\n\n".join([*parts, "## Errors", *errors])


def prose(documented: Any) -> str:
    return inspect.getdoc(documented) or ""


def function(name: str, called: Any) -> str:
    """Return the heading, the signature and the docstring of a function or method."""
    signature = inspect.signature(called)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    text = str(signature.replace(parameters=own)).replace("'Run'", "Run")
    text = re.sub(r"\b(\w+\.)+(?=[A-Z])", "", text)  # pathlib.Path becomes Path
    if len(name + text) > 80:
        parameters, _, returned = text.removeprefix("(").rpartition(")")
        lines = re.split(r", (?=[*/]|\w+:)", parameters)
        text = "(\n" + "".join(f"    {line},\n" for line in lines) + f"){returned}"
    return f"### {name}\n\n{code(name + text, 'python')}\n\n{prose(called)}"


def record(kind: type) -> str:
    return f"### {kind.__name__}\n\n{prose(kind)}\n\n{fields(kind)}"


def fields(kind: type) -> str:
    """Return the fields of a dataclass with the comments from its source."""
    lines = inspect.getsource(kind).splitlines()
    return code("\n".join(line.strip() for line in lines if re.match(r"    \w+: ", line)), "python")


def results() -> str:
    """Return the results section of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.partition("\n## Results\n")[2].partition("\n## ")[0].strip()


MARKERS = {
    "commands": commands,
    "config keys": config_keys,
    "python api": python_api,
    "results": results,
}
