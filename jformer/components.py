"""Components: the parts of a run that its config names by a string.

    dot_product                        built in
    muon(momentum=0.9)                 with options, each a keyword and a Python literal
    window.py:SlidingWindow(width=64)  a class or a function in a file of your own

`find` resolves built-in parts, extras and your own parts. The table `BUILT_IN` lists the built-in
parts and extras, which are imported on first use. docs/components.md has the signature of each
kind.

Options are parsed and never evaluated. They are the keyword-only arguments of a function, or the
fields of a class. A file is run only after `allow`: commands allow the files that the user's own
config or --plugins names. Opening a stored run therefore never runs code by itself.
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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from jformer.errors import UserError, nearest

NAMED_DATASETS = ("multi30k", "iwslt14", "iwslt17", "wmt14", "wmt16", "tatoeba")
BUILT_IN: dict[str, dict[str, str]] = {
    "attention": {"dot_product": "jformer.model.attention:attend"},
    "norm": {
        "layer_norm": "flax.linen:LayerNorm",
        "sample_layer_norm": "jformer.extras.annotated:SampleLayerNorm",
    },
    "activation": {
        "relu": "jformer.model.numerics:relu",
        "gelu": "jformer.model.numerics:gelu",
        "silu": "flax.linen:silu",
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
        "adam": "jformer.training.optimizer:adam",
        "adamw": "jformer.training.optimizer:adamw",
        "muon": "jformer.extras.muon:muon",
    },
    "schedule": {
        "equation_3": "jformer.training.schedules:equation_3",
        "inverse_sqrt": "jformer.training.schedules:inverse_sqrt",
        "linear": "jformer.training.schedules:linear",
        "cosine": "jformer.training.schedules:cosine",
        "constant": "jformer.training.schedules:constant",
    },
    "loss": {
        "cross_entropy": "jformer.training.loss:cross_entropy",
        "cross_entropy_over_others": "jformer.extras.annotated:cross_entropy_over_others",
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
        "byte_bpe": "jformer.data.vocabulary:byte_bpe",
        "unigram": "jformer.data.vocabulary:unigram",
        "words": "jformer.extras.parsing.words:words",
        "word_classes": "jformer.extras.parsing.words:word_classes",
    },
    "vocabulary_file": {"sentencepiece": "jformer.extras.sentencepiece:from_sentencepiece"},
    "augmentation": {
        "bpe_dropout": "jformer.extras.bpe_dropout:bpe_dropout",
        "word_dropout": "jformer.extras.parsing.words:word_dropout",
    },
    "metric": {
        "bleu": "jformer.evaluation.metrics:bleu",
        "chrf": "jformer.evaluation.metrics:chrf",
        "f1": "jformer.extras.parsing.scorer:f1",
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
        "terms": "jformer.extras.terms:terms",
        "trees": "jformer.extras.parsing.constraint:well_formed",
    },
    "choice": {
        "score": "jformer.decoding.translate:highest_score",
        "mbr": "jformer.extras.mbr:mbr",
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
    match = re.fullmatch(r"(?:([^()]+\.py):)?([A-Za-z_]\w*)(\(.*\))?", text.strip(), re.DOTALL)
    if not match:
        raise ValueError("must be NAME or FILE.py:NAME, with options as in NAME(width=64)")
    file, name, call = match.groups()
    options = {}
    if call:
        try:
            node: Any = ast.parse(f"f{call}", mode="eval").body
            if node.args:
                raise ValueError
            options = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        except (AttributeError, SyntaxError, TypeError, ValueError):
            raise ValueError("options must be keywords with literals, as in width=64") from None
    return Component(file or "", name, options)


def name_of(text: str) -> str:
    """Return the name of a built-in part; empty for a part of the user's own."""
    component = parse(text)
    return "" if component.file else component.name


def split_list(text: str) -> list[str]:
    """Split a list of components at commas outside parentheses."""
    items, item = [], ""
    for part in text.split(","):
        item += part
        if item.count("(") == item.count(")"):
            items.append(item.strip())
            item = ""
        else:
            item += ","
    return [item for item in [*items, item] if item]


def error_in(kind: str, text: str) -> str:
    """Return the error in the form or the name of a component; empty if it is valid.

    This imports nothing. `find` also checks the options and the user's file.
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

    `key` names the config key in messages. Raises `UserError` for a wrong form, an unknown name
    or option, and a file that cannot be run.
    """
    if reason := error_in(kind, text):
        raise UserError(f"{key}={text}: {reason}")
    component = parse(text)
    part = attribute(kind, component, f"{key}={text}")
    check_options(component.options, part, f"{key}={text}")
    function = naming_failures_in(component.file)(part) if component.file else part
    if not isinstance(part, type):
        return functools.partial(function, **component.options) if component.options else function
    instance = function(**component.options)
    if hasattr(instance, "check"):
        instance.check()
    return instance


