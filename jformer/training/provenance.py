"""The origin of a checkpoint: its config, the text and the versions of the software.

Every checkpoint records them, and changes since then are reported. A run resumes only with the
config and the text that it began with. Other versions, which may round differently, are allowed.
"""

import ast
import dataclasses
import functools
import hashlib
import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import jax
from flax.traverse_util import flatten_dict

from jformer import components
from jformer.config import Config
from jformer.console import say
from jformer.errors import UserError
from jformer.rundir import CONFIG, VOCABULARY
from jformer.schema import flatten, walk, walk_components
from jformer.training.optimizer import depends_on_train_steps
from jformer.version import __version__

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "babel",  # words the phrases of other languages than English and German
    "tokenizers",
    "sacrebleu",
)

Hashes = list[tuple[str, str]]  # name of a text file, hash of its content


def versions(config: Config) -> dict[str, str]:
    """Return the versions of the software, hashes of source code, the backend and the device."""
    return {
        "jformer": __version__,
        "source": source_hash(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        **component_hashes(config),
        "backend": jax.default_backend(),
        "device": jax.local_devices()[0].device_kind,
    }


def component_hashes(config: Config) -> dict[str, str]:
    """Return `{file name: hash}` of the user's component files that are in use."""
    texts = [text for _, _, text in walk_components(config)]
    return {name: file.hash for name, file in components.files_of(texts).items()}


@functools.cache
def source_hash(package: Path = Path(__file__).parents[1]) -> str:
    """Return a hash of the package's source code, by which an edited copy is recognized.

    It is a hash of the syntax trees without docstrings: a comment or a line break changes nothing.
    """
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not name.startswith("configs/"):  # only a wheel has them here; each run has its config
            digest.update(name.encode())
            add_syntax(digest, ast.parse(path.read_bytes()))
    return digest.hexdigest()[:12]


def add_syntax(digest: Any, node: Any) -> None:
    """Add the types and the values of a syntax tree, the same ones under any version of Python.

    `ast.dump` does not serve: versions differ in the empty fields that they print.
    """
    if isinstance(node, list):
        for item in node:
            add_syntax(digest, item)
    elif isinstance(node, ast.AST):
        digest.update(b"(" + type(node).__name__.encode())
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(value, list) and value and is_docstring(value[0]):
                value = value[1:]
            if value not in (None, []):
                digest.update(name.encode())
                add_syntax(digest, value)
        digest.update(b")")
    else:
        digest.update(repr(node).encode())


def is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def changed_versions(before: dict[str, str], config: Config) -> str:
    """Return the versions that differ from `before`: `jax 0.10.2, now 0.12.0`; empty if none."""
    now = versions(config)
    names = [name for name in now if name in before and before[name] != now[name]]
    return "; ".join(f"{name} {before[name]}, now {now[name]}" for name in names)


def warn_of_changed_components(metadata: dict[str, Any], config: Config, workdir: Path) -> None:
    """Print a line for each component file that differs from the one used for training."""
    recorded = metadata.get("versions", {})
    for name, content in component_hashes(config).items():
        if recorded.get(name, content) != content:
            say(f"{name}: has changed since {workdir} was trained with it; its outputs may differ")


def changed_keys(before: dict[str, Any], now: Config, fixed: str = "") -> list[str]:
    """Return the keys that make `now` another run than the stored config `before`.

    Each comes with both values. A key missing in `before` was added later: it had its default. The
    key `fixed` may not change although it is resumable. The folder of a component file may.
    """
    stored = {**flatten(Config()), **flatten_dict(before, sep=".")}

    def comparable(field: dataclasses.Field, value: Any) -> Any:
        return components.without_folders(value) if field.metadata.get("component") else value

    return [
        f"config.{key} was {stored[key]!r}, now {value!r}"
        + (", and the learning-rate schedule depends on it" if key == fixed else "")
        for key, field, value in walk(now)
        if comparable(field, stored[key]) != comparable(field, value)
        and (key == fixed or not field.metadata["resumable"])
    ]


def describe(config: Config, vocabulary_hash: str) -> dict[str, Any]:
    """Return the metadata of a checkpoint."""
    return {
        "config": dataclasses.asdict(config),
        "vocabulary_hash": vocabulary_hash,
        "versions": versions(config),
    }


def check_vocabulary(metadata: dict[str, Any], vocabulary_hash: str, workdir: Path) -> None:
    """Raise `UserError` if a checkpoint was trained with another vocabulary than its run has."""
    if metadata["vocabulary_hash"] != vocabulary_hash:
        raise UserError(
            f"{workdir}/{VOCABULARY}: not the vocabulary that the checkpoints beside it were "
            f"trained with; put that one back, or choose another workdir"
        )


def check_config(metadata: dict[str, Any], config: Config, workdir: Path, step: int) -> None:
    """Raise `UserError` if a checkpoint was trained with another config than its run has."""
    # A schedule in a file of the user's is not run here.
    built_in = bool(components.name_of(config.optimizer.schedule))
    fixed = "train.steps" if built_in and depends_on_train_steps(config) else ""
    if changed := changed_keys(metadata["config"], config, fixed):
        raise UserError(
            f"{workdir}/{CONFIG}: not the config that the checkpoint of step {step} was trained "
            f"with: {'; '.join(changed)}. Put that one back"
        )
