"""Report the versions, the devices and the optional packages that jformer finds on this machine."""

import importlib.metadata
import shutil
from collections.abc import Iterator

import jax

from jformer.config import DataConfig
from jformer.data.cache import cache_folder
from jformer.training.compilation import is_reliable
from jformer.training.provenance import versions

FEATURES = {
    "datasets": "data sets of the Hugging Face hub",
    "pyarrow": "Parquet files",
    "sentencepiece": "SentencePiece models as vocabularies",
    "protobuf": "SentencePiece models as vocabularies",
    "matplotlib": "pictures: summary --plot, curves, attention",
    "plotly": "the page of report --output",
    "ctranslate2": "export --format=ctranslate2, translate --engine=ctranslate2",
    "flatbuffers": "export --format=stablehlo",
    "safetensors": "export --format=safetensors, export --format=transformers",
    "submitit": "sweeps on a cluster",
}


def findings() -> Iterator[str]:
    """Yield a line for each version, device and package: its name, then what was found."""
    for name, version in versions().items():
        if name not in ("backend", "device"):
            yield line(name, version)
    for device in jax.local_devices():
        memory = (device.memory_stats() or {}).get("bytes_limit")
        limit = f", {memory / 1e9:.0f} GB" if memory else ""
        yield line(f"device {device.id}", f"{device.device_kind} ({device.platform}){limit}")
    if jax.default_backend() == "cpu" and shutil.which("nvidia-smi"):
        yield line("", "an NVIDIA GPU is there, and JAX is without CUDA: pip install 'jax[cuda13]'")
    folder = cache_folder(DataConfig())
    yield line("cache", f"{folder}, {'there' if folder.exists() else 'made when it is needed'}")
    kept = "kept" if is_reliable() else "not kept unless config.compilation_cache=on"
    yield line("compiled", f"{folder / 'xla'}, {kept}")
    for package, feature in FEATURES.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = f"missing: pip install {package}"
        yield line(package, f"{found}  ({feature})")


def line(name: str, found: str) -> str:
    return f"{name:<18}{found}"
