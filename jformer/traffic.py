"""Memory traffic and products of a program that XLA compiled for a GPU, read from its text.

A kernel takes at least the longer of two times: its bytes at the bandwidth of the memory, and its
floating point operations at the speed of the products. Their sum over all kernels is the roofline
of the program. It leaves out launches, and assumes that every kernel reaches the bandwidth.

Bytes are the operands and results of a kernel. A slice or a gather counts what it reads, an update
in place what it writes. Loops count as often as they run.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

BYTES = {
    "f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "s16": 2,
    "u16": 2, "s8": 1, "u8": 1, "pred": 1, "f8e4m3fn": 1, "f8e5m2": 1,
}  # fmt: skip
ARRAY = re.compile(r"\b(" + "|".join(BYTES) + r")\[([\d,]*)\]")
FREE = {
    "after-all", "bitcast", "constant", "get-tuple-element", "iota", "opt-barrier", "parameter",
    "partition-id", "replica-id", "tuple",
}  # fmt: skip
COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]  # names, with "#1" for the second element of a tuple
    text: str

    @property
    def arrays(self) -> list[tuple[str, tuple[int, ...]]]:
        """The dtype and the sizes of each array of the result."""
        found = ARRAY.findall(self.shape)
        return [(kind, tuple(int(n) for n in sizes.split(",") if n)) for kind, sizes in found]

    def called(self, attribute: str) -> str:
        match = re.search(rf"\b{attribute}=%([\w.\-]+)", self.text)
        return match[1] if match else ""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel, or one collective, with its totals over all its runs."""

    name: str  # the JAX operation that it comes from
    opcode: str
    times: int
    bytes: float
    flops: float

    def seconds(self, bandwidth: float, flops: float) -> float:
        return max(self.bytes / bandwidth, self.flops / flops)


Program = dict[str, dict[str, Instruction]]  # computations by name, instructions by name


def kernels(text: str) -> list[Kernel]:
    """Return the kernels of a compiled program."""
    program, entry = parse(text)
    return list(kernels_of(program, entry, 1))


