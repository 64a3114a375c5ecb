"""The origin of a checkpoint: its config, the text and the versions of the software.

Every checkpoint records them, and changes since then are reported. A run resumes only with the
config and the text that it began with. Other versions, which may round differently, are allowed.
"""

import dataclasses
import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import jax
from flax.traverse_util import flatten_dict

from jformer.config import Config, with_current_names
from jformer.console import say
from jformer.errors import UserError
from jformer.plugins import plugin_hashes
from jformer.rundir import CONFIG, VOCABULARY
from jformer.schema import flatten
from jformer.version import __version__

# Keys that may change when a run resumes; a change of any other key would make it another run.
MAY_CHANGE = (
    "train.steps",
    "train.accumulate",
    "train.loss_chunk",
    "train.log_every",
    "train.evaluate_every",
    "train.bleu_every",
    "train.bleu_pairs",
    "train.checkpoint_minutes",
    "train.keep_checkpoints",
    "train.keep_every",
    "train.patience",
    "train.init_from",
    "train.max_skipped",
    "train.damaged",
    "train.failed_save",
    "train.scored",
    "model.dtype",
    "model.attention_kernel",
    "model.remat",
    "model.scan_layers",
    "data.cache",
    "plugins",
    "compilation_cache",
    "parallel.",
    "decode.",
)
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


def versions(plugins: str = "") -> dict[str, str]:
    """Return the versions of the software and the hashes of plugins, the backend and the device."""
    return {
        "jformer": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        **plugin_hashes(plugins),
        "backend": jax.default_backend(),
        "device": jax.local_devices()[0].device_kind,
    }


def changed_versions(before: dict[str, str], plugins: str = "") -> str:
    """Return the versions that differ from `before`: `jax 0.10.2, now 0.12.0`; empty if none."""
    now = versions(plugins)
    names = [name for name in now if name in before and before[name] != now[name]]
    return "; ".join(f"{name} {before[name]}, now {now[name]}" for name in names)


def warn_of_changed_plugins(metadata: dict[str, Any], plugins: str, workdir: Path) -> None:
    """Print a line for each plugin that is not the one that a checkpoint was trained with."""
    recorded = metadata.get("versions", {})
    for name, content in plugin_hashes(plugins).items():
        if recorded.get(name, content) != content:
            say(f"{name}: has changed since {workdir} was trained with it; its outputs may differ")


def changed_keys(before: dict[str, Any], now: Config) -> list[str]:
    """Return the keys that make `now` another run than the stored config `before`.

    Each comes with both values. A key missing in `before` was added later: it had its default.
    """
    fixed = "train.steps" if now.optimizer.depends_on_train_steps else ""
    stored = {**flatten(Config()), **flatten_dict(with_current_names(before), sep=".")}
    return [
        f"config.{key} was {stored[key]!r}, now {value!r}"
        for key, value in flatten(now).items()
        if stored[key] != value and (key == fixed or not key.startswith(MAY_CHANGE))
    ]


def describe(config: Config, vocabulary_hash: str) -> dict[str, Any]:
    """Return the metadata of a checkpoint."""
    return {
        "config": dataclasses.asdict(config),
        "vocabulary_hash": vocabulary_hash,
        "versions": versions(config.plugins),
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
    if changed := changed_keys(metadata["config"], config):
        raise UserError(
            f"{workdir}/{CONFIG}: not the config that the checkpoint of step {step} was trained "
            f"with: {'; '.join(changed)}. Put that one back"
        )
