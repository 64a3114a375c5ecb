"""Components: the parts of a run that its config names by a string.

    dot_product                        built in
    muon(momentum=0.9)                 with options, each a keyword and a Python literal
    window.py:SlidingWindow(width=64)  a class or a function in a file of your own

Built-in parts, extras and your own parts are found by the same function, `find`. The table
`BUILT_IN` names them, and they are imported when they are used. docs/components.md has the
signature of each kind.

Options are parsed and never evaluated. They are the keyword-only arguments of a function, or the
fields of a class. A file is run only after `allow`: commands allow the files that the user's own
config or --plugins names, so that opening a stored run never runs code on its own.
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

from jformer.console import say
from jformer.errors import UserError, nearest

NAMED_DATASETS = ("multi30k", "iwslt14", "iwslt17", "wmt14", "wmt16", "tatoeba")
BUILT_IN: dict[str, dict[str, str]] = {
    "attention": {"dot_product": "jformer.model.attention:attend"},
    "norm": {
        "layer_norm": "jformer.model.layers:LayerNorm",
        "sample_layer_norm": "jformer.extras.annotated:SampleLayerNorm",
    },
    "activation": {
        "relu": "jformer.model.numerics:relu",
        "gelu": "jformer.model.layers:gelu",
        "silu": "jformer.model.layers:silu",
    },
    "positions": {
        "sinusoidal": "jformer.model.positions:Sinusoidal",
        "halves": "jformer.extras.halves:Halves",
        "learned": "jformer.model.positions:Learned",
        "relative": "jformer.model.positions:Relative",
        "rotary": "jformer.model.positions:Rotary",
        "alibi": "jformer.model.positions:Alibi",
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
        "cross_entropy": "jformer.training.fast_loss:cross_entropy",
        "cross_entropy_over_others": "jformer.extras.annotated:cross_entropy_over_others",
    },
    "dataset": {
        "phrases": "jformer.data.datasets:open_phrases",
        **dict.fromkeys(NAMED_DATASETS, "jformer.data.datasets:open_named"),
        "hub": "jformer.data.datasets:open_named",
        "files": "jformer.data.datasets:open_split_files",
        "given": "jformer.data.datasets:open_given",
        "parsing": "jformer.extras.parsing.treebank:open_treebank",
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
        "none": "jformer.decoding.search:no_constraint",
        "terms": "jformer.extras.terms:terms",
        "trees": "jformer.extras.parsing.brackets:well_formed",
    },
    "choice": {
        "score": "jformer.decoding.translate:highest_score",
        "mbr": "jformer.extras.mbr:mbr",
    },
}


@dataclasses.dataclass(frozen=True)
class Component:
    """A parsed string: the user's file, or "" for a built-in part, the name and the options."""

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
            node = ast.parse(f"f{call}", mode="eval").body
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                raise ValueError
            if node.args or not all(k.arg for k in node.keywords):
                raise ValueError
            options = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        except (SyntaxError, TypeError, ValueError):
            raise ValueError("options must be keywords with literals, as in width=64") from None
    return Component(file or "", name, options)


def name_of(text: str) -> str:
    """Return the name of a built-in part; empty for a part of the user's own."""
    try:
        component = parse(text)
    except ValueError:
        return ""
    return "" if component.file else component.name


def split_list(text: str) -> list[str]:
    """Split a list of components at the commas outside brackets and quotes."""
    items, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth and not quote:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items if item.strip()]


def error_in(kind: str, text: str) -> str:
    """Return what is wrong with the form or the name of a component; empty if nothing.

    Nothing is imported for this. `find` also checks the options and looks into the user's file.
    """
    try:
        component = parse(text)
    except ValueError as error:
        return str(error)
    names = BUILT_IN[kind]
    if component.file or component.name in names:
        return ""
    return f"is unknown, and your own must be FILE.py:NAME{nearest(component.name, names)}"


def find(key: str, kind: str, text: str) -> Any:
    """Return a component: a function with its options bound, or an instance of a class.

    `key` names the config key in messages. Raises `UserError` for a wrong form, an unknown name
    or option, and a file that cannot be run.
    """
    if reason := error_in(kind, text):
        raise UserError(f"{key}={text}: {reason}")
    component = parse(text)
    part = attribute(key, kind, component)
    if reason := error_in_options(component.options, part):
        raise UserError(f"{key}={text}: {reason}")
    if isinstance(part, type):
        with naming_failures_in(component.file):
            part = part(**component.options)
        if component.options and hasattr(part, "check"):
            part.check()
        return part
    if component.file:
        part = naming_failures_of(part, component.file)
    return functools.partial(part, **component.options) if component.options else part


def error_in_options(options: dict[str, Any], part: Any) -> str:
    """Return what is wrong with the options that a part is given; empty if nothing."""
    known, types = options_of(part), types_of(part)
    for option, value in options.items():
        if option not in known:
            return f"unknown option {option}{nearest(option, known) if known else '; it has none'}"
        kind = types.get(option, type(known[option]))
        if typing.get_origin(kind) is typing.Literal and value not in typing.get_args(kind):
            return f"{option}={value!r}: must be one of {', '.join(typing.get_args(kind))}"
        accepted = [kind, *typing.get_args(kind)]  # of int | None both
        simple = {bool, int, float, str} & {*accepted}
        if float in accepted:
            accepted.append(int)
        if simple and type(value) not in accepted:
            return f"{option}={value!r}: must be {getattr(kind, '__name__', kind)}"
    missing = [name for name, d in known.items() if any(d is none for none in NO_DEFAULT)]
    for option in missing:
        if option not in options:
            return f"needs the option {option}"
    return ""