def parse(text: str) -> tuple[Program, str]:
    """Return the computations of a program, and the name of the one that it starts with."""
    program: Program = {}
    entry, current = "", None
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%([\w.\-]+) \(.*\{$", line):
            current = program[head[2]] = {}
            entry = head[2] if head[1] else entry
        elif current is not None and (found := parse_instruction(line.strip())):
            current[found.name] = found
    return program, entry


def parse_instruction(line: str) -> Instruction | None:
    match = re.match(r"(?:ROOT )?%([\w.\-]+) = ", line)
    if not match:
        return None
    rest = line[match.end() :]
    end = closing_bracket(rest) + 1 if rest[0] == "(" else rest.index(" ")
    shape, call = rest[:end], rest[end:].strip()
    opcode, _, arguments = call.partition("(")
    operands = re.findall(r"%([\w.\-]+(?:#\d+)?)", arguments[: closing_bracket("(" + arguments)])
    return Instruction(match[1], shape, opcode, tuple(operands), line)


def closing_bracket(text: str) -> int:
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return position
    return len(text)


def kernels_of(program: Program, name: str, times: int) -> Iterator[Kernel]:
    computation = program[name]
    for each in computation.values():
        if each.opcode in FREE or each.opcode.endswith(("-done", "-update")):
            continue
        if each.opcode == "while":
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', each.text)
            runs = times * (int(trips[1]) if trips else 1)
            yield from kernels_of(program, each.called("body"), runs)
        elif each.opcode == "conditional":
            listed = re.search(r"branch_computations=\{([^}]*)\}", each.text)
            branches = re.findall(r"%([\w.\-]+)", listed[1]) if listed else []
            branches = branches or [
                each.called(f"{side}_computation") for side in ("true", "false")
            ]
            longest = max(branches, key=lambda branch: len(program[branch]))
            yield from kernels_of(program, longest, times)
        elif each.opcode == "call" or each.opcode == "async-start":
            yield from kernels_of(program, each.called("to_apply") or each.called("calls"), times)
        else:
            moved, products = (
                times * bytes_of(program, computation, each),
                flops_of(program, each, computation),
            )
            label = re.search(r'op_name="([^"]*)"', each.text)
            yield Kernel(label[1] if label else "", each.opcode, times, moved, times * products)


def size(arrays: list[tuple[str, tuple[int, ...]]]) -> int:
    return sum(BYTES[kind] * math.prod(sizes) for kind, sizes in arrays)


def arrays_of(computation: dict[str, Instruction], operand: str) -> list:
    """Return the arrays of an operand, which may be one element of a tuple."""
    name, _, element = operand.partition("#")
    if name not in computation:
        return []
    arrays = computation[name].arrays
    return [arrays[int(element)]] if element and int(element) < len(arrays) else arrays


def bytes_of(program: Program, computation: dict[str, Instruction], each: Instruction) -> int:
    results = each.arrays
    if each.opcode == "custom-call" and each.shape.startswith("("):
        results = [array for array in results if array[0] != "s8"]  # the workspace of a library
    moved = size(results)
    if each.opcode in ("dynamic-slice", "gather"):
        return 2 * moved
    if each.opcode == "dynamic-update-slice":
        return 2 * size(arrays_of(computation, each.operands[1]))
    for operand in each.operands:
        moved += size(arrays_of(computation, operand))
    inside = program.get(each.called("calls"), {})
    return moved - untouched(inside) if inside else moved


def untouched(inside: dict[str, Instruction]) -> int:
    """Return the bytes of a fusion's operands and results that a slice or an update leaves out."""

    def source(name: str) -> Instruction | None:
        while name in inside and inside[name].opcode == "bitcast":
            name = inside[name].operands[0]
        return inside.get(name)

    left_out, seen = 0, set()
    for each in inside.values():
        if each.opcode not in ("dynamic-slice", "gather", "dynamic-update-slice"):
            continue
        whole = source(each.operands[0])
        if whole is None or whole.opcode != "parameter" or whole.name in seen:
            continue
        seen.add(whole.name)
        if each.opcode == "dynamic-update-slice":  # neither read nor written beside the update
            update = size(arrays_of(inside, each.operands[1]))
            left_out += size(whole.arrays) + size(each.arrays) - update
        else:
            left_out += size(whole.arrays) - size(each.arrays)
    return left_out


def flops_of(program: Program, each: Instruction, computation: dict[str, Instruction]) -> float:
    """Return the operations of the products in a kernel. A multiply-add counts as two."""
    if each.opcode == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.text)
        return product_flops(each, computation, contracted)
    if each.opcode == "custom-call" and "gemm_backend_config" in each.text:
        contracted = re.search(r'lhs_contracting_dimensions":\[([\d",]*)\]', each.text)
        return product_flops(each, computation, contracted)
    if each.opcode == "custom-call" and "__cudnn$fmha" in each.text:
        layouts = each.text[each.text.index("operand_layout_constraints") :]
        q, k = [tuple(int(n) for n in s.split(",")) for _, s in ARRAY.findall(layouts)[:2]]
        # Queries (B, Q, H, K) and keys (B, M, H, K). What the backward pass computes again is not
        # counted.
        return (8 if "Backward" in each.text else 4) * math.prod(q) * k[1]
    called = program.get(each.called("calls"), {})
    return sum(flops_of(program, inner, called) for inner in called.values())


def product_flops(each: Instruction, computation: dict[str, Instruction], contracted) -> float:
    left = arrays_of(computation, each.operands[0])[0][1]
    axes = [int(axis) for axis in re.findall(r"\d+", contracted[1])]
    return 2.0 * math.prod(each.arrays[0][1]) * math.prod(left[axis] for axis in axes)
