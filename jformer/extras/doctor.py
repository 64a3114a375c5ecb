"""Report the versions, the devices and the optional packages that jformer finds on this machine.

The installation may be broken: a failing check becomes a line with the reason.
"""

import importlib.metadata
import platform
import shutil
from collections.abc import Callable, Iterator

import jax

from jformer.config import DataConfig
from jformer.data.tokens import cache_folder
from jformer.training.provenance import PACKAGES, source_hash
from jformer.version import __version__

FEATURES = {
    "datasets": "data sets of the Hugging Face hub, Parquet files",
    "sentencepiece": "SentencePiece models as vocabularies",
    "protobuf": "SentencePiece models as vocabularies",
    "matplotlib": "pictures of attention and learning curves",
    "plotly": "the page of report --output",
    "ctranslate2": "export --format=ctranslate2",
    "flatbuffers": "programs of jax.export",
    "safetensors": "export --format=safetensors, export --format=transformers",
    "submitit": "sweeps on a cluster",
}


def findings() -> Iterator[str]:
    """Yield a line for each version, device and package: its name, then the finding."""
    yield line("jformer", f"{__version__}, source {source_hash()}")
    yield line("python", platform.python_version())
    for package in PACKAGES:
        yield line(package, version(package))
    yield from surviving("device", devices)
    yield from surviving("cache", caches)
    for package, feature in FEATURES.items():
        yield line(package, f"{version(package)}  ({feature})")


def surviving(name: str, check: Callable[[], list[str]]) -> list[str]:
    """Return the lines of a check, or one line with the reason why it failed."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001  the other lines help to find the cause
        reason = str(error).strip() or repr(error)
        return [line(name, f"failed: {reason.splitlines()[0]}")]


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"missing: pip install {package}"


def devices() -> list[str]:
    lines = []
    for device in jax.local_devices():
        memory = (device.memory_stats() or {}).get("bytes_limit")
        found = f"{device.device_kind} ({device.platform})"
        found += f", {memory / 1e9:.0f} GB" if memory else ""
        lines.append(line(f"device {device.id}", found))
    if jax.default_backend() == "cpu" and shutil.which("nvidia-smi"):
        hint = "NVIDIA GPU found, but this JAX lacks CUDA: pip install 'jax[cuda13]'"
        lines.append(line("", hint))
    return lines


def caches() -> list[str]:
    folder, kept = cache_folder(DataConfig()), "kept"
    if jax.default_backend() == "cpu":
        kept = "not kept unless config.compilation_cache=on"
    created = "exists" if folder.exists() else "created when needed"
    return [line("cache", f"{folder}, {created}"), line("compiled", f"{folder / 'xla'}, {kept}")]


def line(name: str, found: str) -> str:
    return f"{name:<18}{found}"
