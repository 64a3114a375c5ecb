"""Records the origin of a run, and checks whether it may resume.

A run resumes only with the config and the text that it started with. Other versions of software,
which may round differently, are reported.
"""

import ast
import functools
import hashlib
import importlib.metadata
import platform
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jax

from jformer import __version__, components, rundir
from jformer.config import Config, write_config
from jformer.data.corpora import Corpus, Split, in_memory, require_file
from jformer.data.vocabulary import Vocabularies
from jformer.errors import UserError
from jformer.files import replace_file, sha256_of
from jformer.schema import flatten, walk, walk_components
from jformer.training.checkpoints import Checkpoints
from jformer.training.schedules import depends_on_train_steps

PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers", "sacrebleu")


def metadata(config: Config, vocabulary_hash: str) -> dict[str, Any]:
    """Return the metadata of a checkpoint."""
    return {"vocabulary_hash": vocabulary_hash, "versions": versions(config)}


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
    return components.hashes_of(text for _, _, text in walk_components(config))


@functools.cache
def source_hash(package: Path = Path(__file__).parents[1]) -> str:
    """Return a hash of the package's code, without comments and docstrings."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not name.startswith("configs/"):  # only a wheel has them, and each run stores its own
            tree = WithoutDocstrings().visit(ast.parse(path.read_bytes()))
            digest.update(f"{name}\n{ast.unparse(tree)}\n".encode())
    return digest.hexdigest()[:12]


class WithoutDocstrings(ast.NodeTransformer):
    """Removes expressions that are only a constant: docstrings and `...`."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def changed_versions(before: dict[str, str], config: Config) -> str:
    """Return the versions that differ from `before`: `jax 0.10.2, now 0.12.0`; empty if none."""
    now = versions(config)
    names = [name for name in now if before.get(name, now[name]) != now[name]]
    return "; ".join(f"{name} {before[name]}, now {now[name]}" for name in names)


def check_same_config(config: Config, workdir: Path) -> None:
    """Raise `UserError` that names differing keys if `workdir` contains a run with another config.

    Resumable keys and the folders of component files may differ.
    """
    if not Checkpoints(workdir).steps():
        return  # without a checkpoint the run starts from scratch
    before, differing = flatten(rundir.config_of(workdir)), []
    for key, field, now in walk(config):
        old = before[key]
        if field.metadata.get("component"):
            old, now = components.without_folders(old), components.without_folders(now)
        is_fixed = key == "train.steps" and depends_on_train_steps(config)
        if old != now and (is_fixed or not field.metadata["resumable"]):
            differing.append(f"config.{key} was {old!r}, now {now!r}")
    if differing:
        raise UserError(
            f"{workdir} contains a run with another config: {'; '.join(differing)}. "
            f"Choose another workdir, or restore these values"
        )


def text_hashes(config: Config, corpora: list[Corpus], validation: Split) -> list[tuple[str, str]]:
    """Return the names and hashes of training text, validation text and given vocabulary files."""
    name = f"the validation split {config.data.validation}".rstrip()
    hashes = [each for corpus in (*corpora, in_memory(name, validation)) for each in corpus.hashes]
    files = filter(None, config.data.vocabulary_files)
    return hashes + [(file, sha256_of(require_file(Path(file)))) for file in files]


def check_same_text(text: list[tuple[str, str]], workdir: Path) -> None:
    """Raise `UserError` that names a file if the run in `workdir` was trained with other text.

    `text` has the names and the hashes of the files.
    """
    before = Checkpoints(workdir).newest("position").get("text", text)
    for (old_name, old), (name, content) in zip_longest(before, text, fillvalue=("", "")):
        if old != content:
            raise UserError(
                f"{name or old_name}: has changed since the run in {workdir} was trained with it. "
                f"Restore it, or set config.train.init_from={workdir} in another workdir"
            )


def write_files(config: Config, vocabularies: Vocabularies, workdir: Path) -> None:
    """Write the config, copies of component files, and the vocabularies."""
    write_config(config, workdir / rundir.CONFIG)
    texts = [text for _, _, text in walk_components(config)]
    for name, content in components.files_of(texts).items():
        (workdir / rundir.COMPONENTS).mkdir(exist_ok=True)
        replace_file(workdir / rundir.COMPONENTS / name, content)
    vocabularies.save(workdir)


def is_trained(config: Config, workdir: Path) -> bool:
    """Return whether a run has completed its steps or stopped early."""
    checkpoints, patience = Checkpoints(workdir), config.train.patience
    position = checkpoints.newest("position")
    stopped_early = position.get("ended") and 0 < patience <= position["best"]["worse"]
    return bool(stopped_early) or max(checkpoints.steps(), default=0) >= config.train.steps


def is_complete(config: Config, workdir: Path) -> bool:
    """Return whether a run is trained and has decided which parameters to serve."""
    newest = max(Checkpoints(workdir).steps(), default=0)
    return bool(rundir.served_checkpoint(workdir, newest)) and is_trained(config, workdir)
