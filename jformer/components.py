"""Components: the parts of a run that its config names by a string.

    dot_product                        built in
    muon(momentum=0.9)                 with options, each a keyword and a Python literal
    window.py:SlidingWindow(width=64)  a class or a function in a file of your own

`BUILT_IN` lists the parts of this package, which are imported on first use. docs/components.md has
the signature of each kind.

Options are parsed and never evaluated: the keyword-only arguments of a function, or the fields of a
class. Only `allow` runs a file. Commands allow the files that the user's own config or --plugins
names, so opening a stored run never runs code by itself.
"""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import inspect
import os
import re
import sys
import traceback
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from jformer.errors import UserError, nearest

NAMED_DATASETS = ("multi30k", "iwslt14", "iwslt17", "wmt14", "wmt16", "tatoeba")
# Where each part is: MODULE:ATTRIBUTE, or MODULE if the attribute has the part's name.
BUILT_IN: dict[str, dict[str, str]] = {
    "attention": {"dot_product": "jformer.model.attention:attend"},
    "norm": {
        "layer_norm": "flax.linen:LayerNorm",
        "sample_layer_norm": "jformer.extras.annotated:SampleLayerNorm",
    },
    "activation": {
        "relu": "jformer.model.numerics",
        "gelu": "jformer.model.numerics",
        "silu": "flax.linen",
    },
    "positions": {
        "sinusoidal": "jformer.model.positions:Sinusoidal",
        "halves": "jformer.extras.annotated:Halves",
        "learned": "jformer.model.positions:Learned",
        "rotary": "jformer.model.relative_positions:Rotary",
        "alibi": "jformer.model.relative_positions:Alibi",
        "none": "jformer.model.positions:Positions",
    },
    "optimizer": {
        "adam": "jformer.training.optimizer",
        "adamw": "jformer.training.optimizer",
        "muon": "jformer.extras.muon",
    },
    "schedule": dict.fromkeys(
        ("equation_3", "inverse_sqrt", "linear", "cosine", "constant"), "jformer.training.schedules"
    ),
    "loss": {
        "cross_entropy": "jformer.training.loss",
        "cross_entropy_over_others": "jformer.extras.annotated",
    },
    "dataset": {
        "phrases": "jformer.data.datasets:open_phrases",
        **dict.fromkeys(NAMED_DATASETS, "jformer.data.datasets:open_named"),
        "hub": "jformer.data.datasets:open_named",
        "files": "jformer.data.datasets:open_split_files",
        "given": "jformer.data.datasets:open_given",
        "parsing": "jformer.extras.parsing.trees:open_treebank",
    },
    "tokenizer": {
        **dict.fromkeys(("byte_bpe", "unigram"), "jformer.data.vocabulary"),
        **dict.fromkeys(("words", "word_classes"), "jformer.extras.parsing.words"),
    },
    "vocabulary_file": {"sentencepiece": "jformer.extras.sentencepiece:from_sentencepiece"},
    "augmentation": {
        "bpe_dropout": "jformer.extras.bpe_dropout",
        "word_dropout": "jformer.extras.parsing.words",
    },
    "metric": {
        "bleu": "jformer.evaluation.scorer",
        "chrf": "jformer.evaluation.scorer",
        "f1": "jformer.extras.parsing.scorer",
    },
    "scorer": {
        "translation": "jformer.evaluation.scorer:Translations",
        "trees": "jformer.extras.parsing.scorer:Trees",
    },
    "search": {
        "beam": "jformer.decoding.beam:Beam",
        "sampling": "jformer.decoding.sampling:Sampling",
    },
    "constraint": {
        "none": "jformer.decoding.constraints:no_constraint",
        "terms": "jformer.extras.terms",
        "trees": "jformer.extras.parsing.constraint:well_formed",
    },
    "choice": {
        "score": "jformer.decoding.translate:highest_score",
        "mbr": "jformer.extras.mbr",
    },
}


@dataclasses.dataclass(frozen=True)
class Component:
    """A parsed string: the user's file (empty for a built-in part), the name and the options."""

    file: str
    name: str
    options: dict[str, Any]


@functools.cache
def parse(text: str) -> Component:
    """Parse `NAME`, `NAME(option=literal)` or `FILE.py:NAME(option=literal)`.

    Raises `ValueError` with the reason if the text is none of these.
    """
    match: Any = re.fullmatch(r"(?:([^()]+\.py):)?([A-Za-z_]\w*)(\(.*\))?", text.strip(), re.DOTALL)
    try:
        file, name, call = match.groups()
        node: Any = ast.parse(f"f{call or '()'}", mode="eval").body
        options = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        if node.args:
            raise ValueError
    except (AttributeError, SyntaxError, TypeError, ValueError):
        raise ValueError("must be NAME or FILE.py:NAME, with options as NAME(width=64)") from None
    return Component(file or "", name, options)


def name_of(text: str) -> str:
    """Return the name of a built-in part; empty for a part of the user's own."""
    component = parse(text)
    return "" if component.file else component.name


