"""Run one measurement for experiments.benchmarks.gpu, which starts a process for each.

    python -m experiments.benchmarks.gpu_work FUNCTION ARGUMENTS

ARGUMENTS is a JSON object. The script prints one JSON object: the measured numbers or an error.
"""

import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import jformer
from experiments.benchmarks.train import OURS, make_batches, ready_to_train, steps_of
from jformer.config import BOS, EOS, PAD
from jformer.results import read_results

RUN = [
    "--config=configs/tiny.py",
    "--config.data.name=phrases(pairs=1000)",
    "--config.data.num_buckets=1",
    "--config.train.scored=validation",
    "--config.train.average_checkpoints=1",
    "--config.decode.beam_size=1",
]
RUN_STEPS = 40
PROFILED_STEPS, LONGEST_KERNELS = 5, 20
PEER_LENGTH = 64  # tokens per row in experiments.benchmarks.train, which does not pack rows


def answer(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Measure in this process. If the measurement fails, return the first line of the error."""
    try:
        return FUNCTIONS[function](**arguments)
    except Exception as error:  # noqa: BLE001  recorded in the table
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


def peak(rounds: int, dtype: str = "bfloat16") -> dict[str, Any]:
    """Return the peak rate of matrix products: from the data sheet, and as measured."""
    import jax

    from jformer.training.flops import sheet_flops

    device = jax.devices()[0]
    N, products = (2048, 2) if device.platform == "cpu" else (8192, 20)
    x_NN = np.random.default_rng(0).standard_normal((N, N), dtype=np.float32)
    x_NN = jax.device_put(x_NN.astype(dtype), device)
    product = jax.jit(lambda x_NN: x_NN @ x_NN)
    product(x_NN).block_until_ready()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(products):
            result_NN = product(x_NN)
        result_NN.block_until_ready()
        seconds.append((time.perf_counter() - began) / products)
    return {
        "device": device.device_kind,
        "sheet_tflops": (sheet_flops(device.device_kind, dtype) or 2 * N**3 / min(seconds)) / 1e12,
        "measured_tflops": 2e-12 * N**3 / min(seconds),
    }


def ready(config: str, tokens: int, length: int, keys: dict[str, Any]) -> tuple[Any, ...]:
    """Return the config, a batch of `tokens` tokens, the lowered step and its arguments."""
    import jax

    jax.config.update("jax_enable_compilation_cache", False)
    fixed = {"model.dtype": "bfloat16", "data.batching": "packed"}
    frozen = jformer.get_config(config, **{**fixed, **keys})
    train_step, state, place = ready_to_train(frozen, jax.devices()[:1])
    V = frozen.data.vocabulary_size
    if frozen.data.batching == "packed":
        batch = packed_batch(max(1, tokens // length), length, V)
    else:
        batch = plain_batch(max(1, tokens // PEER_LENGTH), PEER_LENGTH, V)
    arguments = (state, *place(batch))
    return frozen, batch, train_step.lower(*arguments), arguments


def train(
    config: str, tokens: int, length: int, rounds: int, steps: int, keys: dict[str, Any]
) -> dict[str, Any]:
    """Measure the speed, MFU, compile time and device memory of the train step."""
    import jax

    from jformer.training.flops import step_flops

    device = jax.devices()[0]
    frozen, batch, lowered, (state, *rest) = ready(config, tokens, length, keys)
    began = time.perf_counter()
    train_step = lowered.compile()
    compilation = time.perf_counter() - began
    flops = step_flops(frozen, *batch["target_BT"].shape, batch["source_BS"].shape[1])
    roofline = roofline_of(flops, train_step)
    state, metrics = jax.block_until_ready(train_step(state, *rest))
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(steps):
            state, metrics = train_step(state, *rest)
        sums = jax.device_get(metrics)
        seconds.append((time.perf_counter() - began) / steps)
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use")  # None on a CPU
    del state, rest  # free memory for the matrix products
    peaks, median = peak(rounds, frozen.model.compute_dtype), statistics.median(seconds)
    real_BT = batch["labels_BT"] != PAD
    tera = flops / median / 1e12
    return {
        "device": peaks["device"],
        "attention": "cuDNN" if frozen.model.fused_attention else "XLA",
        "ms_a_step": [1000 * each for each in seconds],
        "roofline_ms": 1000 * roofline if roofline else None,
        "of_roofline": median / roofline if roofline else None,
        "tokens_per_second": float(real_BT.sum()) / median,
        "mfu": float(real_BT.mean()) * tera / peaks["sheet_tflops"],
        "mfu_with_padding": tera / peaks["sheet_tflops"],
        "measured_tflops": peaks["measured_tflops"],
        "peak_memory_gb": memory and memory / 1e9,
        "seconds_to_compile": compilation,
        "loss": float(sums["loss"] / sums["tokens"]),
    }


def known_target() -> Any:
    """Return the target that this device is, or None; a CPU counts as an H100, for tests."""
    import jax

    from jformer.extras import targets

    kind = jax.devices()[0].device_kind
    names = {each.kind: name for name, each in targets.DEVICES.items()} | {"cpu": "h100"}
    return targets.parse_target(names[kind]) if kind in names else None


def roofline_of(flops: float, program: Any) -> float:
    """Return the roofline seconds of a compiled step; 0 if the device is unknown."""
    from jformer.extras import targets, traffic

    if (target := known_target()) is None:
        return 0.0
    return targets.Cost(target, 0, 0, flops, traffic.kernels(program.as_text())).compute_seconds


def agree(config: str, tokens: int, length: int, keys: dict[str, Any]) -> dict[str, Any]:
    """Compare the loss and gradients of cuDNN attention and XLA attention, on packed rows."""
    import jax
    import optax

    from jformer.model.transformer import Transformer
    from jformer.training.step import make_gradients

    found, attention = [], "XLA"
    for kernel in ("auto", "xla"):
        fixed = {"model.dtype": "bfloat16", "data.batching": "packed", "model.dropout": 0.0}
        frozen = jformer.get_config(config, **{**fixed, **keys, "model.attention_kernel": kernel})
        attention = "cuDNN" if frozen.model.fused_attention else attention
        V = frozen.data.vocabulary_size
        model, batch = (
            Transformer(frozen.model, V, V),
            packed_batch(max(1, tokens // length), length, V),
        )
        tokens_11 = np.ones((1, 1), np.int32)
        params = jax.jit(model.init)(jax.random.key(0), tokens_11, tokens_11)["params"]
        gradients = make_gradients(model, frozen.train, lambda tree: tree)
        found.append(jax.jit(gradients)(params, batch, jax.random.key(1)))
    (fused, sums), (plain, plain_sums) = found
    difference = jax.tree.map(lambda a, b: a - b, fused, plain)
    return {
        "attention": attention,
        "loss": float(sums["loss"] / sums["tokens"]),
        "loss_by_xla": float(plain_sums["loss"] / plain_sums["tokens"]),
        "gradient_difference": float(optax.tree.norm(difference) / optax.tree.norm(plain)),
    }


def profile(config: str, tokens: int, length: int, keys: dict[str, Any]) -> dict[str, Any]:
    """Return the longest kernels of a step, each with the time of its memory traffic."""
    import jax

    from jformer.extras import traffic

    _, _, lowered, (state, *rest) = ready(config, tokens, length, keys)
    train_step, target = lowered.compile(), known_target()
    bandwidth = target.device.bandwidth if target else math.inf
    kernels = {each.instruction: each for each in traffic.kernels(train_step.as_text())}
    state, _ = jax.block_until_ready(train_step(state, *rest))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(PROFILED_STEPS):
                state, _ = jax.block_until_ready(train_step(state, *rest))
        [path] = Path(folder).rglob("*.xplane.pb")
        measured = seconds_by_instruction(path)
    rows: dict[str, list[float]] = {}
    for instruction, seconds in measured.items():
        kernel = kernels.get(instruction)
        label = label_of(kernel.name) if kernel else f"({instruction.split('.')[0]})"
        sums = rows.setdefault(label, [0, 0, 0])
        sums[0] += seconds / PROFILED_STEPS
        sums[1] += kernel.bytes / bandwidth if kernel else 0
        sums[2] += kernel.runs if kernel else 1
    longest = sorted(rows.items(), key=lambda row: -row[1][0])
    return {
        "ms_of_kernels": 1000 * sum(row[0] for row in rows.values()),
        "kernels": [
            {"kernel": label, "ms": 1e3 * seconds, "memory_ms": 1e3 * least, "runs": int(runs)}
            for label, (seconds, least, runs) in longest[:LONGEST_KERNELS]
        ],
    }


def seconds_by_instruction(path: Path) -> dict[str, float]:
    """Return the total time of each XLA instruction in a profile."""
    import jax

    total: dict[str, float] = {}
    planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
    on_device = [plane for plane in planes if plane.name.startswith("/device:GPU")]
    for plane in on_device or planes:
        streams = [line for line in plane.lines if line.name.startswith("Stream")]
        for line in streams or plane.lines:
            for event in line.events:
                stats = {name: value for name, value in event.stats if name}
                if instruction := stats.get("hlo_op"):
                    total[instruction] = total.get(instruction, 0) + 1e-9 * event.duration_ns
    return total


def label_of(name: str) -> str:
    """Shorten the path of an operation, so that all layers share one label."""
    name = re.sub(r"jit\(step_with_request\)/|Transformer\.\w+/?|\w+Layer\.\w+/?", "", name)
    name = re.sub(r"(encoder|decoder)(_\d+)?[./]", "", name)
    return name.replace("residual_branches/", "") or "(unnamed)"


def packed_batch(rows: int, length: int, V: int) -> dict[str, np.ndarray]:
    """Return rows packed with random pairs whose source and target have the same length."""
    rng = np.random.default_rng(0)
    ids_BL = rng.integers(EOS + 1, V, (rows, length)).astype(np.int32)
    segments_BL = np.zeros((rows, length), np.int32)
    labels_BL, target_BL = ids_BL.copy(), np.roll(ids_BL, 1, axis=1)
    for row in range(rows):
        start, number = 0, 1
        while start + (size := int(rng.integers(8, 49))) <= length:
            segments_BL[row, start : start + size] = number
            labels_BL[row, start + size - 1] = EOS
            target_BL[row, start] = BOS
            start, number = start + size, number + 1
    texts = {"source_BS": labels_BL, "target_BT": target_BL, "labels_BT": labels_BL}
    texts = {name: np.where(segments_BL == 0, PAD, each_BL) for name, each_BL in texts.items()}
    return {**texts, "source_segments_BS": segments_BL, "target_segments_BT": segments_BL}


def plain_batch(rows: int, length: int, V: int) -> dict[str, np.ndarray]:
    """Return rows of one pair each, without padding."""
    ids_BL = np.random.default_rng(0).integers(EOS + 1, V, (rows, length)).astype(np.int32)
    return {"source_BS": ids_BL, "target_BT": np.roll(ids_BL, 1, axis=1), "labels_BT": ids_BL}


def peers(
    platform: str, config: str, peer: str, tokens: int, vocabulary: int, rounds: int, steps: int
) -> dict[str, Any]:
    """Measure the train steps of another project and of jformer in turns, on the same batches."""
    rows = max(1, tokens // PEER_LENGTH)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        execute(
            "experiments.benchmarks.train", f"--config={config}", f"--vocabulary={vocabulary}",
            f"--rows={rows}", f"--length={PEER_LENGTH}", f"--rounds={rounds}", f"--steps={steps}",
            f"--platform={platform}", f"--contenders={peer}", f"--json={file}",
        )  # fmt: skip
        results = {each["name"]: each for each in json.loads(file.read_text())["results"]}
    for name in (OURS, peer):
        if error := results[name]["error"]:
            raise RuntimeError(f"{name}: {error}")
    frozen = jformer.get_config(config, **{"data.vocabulary_size": vocabulary})
    batches = steps_of(make_batches(frozen, rows, PEER_LENGTH), steps)
    real = sum(int((batch["labels_BT"] != PAD).sum()) for batch in batches)
    peer_seconds, own_seconds = results[peer]["seconds"], results[OURS]["seconds"]
    return {
        "speed_of_ours": [a / b for a, b in zip(peer_seconds, own_seconds, strict=True)],
        "ms_a_step": [1000 * each / steps for each in peer_seconds],
        "tokens_per_second": real / statistics.median(peer_seconds),
        "tokens_per_second_of_ours": real / statistics.median(own_seconds),
        "seconds_to_compile": results[peer]["first"] - statistics.median(peer_seconds),
    }


def decode(
    config: str, beam: int, places: int, rounds: int, keys: dict[str, Any]
) -> dict[str, Any]:
    """Measure the search with random parameters on four times `places` sentences."""
    import jax

    from jformer.decoding.pool import Decoder, Request
    from jformer.model.transformer import Transformer

    frozen = jformer.get_config(config, **{**keys, "decode.beam_size": beam})
    V, tokens_11 = frozen.data.vocabulary_size, np.ones((1, 1), np.int32)
    model = Transformer(frozen.model, V, V)
    params = jax.jit(model.init)(jax.random.key(0), tokens_11, tokens_11)["params"]
    decoder = Decoder((model,), (params,), frozen.decode, frozen.data.max_length, places)
    rng = np.random.default_rng(0)
    texts = [rng.integers(EOS + 1, V, rng.integers(8, 49)).tolist() for _ in range(4 * places)]
    requests = [Request(text, [], 0) for text in texts]
    seconds: list[float] = []
    for _ in range(1 + min(rounds, 2)):  # the first round compiles
        began = time.perf_counter()
        found = decoder.find(requests)
        seconds.append(time.perf_counter() - began)
    if decoder.slots < places:
        raise MemoryError(
            f"out of memory: only {decoder.slots} of {places} sentences fit at a time"
        )
    made = sum(int((each.tokens_WT[0] != PAD).sum()) for each in found.values())
    return {
        "tokens_per_second": made / min(seconds[1:]),
        "sentences_per_second": len(found) / min(seconds[1:]),
        "tokens": made,
        "seconds": seconds[1:],
        "seconds_to_compile": seconds[0] - min(seconds[1:]),
    }


def resume() -> dict[str, Any]:
    """Compare the final parameters of a run, its repetition, and a run resumed halfway."""
    with tempfile.TemporaryDirectory() as folder:
        whole, again, resumed = (f"{folder}/{name}" for name in ("whole", "again", "resumed"))
        for workdir, steps in (
            (whole, RUN_STEPS),
            (again, RUN_STEPS),
            (resumed, RUN_STEPS // 2),
            (resumed, RUN_STEPS),
        ):
            execute("jformer.main", *RUN, f"--config.train.steps={steps}", f"--workdir={workdir}")
        first, second, third = (hash_of(Path(workdir)) for workdir in (whole, again, resumed))
    return {"equal_again": first == second, "equal_resumed": first == third, "params_sha256": first}


def hash_of(workdir: Path) -> str:
    (scores,) = read_results(workdir).values()
    return scores["params_sha256"][0]


def execute(module: str, *flags: str) -> None:
    """Run a module of this repository. If it fails, raise an error with its last line."""
    command = [sys.executable, "-m", module, *flags]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        raise RuntimeError(f"{module} ended with {done.returncode}: {last}")


FUNCTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "peak": peak,
    "train": train,
    "agree": agree,
    "profile": profile,
    "peers": peers,
    "decode": decode,
    "resume": resume,
}

if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1], json.loads(sys.argv[2]))))
