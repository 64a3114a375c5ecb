"""A plan of a training run on devices that need not be here: time, storage, and what limits it.

All of it is arithmetic. A step is planned to take as long as the longest of its three parts, which
run at the same time: the computation, the exchange of gradients, and making the batch on the host.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from jformer.config import Config
from jformer.console import aligned
from jformer.training.flops import step_flops

FLOAT = 4  # bytes of a parameter, of its gradient and of each of its moments
OFFSETS = 2 * 8 + 4  # bytes of a pair in the cache besides its ids: two offsets, a line number
# The share of positions that hold a token, by `data.batching`, in 25,000 tokens of Multi30k.
UTILIZATION = {"buckets": 0.84, "packed": 0.94}


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """The figures that a plan assumes; times are in seconds, sizes in bytes."""

    peak: float  # FLOP/s of a device
    mfu: float = 0.4  # model FLOPs utilization
    memory: float = 80e9  # of a device
    link: float | None = None  # bytes per second out of a device; None: by the two below
    link_within_machine: float = 450e9
    link_between_machines: float = 50e9
    devices_per_machine: int = 8
    least_tokens: int = 2000  # of a side on a device in a step; fewer leave it idle
    # The input pipeline as experiments/notes.md has it, of one process on two cores.
    batch_time: float = 3.7e-3 / 25_000  # per position of a side
    tokenizing_time: float = 2 / 59_300  # per pair
    epoch_memory: float = 33  # peak per pair, of the host, while an epoch is planned

    def link_speed(self, devices: int) -> float:
        if self.link:
            return self.link
        one_machine = devices <= self.devices_per_machine
        return self.link_within_machine if one_machine else self.link_between_machines


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The bytes that a config needs, from the shapes of its state and from the compiled step."""

    parameters: int
    state: int  # parameters, optimizer state and moving average
    device_state: int  # the part of it that one device holds
    device_step: int  # all that a device holds in a train step


@dataclasses.dataclass(frozen=True)
class Plan:
    """The time and storage of a run on some devices; in seconds and bytes."""

    devices: int
    sizes: Sizes
    tokens: float  # of the target, in a step
    flops: float  # of a step
    compute: float  # of a step
    exchange: float  # of a step
    exchanged: float  # sent by a device in a step
    making_batch: float  # of a step
    step: float
    steps: int
    pairs: float  # trained on in all steps
    corpus: int  # pairs of an epoch, or 0
    checkpoints: float
    tokenizing: float
    cache: float
    epoch_memory: float
    limits: dict[str, float]  # the share of each limit that is used; above 1 it is passed


