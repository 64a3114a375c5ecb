"""Known devices, and the cost of a train step on them as reported by their own compilers.

The devices need not be present: JAX's plugins for them (the extra `targets`) suffice. XLA reports
the memory, and the bytes that the device would move. Autotuning and timing require the device, so
the times here are rooflines.
"""

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
from jax._src.lib import _jax  # its cost analysis of a program has no public name

from jformer.backend import compiling_for
from jformer.config import Config
from jformer.data.batches import rows_that_fit
from jformer.errors import UserError, explaining_out_of_memory, nearest
from jformer.extras.cost import trace_step
from jformer.training.flops import sheet_flops, step_flops

# Fraction of the data sheet's peak that large products reach.
REACHED = 0.8


@dataclasses.dataclass(frozen=True)
class Device:
    """A kind of device by its data sheet. Rates are per second, for one chip."""

    platform: str  # "gpu" or "tpu"
    kind: str  # as JAX names it
    memory: float  # bytes
    bandwidth: float  # bytes of its memory
    capability: float = 0  # a GPU's architecture by NVIDIA's count
    cores: int = 0  # a GPU's multiprocessors
    cache: int = 0  # bytes of a GPU's L2

    @property
    def speed(self) -> float:
        """Operations of bfloat16 products."""
        flops = sheet_flops(self.kind)
        assert flops is not None
        return flops


