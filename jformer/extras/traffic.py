"""The kernels of a compiled XLA program and their memory traffic, read from its text.

XLA's own `cost_analysis` is too low for a GPU: it omits the products of cuBLAS and cuDNN, and it
counts the body of a loop once. For the train step of `base`, it reports a third of the bytes and
0.4 % of the operations.

Bytes are the operands and results of a kernel. A kernel with a slice or a gather reads at most the
size of its result from each operand, and an in-place update writes what it reads. The body of a
loop counts once per iteration.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\](\{[^}]*\})?")
NAME = r"[\w.\-]+"
COMPUTATION = re.compile(rf"(ENTRY )?%({NAME}) \(.*\{{$")
INSTRUCTION = re.compile(rf"\s*(?:ROOT )?%({NAME}) = (.*?) ([\w\-]+)\(([^)]*)(.*)")
NOT_KERNELS = ("bitcast", "constant", "get-tuple-element", "opt-barrier", "parameter", "tuple")
UPDATE = "dynamic-update-slice"
SLICES = {"slice", "dynamic-slice", "gather"}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Instruction:
    size: int  # bytes of the result
    bytes: int  # without arrays in the vector memory of a TPU
    opcode: str
    operands: list[str]
    attributes: str

    @property
    def called(self) -> str:
        """The name of the computation that it runs, if any."""
        match = re.search(rf"\b(?:calls|to_apply|body)=%({NAME})", self.attributes)
        return match[1] if match else ""


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel or a collective, with the bytes of all its runs.

    A collective in a ring of N devices sends these bytes, or up to 2 / N less.
    """

    instruction: str
    name: str  # the JAX operation that it implements
    runs: int
    bytes: int
    collective: str  # all-reduce and so on, or ""
    has_product: bool


def kernels(text: str) -> list[Kernel]:
    program, entry = parse(text)
    found = []
    for name, runs in runs_of(program, entry):
        for instruction, each in program[name].items():
            opcode = each.opcode
            if opcode in (*NOT_KERNELS, "while", "call") or opcode.endswith("-start"):
                continue
            if opcode.endswith("-done"):  # an asynchronous operation counts once, at its end
                start = program[name][each.operands[0]]
                opcode = opcode.removesuffix("-done")
                each = dataclasses.replace(start, size=each.size, bytes=each.bytes)
            opcodes = {opcode, *(inner.opcode for inner in program.get(each.called, {}).values())}
            label = re.search(r'op_name="([^"]*)"', each.attributes)
            found.append(
                Kernel(
                    instruction,
                    label[1] if label else "",
                    runs,
                    runs * bytes_of(program[name], each, opcodes),
                    next((kind for kind in COLLECTIVES if kind in opcodes), ""),
                    "dot" in opcodes or bool(re.search("__cu(blas|dnn)", each.attributes)),
                )
            )
    return found


def parse(text: str) -> tuple[dict[str, Computation], str]:
    """Return the computations of a program, and the name of the first to run."""
    program: dict[str, Computation] = {}
    entry = name = ""
    for line in text.splitlines():
        if head := COMPUTATION.match(line):
            name = head[2]
            program[name] = {}
            entry = name if head[1] else entry
        elif name and (match := INSTRUCTION.match(line)):
            operands = re.findall(rf"%({NAME})", match[4])
            program[name][match[1]] = Instruction(*sizes(match[2]), match[3], operands, match[5])
    return program, entry


def sizes(shape: str) -> tuple[int, int]:
    """Return the bytes of an array or a tuple, and the bytes outside of a TPU's vector memory.

    A library's workspace (s8) does not count.
    """
    total = outside = 0
    for dtype, axes, layout in ARRAY.findall(shape):
        bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
        size = bits * math.prod(map(int, filter(None, axes.split(",")))) // 8
        total += size if dtype != "s8" else 0
        outside += size if dtype != "s8" and "S(1)" not in layout else 0
    return total, outside


def runs_of(program: dict[str, Computation], name: str, runs: int = 1) -> Iterator[tuple[str, int]]:
    """Yield each computation whose instructions are kernels, and how often it runs."""
    yield name, runs
    for each in program[name].values():
        if each.opcode in ("while", "call"):
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', each.attributes)
            yield from runs_of(program, each.called, runs * int(trips[1] if trips else 1))


def bytes_of(computation: Computation, each: Instruction, opcodes: set[str]) -> int:
    """Return the bytes that one run of a kernel with these operations moves."""
    operands = [computation[name] for name in each.operands]
    if UPDATE in opcodes:  # in place: the result is the largest operand
        return 2 * sum(operand.bytes for operand in operands if operand.size < each.size)
    moved = [operand.bytes for operand in operands]
    if opcodes & SLICES:
        moved = [min(number, each.size) for number in moved]
    return each.bytes + sum(moved)
