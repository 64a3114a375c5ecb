"""Show versions, devices and optional packages, and how to install missing packages."""

import importlib.metadata
import platform
import shutil
from collections.abc import Iterator
from typing import Any

from jformer import __version__, cli
from jformer.backend import cache_folder

OPTIONAL = {
    "datasets": "data sets of the Hugging Face hub, Parquet files",
    "sentencepiece": "SentencePiece models as vocabularies",
    "protobuf": "SentencePiece models as vocabularies",
    "matplotlib": "pictures of attention and learning curves",
    "plotly": "the page of report --output",
    "ctranslate2": "export --format=ctranslate2",
    "safetensors": "export --format=safetensors, export --format=transformers",
    "submitit": "sweeps on a cluster",
}


def add_flags(parser: cli.Parser) -> None:
    """Declare no flags."""


def main(args: Any) -> int:
    for name, finding in findings():
        print(f"{name:<18}{finding}")
    return 0


def findings() -> Iterator[tuple[str, str]]:
    """Yield the name and the version or state of each package, folder and device."""
    from jformer.training.provenance import PACKAGES, source_hash

    yield "jformer", f"{__version__}, source {source_hash()}"
    yield "python", platform.python_version()
    for package in PACKAGES:
        yield package, version(package)
    for package, feature in OPTIONAL.items():
        yield package, f"{version(package)}  ({feature})"
    cache = cache_folder()
    yield "cache", str(cache)
    yield "compiled", f"{cache / 'xla'}, on a CPU only if config.compilation_cache=on"
    yield from devices()


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"missing: pip install {package}"


def devices() -> Iterator[tuple[str, str]]:
    import jax

    try:
        found = jax.local_devices()
    except Exception as error:  # noqa: BLE001  JAX's errors have no common class
        yield "devices", f"failed: {' '.join(str(error).split())}"
        return
    for device in found:
        yield f"device {device.id}", f"{device.device_kind} ({device.platform})"
    if found[0].platform == "cpu" and shutil.which("nvidia-smi"):
        yield "", "NVIDIA GPU found, but this JAX lacks CUDA: pip install 'jax[cuda13]'"