DEVICES = {
    "a100": Device("gpu", "NVIDIA A100-SXM4-80GB", 80e9, 2039e9, 8.0, 108, 40 << 20),
    "h100": Device("gpu", "NVIDIA H100 80GB HBM3", 80e9, 3350e9, 9.0, 132, 50 << 20),
    "h200": Device("gpu", "NVIDIA H200", 141e9, 4800e9, 9.0, 132, 50 << 20),
    "v5e": Device("tpu", "TPU v5e", 16e9, 819e9),
    "v5p": Device("tpu", "TPU v5p", 95e9, 2765e9),
    "v6e": Device("tpu", "TPU v6e", 32e9, 1640e9),
}
# The slices that libtpu describes, by number of chips.
SLICES = {
    "v5e": {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"},
    "v5p": {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8"},
}
SLICES["v6e"] = SLICES["v5e"]
# The module of JAX's plugin, and the package that installs it.
PLUGINS = {"gpu": ("jax_cuda13_plugin", "jax[cuda13]"), "tpu": ("libtpu", "jax[tpu]")}


@dataclasses.dataclass(frozen=True)
class Target:
    kind: str  # a key of DEVICES
    chips: int

    @property
    def device(self) -> Device:
        return DEVICES[self.kind]

    @property
    def name(self) -> str:
        return self.kind if self.chips == 1 else f"{self.kind}-{self.chips}"


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a compiled train step on one chip."""

    target: Target
    state: int  # bytes of parameters and optimizer, and of the batch
    temporaries: int  # bytes
    flops: float  # of products
    other_bytes: float  # to and from memory, in all kernels except the products of libraries

    @property
    def memory(self) -> int:
        return self.state + self.temporaries

    @property
    def compute_seconds(self) -> float:
        """The roofline: no step is faster. The exchange between chips is left out.

        A GPU runs its kernels one after another: products at REACHED of the peak, and all others
        at the bandwidth of its memory. A TPU overlaps the others with its products.
        """
        device = self.target.device
        products = self.flops / (REACHED * device.speed)
        others = self.other_bytes / device.bandwidth if device.platform == "gpu" else 0
        return products + others


def parse_target(name: str) -> Target:
    """Return the target of a name: `h100`, or `v5e-8` for a slice of eight chips."""
    kind, _, count = name.partition("-")
    if kind not in DEVICES or not (count or "1").isdecimal():
        reason = f"unknown device{nearest(kind, DEVICES)}"
        raise UserError(f"--target={name}: {reason}; must be DEVICE or DEVICE-CHIPS, as h100-8")
    chips = int(count or 1)
    if kind in SLICES and chips not in (1, *SLICES[kind]):
        sizes = ", ".join(map(str, SLICES[kind]))
        raise UserError(f"--target={name}: a slice of {kind} has 1, {sizes} chips")
    return Target(kind, chips)


def described_devices(target: Target) -> list:
    """Return devices to compile for; `UserError` if JAX's plugin for them is missing."""
    from jax.experimental import topologies

    device, kind = target.device, target.kind
    module, package = PLUGINS[device.platform]
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{kind}: requires its compiler: pip install '{package}'")
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # without a driver
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # or a metadata server
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    if device.platform == "gpu":
        topology = topologies.get_topology_desc(
            kind,
            platform="cuda",
            target_config=gpu_description(device),
            topology=f"1x1x{target.chips}",
        )
    else:
        # A single chip is part of the smallest slice.
        shape = SLICES[kind][max(target.chips, 4)]
        topology = topologies.get_topology_desc(f"{kind}:{shape}", platform="tpu")
    return topology.devices[: target.chips]


def compile_step(config: Config, target: Target, tokens: int, length: int) -> Cost:
    """Compile the train step of a batch of `tokens` per side, in rows of `length`, for a target."""
    devices, rows = described_devices(target), rows_that_fit(tokens, length)
    with compiling(target):
        compiled = lower_step(config, target, devices, rows, length).compile(
            {"xla_gpu_autotune_level": 0} if target.device.platform == "gpu" else {}
        )
    memory = compiled.memory_analysis()
    # For an absent device, `compiled.cost_analysis()` returns None. This analysis omits the
    # products of cuBLAS and cuDNN, and counts the body of a loop once.
    module, cpu = compiled.runtime_executable().hlo_modules()[0], jax.devices("cpu")[0]
    analysis = _jax.hlo_module_cost_analysis(cpu.client, module)
    return Cost(
        target,
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        step_flops(config, rows, length, length) / target.chips,
        analysis["bytes accessed"],
    )


def lower_step(config: Config, target: Target, devices: list, rows: int, length: int) -> Any:
    """Return the train step lowered for a target, within `compiling`."""
    platform = "cuda" if target.device.platform == "gpu" else target.device.platform
    return trace_step(config, devices, rows, length).lower(lowering_platforms=(platform,))


def describe(config: Config, target: Target) -> str:
    """Return lines with the memory and the roofline of a train step on each chip of a target."""
    tokens, length, name = config.train.batch_tokens, config.data.max_length, target.name
    with explaining_out_of_memory(f"on {name}: the train step does not fit; see docs/memory.md"):
        cost = compile_step(config, target, tokens, length)
    fits = "" if cost.memory <= target.device.memory else "; does not fit, see docs/memory.md"
    return (
        f"{name}: {cost.memory / 1e9:.2f} of {target.device.memory / 1e9:.0f} GB per chip, state "
        f"{cost.state / 1e9:.2f} and activations {cost.temporaries / 1e9:.2f}{fits}\n"
        f"{name}: at least {1e3 * cost.compute_seconds:.1f} ms per step of {tokens:,} tokens "
        f"per side, rows of {length} (config.data.max_length)"
    )


@contextlib.contextmanager
def compiling(target: Target) -> Iterator[None]:
    """Let jformer and JAX compile for the target."""
    # JAX queries the GPU and its cuDNN here.
    gpu_queries = mock.patch.multiple(
        "jax._src.cudnn.fused_attention_stablehlo",
        check_cudnn_version=lambda *_: 91200,
        check_compute_capability=lambda *_: True,
        is_cuda_compute_capability_equal=lambda *_: False,
    )
    with compiling_for(target.device.platform, target.device.capability), gpu_queries:
        yield


def gpu_description(device: Device) -> str:
    """Return the GPU description for XLA's compiler, as a protocol buffer in text format."""
    major, minor = divmod(round(10 * device.capability), 10)
    hopper = device.capability >= 9
    return f"""
        gpu_device_info {{
          cuda_compute_capability {{ major: {major} minor: {minor} }}
          core_count: {device.cores}
          fpus_per_core: {128 if hopper else 64}
          clock_rate_ghz: {1.98 if hopper else 1.41}
          device_memory_size: {round(device.memory)}
          memory_bandwidth: {round(device.bandwidth)}
          l2_cache_size: {device.cache}
          threads_per_warp: 32
          threads_per_block_limit: 1024
          threads_per_core_limit: 2048
          registers_per_block_limit: 65536
          registers_per_core_limit: 65536
          shared_memory_per_block: 49152
          shared_memory_per_core: {233472 if hopper else 167936}
          shared_memory_per_block_optin: {232448 if hopper else 166912}
          block_dim_limit_x: {2**31 - 1}
          block_dim_limit_y: 65535
          block_dim_limit_z: 65535
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 12 }}
        runtime_version {{ major: 13 }}
        device_description_str: "{device.kind}"
    """
