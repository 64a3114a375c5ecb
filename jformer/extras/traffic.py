"""Memory traffic, products and collectives of a compiled XLA program, read from its text.

A kernel takes at least the longer of two times: its bytes at the memory bandwidth, and its floating
point operations at the speed of products. The sum over all kernels is the roofline of the program.
Kernel launch time is ignored, and each kernel is assumed to reach the bandwidth.

Bytes are the operands and results of a kernel. A slice or a gather counts the bytes that it reads,
an in-place update the bytes that it writes. The body of a loop counts once per iteration. Arrays in
a TPU's vector memory do not count, nor do a TPU's products, which it writes as convolutions.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

BYTES = {
    "f64": 8,
    "s64": 8,
    "u64": 8,
    "f32": 4,
    "s32": 4,
    "u32": 4,
    "bf16": 2,
    "f16": 2,
    "s16": 2,
    "u16": 2,
    "s8": 1,
    "u8": 1,
    "pred": 1,
    "f8e4m3fn": 1,
    "f8e5m2": 1,
}
ARRAY = re.compile(r"\b(" + "|".join(BYTES) + r")\[([\d,]*)\](\{[^}]*\})?")
NAME = r"[\w.\-]+"
FREE = {
    "after-all",
    "bitcast",
    "constant",
    "get-tuple-element",
    "iota",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
}
CALLS = ("while", "conditional", "call", "async-start")
UPDATE = "dynamic-update-slice"
SLICES = ("slice", "dynamic-slice", "gather", UPDATE)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


class Array(NamedTuple):
    dtype: str
    sizes: tuple[int, ...]
    in_memory: bool  # not in the vector memory of a TPU

    @property
    def bytes(self) -> int:
        return BYTES[self.dtype] * math.prod(self.sizes)


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]  # names; "#1" follows if it is the second element of a tuple
    text: str

    @property
    def arrays(self) -> list[Array]:
        """The arrays of the result."""
        return arrays_in(self.shape)

    def named(self, attribute: str) -> str:
        """The computation that an attribute names."""
        match = re.search(rf"\b{attribute}=%({NAME})", self.text)
        return match[1] if match else ""


Computation = dict[str, Instruction]
Program = dict[str, Computation]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel, with the totals of all its runs."""

    instruction: str
    name: str  # the JAX operation that it implements
    runs: int
    bytes: float
    flops: float

    def seconds(self, bandwidth: float, speed: float) -> float:
        return max(self.bytes / bandwidth, self.flops / speed)


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives between devices of one kind."""

    runs: int
    bytes: float  # of the results on one device
    sent: float  # bytes that one device sends, if the devices form a ring


def arrays_in(text: str) -> list[Array]:
    found = ARRAY.findall(text)
    return [Array(dtype, numbers(sizes), "S(1)" not in layout) for dtype, sizes, layout in found]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def kernels(text: str) -> list[Kernel]:
    """Return the kernels of a GPU program."""
    program, entry = parse(text)
    found = []
    for name, runs in runs_of(program, entry, 1):
        computation = program[name]
        for each in computation.values():
            if each.opcode in FREE or each.opcode in CALLS or each.opcode.endswith("-done"):
                continue
            label = re.search(r'op_name="([^"]*)"', each.text)
            moved = bytes_of(program, computation, each)
            flops = flops_of(program, computation, each)
            name = label[1] if label else ""
            found.append(Kernel(each.name, name, runs, runs * moved, runs * flops))
    return found


def roofline(kernels: Iterable[Kernel], bandwidth: float, speed: float) -> float:
    """Return the seconds that kernels take in sequence, if each reaches its limit."""
    return sum(each.seconds(bandwidth, speed) for each in kernels)


def collectives(text: str) -> dict[str, Collective]:
    """Return the collectives between devices by their kind, all-reduce and so on.

    The text repeats a collective in each part of an asynchronous one, with the same channel.
    """
    program, entry = parse(text)
    runs_by_name = dict(runs_of(program, entry, 1))
    found: dict[str, Collective] = {}
    seen = set()
    for name, computation in program.items():
        runs = runs_by_name.get(name, 1)
        for each in computation.values():
            kind = each.opcode.removesuffix("-start")
            channel = re.search(r"channel_id=(\d+)", each.text)
            identity = (kind, channel[1] if channel else (name, each.name))
            if kind not in COLLECTIVES or identity in seen:
                continue
            seen.add(identity)
            arrays = each.arrays
            operands = len(each.operands)
            if each.opcode.endswith("-start") and len(arrays) >= 2 * operands:
                arrays = arrays[operands : 2 * operands]  # after the operands
            old = found.get(kind, Collective(0, 0, 0))
            moved = runs * sum(array.bytes for array in arrays)
            sent = moved * share_sent(kind, group_size(each.text))
            found[kind] = Collective(old.runs + runs, old.bytes + moved, old.sent + sent)
    return found


def group_size(text: str) -> int:
    """Return how many devices take part in a collective, in any of XLA's three notations."""
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", mesh[2]))
    if listed := re.search(r"replica_groups=\[\d+,(\d+)\]", text):
        return int(listed[1])
    if groups := re.search(r"replica_groups=\{\{([\d,]*)\}", text):
        return len(numbers(groups[1]))
    return 2


def share_sent(kind: str, devices: int) -> float:
    """Return the bytes that a device of a ring sends per byte of its result."""
    match kind:
        case "all-reduce":
            return 2 * (devices - 1) / devices
        case "reduce-scatter":
            return devices - 1
        case "collective-permute":
            return 1
        case _:
            return (devices - 1) / devices