def attribute(kind: str, component: Component, named_by: str) -> Any:
    """Return the function or the class that a component names."""
    if not component.file:
        module, _, name = BUILT_IN[kind][component.name].partition(":")
        return getattr(importlib.import_module(module), name)
    own = vars(load(component.file, named_by))
    if component.name not in own:
        raise UserError(f"{component.file}: has no {component.name}{nearest(component.name, own)}")
    return own[component.name]


def options_of(part: Any) -> dict[str, inspect.Parameter]:
    """Return the options of a part: keyword-only arguments of a function, fields of a class."""
    parameters = inspect.signature(part).parameters.values()
    kinds: list[Any] = [inspect.Parameter.KEYWORD_ONLY]
    if isinstance(part, type):
        kinds.append(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # Every flax module has the fields parent and name.
    return {x.name: x for x in parameters if x.kind in kinds and x.name not in ("parent", "name")}


def check_options(options: dict[str, Any], part: Any, named_by: str) -> None:
    """Raise `UserError` for an option that is unknown, missing or of a wrong simple type."""
    known = options_of(part)
    for option, value in options.items():
        if option not in known:
            raise UserError(f"{named_by}: unknown option {option}{nearest(option, known)}")
        if not fits(value, known[option].annotation):
            raise UserError(f"{named_by}: wrong value of the option {known[option]}")
    for option, parameter in known.items():
        if parameter.default is parameter.empty and option not in options:
            raise UserError(f"{named_by}: requires the option {parameter}")


def fits(value: Any, kind: Any) -> bool:
    """Return whether a literal has the annotated type; only simple types are checked."""
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if kind is float:
        return type(value) in (int, float)
    return kind not in (bool, int, str) or type(value) is kind


def arguments(kind: str, text: str) -> dict[str, Any]:
    """Return all options of a built-in component, including defaults."""
    component = parse(text)
    options = options_of(attribute(kind, component, text))
    defaults = {name: parameter.default for name, parameter in options.items()}
    return {**defaults, **component.options}


_allowed: set[str] = set()  # absolute paths


def allow(file: str) -> None:
    """Let `find` run a file that the user has named."""
    _allowed.add(absolute(file))


def absolute(file: str) -> str:
    return os.path.abspath(os.path.expanduser(file))


def load(file: str, named_by: str) -> ModuleType:
    """Return the module of a user's file, run once per process; it must be allowed."""
    if absolute(file) not in _allowed:
        raise UserError(
            f"{named_by}: is Python code. If you trust it, name it with --plugins={file}, or in "
            f"Python plugins=[{file!r}]; a run has a copy in components/"
        )
    return run_file(absolute(file))


@functools.cache
def read_file(path: str) -> bytes:
    """Read a user's file once per process, which may run for hours while the file is edited."""
    with naming_failures_in(path):
        return Path(path).read_bytes()


@functools.cache
def run_file(path: str) -> ModuleType:
    """Run a Python file as an import does, once per process."""
    module = ModuleType(f"jformer_component_{hashlib.sha256(path.encode()).hexdigest()[:8]}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses, such as flax modules, look it up there
    with naming_failures_in(path):
        exec(compile(read_file(path), path, "exec"), vars(module))
    return module


def files_of(texts: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of the allowed files that component strings name, by their base names.

    A run stores copies by these names, so they must differ.
    """
    items = [item for text in texts for item in split_list(text)]
    paths = [absolute(parse(item).file) for item in items]
    return {Path(path).name: read_file(path) for path in paths if path in _allowed}


def hashes_of(texts: Iterable[str]) -> dict[str, str]:
    """Return `{file name: hash}` of the files of `files_of`."""
    files = files_of(texts).items()
    return {name: hashlib.sha256(content).hexdigest()[:12] for name, content in files}


def with_file(text: str, rename: Callable[[str], str]) -> str:
    """Return a component string, or a list of them, with the paths of files replaced."""
    items = []
    for item in split_list(text):
        file = parse(item).file
        items.append(rename(file) + item[len(file) :] if file else item)
    return ", ".join(items)


def without_folders(text: str) -> str:
    """Return a component string with the base names of its files, to compare two configs."""
    return with_file(text, lambda file: Path(file).name)


@contextlib.contextmanager
def naming_failures_in(path: str) -> Iterator[None]:
    """Turn an exception raised in a user's Python file into a `UserError` with its line number."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        frames, own = traceback.extract_tb(error.__traceback__), absolute(path)
        lines = [f":{at.lineno}" for at in frames if os.path.abspath(at.filename) == own]
        message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(f"{path}{''.join(lines[-1:])}: {message}") from error
