"""The kernels of a compiled XLA program and their memory traffic, read from its text.

XLA's own `cost_analysis` is no estimate for a GPU: it omits the products of cuBLAS and cuDNN, and
counts the body of a loop once. Of the train step of `base`, it reports a third of the bytes and
0.4 % of the operations.

Bytes are the operands and results of a kernel. A slice or a gather counts the bytes that it reads,
an in-place update the bytes that it writes. The body of a loop counts once per iteration.
"""

import collections
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
SLICES = ("slice", "dynamic-slice", "gather", UPDATE)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Instruction:
    bytes: int  # of the result
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
            opcode = each.opcode.removesuffix("-done")
            # An asynchronous operation counts once, at its end.
            if opcode in (*NOT_KERNELS, "while", "call") or opcode.endswith("-start"):
                continue
            opcodes = {opcode, *(inner.opcode for inner in program.get(each.called, {}).values())}
            label = re.search(r'op_name="([^"]*)"', each.attributes)
            found.append(
                Kernel(
                    instruction,
                    label[1] if label else "",
                    runs,
                    runs * bytes_of(program, program[name], each),
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
            program[name][match[1]] = Instruction(size(match[2]), match[3], operands, match[5])
    return program, entry


def size(shape: str) -> int:
    """Return the bytes of an array or a tuple, without a library's workspace (s8)."""
    total = 0
    for dtype, sizes, layout in ARRAY.findall(shape):
        bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
        if dtype != "s8" and "S(1)" not in layout:  # a TPU's vector memory
            total += bits * math.prod(map(int, sizes.split(","))) // 8 if sizes else bits // 8
    return total


def runs_of(program: dict[str, Computation], name: str, runs: int = 1) -> Iterator[tuple[str, int]]:
    """Yield each computation whose instructions are kernels, and how often it runs."""
    yield name, runs
    for each in program[name].values():
        if each.opcode in ("while", "call"):
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', each.attributes)
            yield from runs_of(program, each.called, runs * int(trips[1] if trips else 1))


def bytes_of(program: dict[str, Computation], computation: Computation, each: Instruction) -> int:
    operands = each.operands
    if each.opcode.endswith("-done"):
        operands = computation[operands[0]].operands
    if each.opcode == UPDATE:
        return 2 * computation[operands[1]].bytes
    if each.opcode in SLICES:
        return 2 * each.bytes
    moved = each.bytes + sum(computation[name].bytes for name in operands)
    return moved - unread_bytes(program.get(each.called, {}))


def unread_bytes(fusion: Computation) -> int:
    """Return the bytes of a fusion's operands and results that its slices do not access."""
    sources: dict[str, str] = {}  # of bitcasts
    slices = collections.defaultdict(list)
    read_fully = set()
    for name, each in fusion.items():
        operands = [sources.get(operand, operand) for operand in each.operands]
        if each.opcode == "bitcast":
            sources[name] = operands[0]
            continue
        if each.opcode in SLICES:
            slices[operands.pop(0)].append(each)
        read_fully.update(operands)
    left_out = 0
    for name, users in slices.items():
        if fusion[name].opcode != "parameter" or name in read_fully:
            continue
        read = sum(user.bytes for user in users if user.opcode != UPDATE)
        left_out += max(fusion[name].bytes - read, 0)
        for user in users:
            if user.opcode == UPDATE:  # in place: only the update is written
                left_out += user.bytes - fusion[user.operands[1]].bytes
    return left_out