def split_list(text: str) -> list[str]:
    """Split a list of components at commas outside parentheses."""
    items: list[str] = []
    for part in text.split(","):
        if items and items[-1].count("(") > items[-1].count(")"):
            items[-1] += f",{part}"
        else:
            items.append(part)
    return [item.strip() for item in items if item.strip()]


def error_in(kind: str, text: str) -> str:
    """Return the error in the form or the name of a component; empty if it is valid.

    This imports nothing. `find` checks the options.
    """
    try:
        component = parse(text)
    except ValueError as error:
        return str(error)
    names = BUILT_IN[kind]
    if component.file or component.name in names:
        return ""
    return f"is unknown; write your own as FILE.py:NAME{nearest(component.name, names)}"


def find(key: str, kind: str, text: str) -> Any:
    """Return a component: a function with its options bound, or an instance of a class.

    `key` names the config key in messages. Raises `UserError` for an unknown option, and for a file
    that is not allowed or fails.
    """
    component = parse(text)
    part = attribute(kind, component)
    if reason := error_in_options(component.options, options_of(part)):
        raise UserError(f"{key}={text}: {reason}")
    function = naming_failures_in(component.file)(part) if component.file else part
    if not isinstance(part, type):
        return functools.partial(function, **component.options) if component.options else function
    instance = function(**component.options)
    if hasattr(instance, "check"):
        instance.check()
    return instance


def attribute(kind: str, component: Component) -> Any:
    """Return the function or the class that a component names."""
    if not component.file:
        module, _, name = BUILT_IN[kind][component.name].partition(":")
        return getattr(importlib.import_module(module), name or component.name)
    file, name = component.file, component.name
    if absolute(file) not in _allowed:
        raise UserError(f"{file}: Python code of a run; if you trust it, set --plugins=FILE")
    own = vars(sys.modules[absolute(file)])
    if name not in own:
        raise UserError(f"{file}: has no {name}{nearest(name, own)}")
    return own[name]


def options_of(part: Any) -> dict[str, inspect.Parameter]:
    """Return the options of a part: keyword-only arguments of a function, fields of a class."""
    parameters = inspect.signature(part).parameters.items()
    if isinstance(part, type):
        # Every flax module has the fields parent and name.
        return {name: x for name, x in parameters if name not in ("parent", "name")}
    return {name: x for name, x in parameters if x.kind is x.KEYWORD_ONLY}


def error_in_options(options: dict[str, Any], known: dict[str, inspect.Parameter]) -> str:
    """Describe an option that is unknown, missing or not among the words of its `Literal`."""
    for option, value in options.items():
        if option not in known:
            return f"unknown option {option}{nearest(option, known)}"
        kind = known[option].annotation
        if typing.get_origin(kind) is typing.Literal and value not in typing.get_args(kind):
            return f"{option} must be one of {typing.get_args(kind)}"
    for option, parameter in known.items():
        if parameter.default is parameter.empty and option not in options:
            return f"requires the option {parameter}"
    return ""


def arguments(kind: str, text: str) -> dict[str, Any]:
    """Return all options of a built-in component, including defaults."""
    component = parse(text)
    options = options_of(attribute(kind, component))
    defaults = {name: parameter.default for name, parameter in options.items()}
    return {**defaults, **component.options}


_allowed: dict[str, bytes] = {}  # the contents of the files that were run, by absolute path


def allow(file: str) -> None:
    """Run a Python file that the user has named, so that `find` finds its parts.

    A file runs once per process, which may last for hours while the file is edited.
    """
    path = absolute(file)
    if path in _allowed:
        return
    module = ModuleType(path)
    module.__file__ = path
    with naming_failures_in(path):
        content = Path(path).read_bytes()
        sys.modules[path] = module  # dataclasses, such as flax modules, look it up there
        exec(compile(content, path, "exec"), vars(module))
    _allowed[path] = content


def absolute(file: str) -> str:
    return os.path.abspath(os.path.expanduser(file))


def files_of(texts: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of the allowed files that component strings name, by their base names.

    A run stores copies by these names, so they must differ.
    """
    paths = [absolute(parse(item).file) for text in texts for item in split_list(text)]
    return {Path(path).name: _allowed[path] for path in paths if path in _allowed}


def hashes_of(texts: Iterable[str]) -> dict[str, str]:
    """Return `{file name: hash}` of the files of `files_of`."""
    return {name: hashlib.sha256(x).hexdigest()[:12] for name, x in files_of(texts).items()}


def without_folders(text: str, given: Mapping[str, str] = {}) -> str:
    """Return component strings with base names of files, or with the `given` path for a name."""
    items = []
    for item in split_list(text):
        file = parse(item).file
        name = Path(file).name
        items.append(given.get(name, name) + item[len(file) :])
    return ", ".join(items)


@contextlib.contextmanager
def naming_failures_in(path: str) -> Iterator[None]:
    """Turn an exception raised in a user's Python file into a `UserError` with its line number."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f":{at.lineno}" for at in frames if absolute(at.filename) == absolute(path)]
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{path}{''.join(lines[-1:])}: {message}") from error