def arguments(kind: str, text: str) -> dict[str, Any]:
    """Return all options of a built-in component, those not given with their defaults."""
    component = parse(text)
    part = attribute("", kind, component)
    if reason := error_in_options(component.options, part):
        raise UserError(f"the {kind} {text}: {reason}")
    return {**options_of(part), **component.options}


def attribute(key: str, kind: str, component: Component) -> Any:
    """Return the function or the class that a component names."""
    if not component.file:
        module, _, name = BUILT_IN[kind][component.name].partition(":")
        return getattr(importlib.import_module(module), name)
    try:
        own = load(component.file)
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
    # Only what the file defines, or a flax module that it imports: a stored run that names another
    # function of a library would call it with options of its own.
    usable = {name: x for name, x in vars(own).items() if is_usable(x, own)}
    part = usable.get(component.name)
    if part is None:
        hint = nearest(component.name, usable) if usable else ""
        raise UserError(f"{key}: {component.file} has no function or class {component.name}{hint}")
    return part


def is_usable(part: Any, module: ModuleType) -> bool:
    """Return whether a file's attribute can be a component."""
    if getattr(part, "__module__", "") == module.__name__:
        return callable(part)
    return isinstance(part, type) and part.__module__.partition(".")[0] == "flax"


NO_DEFAULT = (inspect.Parameter.empty, dataclasses.MISSING)


def options_of(part: Any) -> dict[str, Any]:
    """Return the options of a part with their defaults: keyword-only arguments, or fields."""
    if dataclasses.is_dataclass(part):
        fields = [field for field in dataclasses.fields(part) if field.init]
        # Every flax module has the fields parent and name.
        options = {f.name: f for f in fields if f.name not in ("parent", "name")}
        made = dataclasses.MISSING
        return {
            name: f.default if f.default_factory is made else f.default_factory()
            for name, f in options.items()
        }
    parameters = inspect.signature(part).parameters.values()
    kinds: list[Any] = [inspect.Parameter.KEYWORD_ONLY]
    if isinstance(part, type):
        kinds.append(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {each.name: each.default for each in parameters if each.kind in kinds}


def types_of(part: Any) -> dict[str, Any]:
    """Return the annotated types of a part's options."""
    try:
        return typing.get_type_hints(part)
    except (AttributeError, NameError, SyntaxError, TypeError):  # of a user's annotations
        return {}


_allowed: set[str] = set()  # absolute paths
_reported: set[str] = set()  # of files that have changed since they were run


def allow(file: str) -> None:
    """Let `find` run a file: the user has named it."""
    _allowed.add(os.path.abspath(os.path.expanduser(file)))


def load(file: str) -> ModuleType:
    """Return the module of a user's file, run once per process; it must be allowed."""
    path = os.path.abspath(os.path.expanduser(file))
    if path not in _allowed:
        raise UserError(
            f"{file}: is Python code that the config names. If you trust it, name it with "
            f"--plugins={file}, or in Python plugins=[{file!r}]"
        )
    loaded = run_file(path)
    if Path(path).exists() and Path(path).read_bytes() != loaded.content and path not in _reported:
        _reported.add(path)
        say(f"{file}: has changed since this process ran it; restart to use the new version")
    return loaded.module


@dataclasses.dataclass(frozen=True)
class File:
    content: bytes
    module: ModuleType

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:12]


@functools.cache
def run_file(path: str) -> File:
    """Run a Python file as an import does, once per process."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    module = ModuleType(f"jformer_component_{hashlib.sha256(path.encode()).hexdigest()[:8]}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses, such as flax modules, look it up there
    with naming_failures_in(path):
        exec(compile(content, path, "exec"), vars(module))
    return File(content, module)


def files_of(texts: Iterable[str]) -> dict[str, File]:
    """Return the allowed files that component strings name, by their base names.

    Raises `UserError` for two files of one name: a run keeps copies by their names.
    """
    files: dict[str, File] = {}
    paths: dict[str, str] = {}
    for text in texts:
        for item in split_list(text):
            file = parse(item).file
            path = os.path.abspath(os.path.expanduser(file))
            if not file or path not in _allowed:
                continue
            name = Path(file).name
            if paths.setdefault(name, path) != path:
                raise UserError(f"{path} and {paths[name]} have the same name; rename one of them")
            files[name] = run_file(path)
    return files


def with_file(text: str, rename: Callable[[str], str]) -> str:
    """Return a component string, or a list of them, with another path of each file."""
    items = []
    for item in split_list(text):
        file = parse(item).file
        items.append(rename(file) + item[len(file) :] if file else item)
    return ", ".join(items)


def without_folders(text: str) -> str:
    """Return a component string with the base names of its files, to compare two configs."""
    return with_file(text, lambda file: Path(file).name)


def naming_failures_of(part: Any, file: str) -> Any:
    """Return a user's function, whose exceptions become a `UserError` with the line number."""

    signature = inspect.signature(part)

    @functools.wraps(part)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            signature.bind(*arguments, **options)
        except TypeError as error:
            raise UserError(
                f"{file}: {part.__name__}{signature}: {error}; docs/components.md has the arguments"
            ) from error
        with naming_failures_in(file):
            return part(*arguments, **options)

    return call


@contextlib.contextmanager
def naming_failures_in(path: str) -> Iterator[None]:
    """Turn an exception raised in a user's Python file into a `UserError` with its line number."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        lines = [(at.filename, at.lineno) for at in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError):
            lines.append((error.filename or "", error.lineno))
        absolute = os.path.abspath(path)
        numbers = [number for name, number in lines if os.path.abspath(name) == absolute]
        if not path or not numbers:
            raise
        message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(f"{path}:{numbers[-1]}: {message}") from error