def make_plan(
    config: Config,
    lengths: tuple[int, int],
    mesh: Mapping[str, int],
    sizes: Sizes,
    given: Assumptions,
    hours: float = 0.0,
    corpus: int = 0,
) -> Plan:
    """Return the plan of a run on a mesh of these sizes, for pairs of `lengths` tokens on average.

    It has `train.steps` steps, or with `hours` as many as there is time for. `corpus` is the number
    of training pairs; without it there is no plan for the text.
    """
    devices, batch_tokens = math.prod(mesh.values()), config.train.batch_tokens
    tokens = batch_tokens * UTILIZATION[config.data.batching]  # of the side that has more
    pairs = tokens / max(lengths)
    flops = step_flops(config, pairs, *lengths)
    compute = flops / (devices * given.peak * given.mfu)
    exchanged = exchanged_bytes(sizes.parameters, mesh)
    exchange = exchanged / given.link_speed(devices)
    machines = -(-devices // given.devices_per_machine)
    making_batch = batch_tokens * given.batch_time / machines
    at_once = tokens / (mesh["data"] * mesh["fsdp"] * config.train.accumulate)
    step = max(compute, exchange, making_batch)
    steps = int(hours * 3600 / step) if hours else config.train.steps
    tokenizing = corpus * given.tokenizing_time
    limits = {
        "exchange": exchange / compute,
        "making batches": making_batch / compute,
        "tokens a device": given.least_tokens / at_once,
        "memory": sizes.device_step / given.memory,
    }
    if corpus:
        limits["tokenizing"] = tokenizing / (steps * step) if steps else math.inf
    return Plan(
        devices=devices,
        sizes=sizes,
        tokens=pairs * lengths[1],
        flops=flops,
        compute=compute,
        exchange=exchange,
        exchanged=exchanged,
        making_batch=making_batch,
        step=step,
        steps=steps,
        pairs=pairs * steps,
        corpus=corpus,
        checkpoints=checkpoint_bytes(config, steps, sizes),
        tokenizing=tokenizing,
        cache=corpus * cache_bytes(config, *lengths),
        epoch_memory=corpus * given.epoch_memory,
        limits=limits,
    )


def exchanged_bytes(parameters: int, mesh: Mapping[str, int]) -> float:
    """Return the bytes that a device sends in a step for gradients, and for split parameters.

    A ring of n devices adds up gradients by sending them 2 (n - 1) / n times. FSDP sends what it
    splits (n - 1) / n times in each of three turns: parameters forward and backward, gradients.
    """
    data, fsdp, model = mesh["data"], mesh["fsdp"], mesh["model"]
    whole = FLOAT * parameters / model
    return 2 * (data - 1) / data * whole / fsdp + 3 * (fsdp - 1) / fsdp * whole


def checkpoint_bytes(config: Config, steps: int, sizes: Sizes) -> float:
    """Return the bytes of all checkpoints at the end of a run, the best one's parameters too."""
    train = config.train
    regular = -(-steps // train.checkpoint_every)
    last = min(regular, train.keep_checkpoints or train.average_checkpoints)
    older = 0
    if train.keep_every:
        oldest_of_last = min(steps, (regular - last + 1) * train.checkpoint_every)
        older = (oldest_of_last - 1) // math.lcm(train.keep_every, train.checkpoint_every)
    best = FLOAT * sizes.parameters * (2 if train.ema_decay else 1)
    return (last + older) * sizes.state + best


def cache_bytes(config: Config, S: int, T: int) -> int:
    """Return the bytes of a pair in the cache of token ids."""
    of_id = 2 if config.data.vocabulary_size <= 2**16 else 4
    return (S + T) * of_id + OFFSETS


def describe(config: Config, lengths: tuple[int, int], given: Assumptions) -> list[str]:
    """Return the assumptions of a plan, a line each."""
    S, T = lengths
    used = UTILIZATION[config.data.batching]
    if given.link:
        link = f"{given.link / 1e9:.4g} GB/s"
    else:
        within, between = given.link_within_machine / 1e9, given.link_between_machines / 1e9
        machine = f"within a machine of {given.devices_per_machine}"
        link = f"{within:.4g} GB/s {machine}, {between:.4g} GB/s between machines"
    return [
        f"a device does {given.peak / 1e12:.4g} TFLOP/s, of which {given.mfu:.0%} are used (MFU)",
        f"a device has {given.memory / 1e9:.4g} GB, and sends {link}",
        "computation, exchange and making batches overlap: the longest of them counts",
        "gradients are exchanged, with FSDP parameters too; for parallel.model nothing is counted",
        f"a pair has {S} source and {T} target tokens; {used:.0%} of positions hold a token",
        f"a process a machine makes batches, in {1e9 * given.batch_time:.4g} ns a position",
        f"one process tokenizes, {2 / given.tokenizing_time:,.0f} sentences a second",
        f"the host needs {given.epoch_memory:.4g} bytes a pair while it plans an epoch",
        f"a device is busy with {given.least_tokens:,} tokens of a side at a time, or more",
    ]


def plan_table(plans: Sequence[Plan]) -> str:
    """Return the plans side by side, a column each."""
    rows: list[tuple[str, Callable[[Plan], float]]] = [
        ("devices", lambda plan: plan.devices),
        ("model FLOPs of a step", lambda plan: plan.flops),
        ("target tokens of a step", lambda plan: plan.tokens),
        ("ms of a step: computation", lambda plan: 1e3 * plan.compute),
        ("ms of a step: exchange", lambda plan: 1e3 * plan.exchange),
        ("ms of a step: making batches", lambda plan: 1e3 * plan.making_batch),
        ("MB out of a device in a step", lambda plan: plan.exchanged / 1e6),
        ("target tokens a second", lambda plan: plan.tokens / plan.step),
        ("steps", lambda plan: plan.steps),
        ("hours of steps", lambda plan: plan.steps * plan.step / 3600),
        ("target tokens", lambda plan: plan.steps * plan.tokens),
    ]
    if plans[0].corpus:
        rows += [
            ("epochs", lambda plan: plan.pairs / plan.corpus),
            ("hours of tokenizing", lambda plan: plan.tokenizing / 3600),
            ("GB of token ids on disk", lambda plan: plan.cache / 1e9),
            ("GB of host memory, an epoch's plan", lambda plan: plan.epoch_memory / 1e9),
        ]
    rows += [
        ("GB of checkpoints on disk", lambda plan: plan.checkpoints / 1e9),
        ("GB of a device: state", lambda plan: plan.sizes.device_state / 1e9),
        ("GB of a device: train step", lambda plan: plan.sizes.device_step / 1e9),
    ]
    cells = [[name, *(number(value(plan)) for plan in plans)] for name, value in rows]
    for name in plans[0].limits:
        cells.append([f"times its limit: {name}", *(f"{p.limits[name]:.2f}" for p in plans)])
    return aligned(cells)


def first_limit(plan: Plan) -> str:
    """Return a sentence about the limit that a plan passes first or farthest."""
    name = max(plan.limits, key=lambda name: plan.limits[name])
    used = plan.limits[name]
    verdict = "breaks first" if used > 1 else "would break first, and holds"
    devices = "1 device" if plan.devices == 1 else f"{plan.devices} devices"
    return f"{devices}: {name} {verdict} ({used:.2f} times its limit)"


def number(value: float) -> str:
    """Format a number with three digits, or with all of a whole number below a billion."""
    if value >= 1e9:
        return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"