def parse(text: str) -> tuple[Program, str]:
    """Return the computations of a program, and the name of the first to run."""
    program: Program = {}
    entry, current = "", None
    for line in text.splitlines():
        if head := re.match(rf"(ENTRY )?%({NAME}) \(.*\{{$", line):
            current = program[head[2]] = {}
            entry = head[2] if head[1] else entry
        elif current is not None and (found := parse_instruction(line.strip())):
            current[found.name] = found
    return program, entry


def parse_instruction(line: str) -> Instruction | None:
    match = re.match(rf"(?:ROOT )?%({NAME}) = ", line)
    if not match:
        return None
    rest = line[match.end() :]
    end = closing_bracket(rest) + 1 if rest[0] == "(" else rest.index(" ")
    opcode, _, arguments = rest[end:].strip().partition("(")
    operands = re.findall(rf"%({NAME}(?:#\d+)?)", arguments[: closing_bracket("(" + arguments)])
    return Instruction(match[1], rest[:end], opcode, tuple(operands), line)


def closing_bracket(text: str) -> int:
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return position
    return len(text)


def runs_of(program: Program, name: str, runs: int) -> Iterator[tuple[str, int]]:
    """Yield each computation whose instructions are kernels, and how often it runs."""
    yield name, runs
    for each in program[name].values():
        if each.opcode == "while":
            yield from runs_of(program, each.named("body"), runs * trips_of(program, each))
        elif each.opcode == "conditional":
            branches = re.findall(rf"(?:true|false)_computation=%({NAME})", each.text)
            if listed := re.search(r"branch_computations=\{([^}]*)\}", each.text):
                branches = re.findall(rf"%({NAME})", listed[1])
            yield from runs_of(program, max(branches, key=lambda b: len(program[b])), runs)
        elif each.opcode in ("call", "async-start"):
            yield from runs_of(program, each.named("to_apply") or each.named("calls"), runs)


def trips_of(program: Program, loop: Instruction) -> int:
    """Return the number of iterations of a loop, from XLA's annotation or its condition."""
    if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.text):
        return int(known[1])
    condition = program.get(loop.named("condition"), {})
    limits = [re.search(r"constant\((\d+)\)", each.text) for each in condition.values()]
    return max((int(limit[1]) for limit in limits if limit), default=1)


def size(arrays: list[Array]) -> int:
    return sum(array.bytes for array in arrays if array.in_memory)


def arrays_of(computation: Computation, operand: str) -> list[Array]:
    name, _, element = operand.partition("#")
    if name not in computation:
        return []
    arrays = computation[name].arrays
    return [arrays[int(element)]] if element and int(element) < len(arrays) else arrays


def bytes_of(program: Program, computation: Computation, each: Instruction) -> int:
    results = each.arrays
    if each.opcode in ("copy-start", "slice-start"):  # to or from vector memory
        return size(results[-2:-1]) or size(results[:1])
    if "ConcatBitcast" in each.text:
        return 0
    if each.opcode == "custom-call" and each.shape.startswith("("):
        results = [array for array in results if array.dtype != "s8"]  # a library's workspace
    if each.opcode in ("slice", "dynamic-slice", "gather"):
        return 2 * size(results)
    if each.opcode == UPDATE:
        return 2 * size(arrays_of(computation, each.operands[1]))
    moved = size(results)
    moved += sum(size(arrays_of(computation, operand)) for operand in each.operands)
    return moved - unread_bytes(program.get(each.named("calls"), {}))


def unread_bytes(fusion: Computation) -> int:
    """Return the bytes of a fusion's operands and results that its slices do not access."""
    users: dict[str, list[Instruction]] = {}
    for each in fusion.values():
        for operand in set(each.operands):
            users.setdefault(operand, []).append(each)

    def consumers(name: str) -> list[Instruction]:
        direct = users.get(name, [])
        through = [c for each in direct if each.opcode == "bitcast" for c in consumers(each.name)]
        return through + [each for each in direct if each.opcode != "bitcast"]

    left_out = 0
    for whole in fusion.values():
        found = consumers(whole.name) if whole.opcode == "parameter" else []
        if not found or any(each.opcode not in SLICES for each in found):
            continue
        read = sum(size(each.arrays) for each in found if each.opcode != UPDATE)
        for each in found:
            if each.opcode == UPDATE:  # in place: only the update is written
                update = size(arrays_of(fusion, each.operands[1]))
                left_out += size(each.arrays) - update
        left_out += max(size(whole.arrays) - read, 0)
    return left_out


def flops_of(program: Program, computation: Computation, each: Instruction) -> float:
    """Return the operations of the products in a kernel. A multiply-add counts as two."""
    contracted = None
    if each.opcode == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.text)
    elif each.opcode == "custom-call" and "gemm_backend_config" in each.text:
        contracted = re.search(r'lhs_contracting_dimensions":\[([\d",]*)\]', each.text)
    elif each.opcode == "custom-call" and "__cudnn$fmha" in each.text:
        layouts = each.text[each.text.index("operand_layout_constraints") :]
        # Queries (B, Q, H, K) and keys (B, M, H, K). Recomputation in the backward pass does not
        # count.
        queries, keys = arrays_in(layouts)[:2]
        return (8 if "Backward" in each.text else 4) * math.prod(queries.sizes) * keys.sizes[1]
    if contracted is not None:
        [left] = arrays_of(computation, each.operands[0])
        summed = math.prod(left.sizes[axis] for axis in numbers(contracted[1]))
        return 2.0 * math.prod(each.arrays[0].sizes) * summed
    inner = program.get(each.named("calls"), {})
    return sum(flops_of(program, inner, instruction) for instruction in inner.values())
