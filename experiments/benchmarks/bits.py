"""Hash what jformer computes, to compare two versions of its code bit by bit.

    python -m experiments.benchmarks.bits > before.json
    python -m experiments.benchmarks.bits > after.json       (with the other version)
    diff before.json after.json

The hashes cover losses, parameters and outputs of training, resumed training, packing, pmap on two
devices, other models, beam search and sampling. The script uses only the command line and `load`,
so internal names may differ between the versions. Compare hashes only from the same machine and the
same package versions. The script takes three minutes on two cores.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from flax.serialization import to_bytes

from jformer import load

TINY = [
    "--config=configs/tiny.py",
    "--config.data.name=phrases(pairs=4000)",
    "--config.train.scored=validation",
    "--config.train.checkpoint_every=50",
    "--config.train.log_every=50",
    "--config.train.evaluate_every=100",
    "--config.train.average_checkpoints=3",
]
SMALL = [*TINY, "--config.model.d_model=32", "--config.model.d_ff=64", "--config.train.steps=60"]
RUNS = {
    "tiny": [*TINY, "--config.train.steps=300"],
    "packed": [*TINY, "--config.train.steps=100", "--config.data.batching=packed"],
    "pmap": [*SMALL, "--config.parallel.backend=pmap"],
    "variants": [
        *SMALL,
        "--config.model.norm_position=pre",
        "--config.model.positions=alibi",
        "--config.model.attention_dropout=0.1",
        "--config.train.accumulate=2",
        "--config.train.ema_decay=0.9",
        "--config.data.augment=bpe_dropout(p=0.1)",
        "--config.optimizer.name=adamw(weight_decay=0.1)",
        "--config.optimizer.schedule=cosine",
        "--config.optimizer.warmup_steps=20",
    ],
    "scanned": [*SMALL, "--config.model.scan_layers=True", "--config.model.positions=rotary"],
}
SEARCHES = {
    "beam": ["--config.decode.n_best=4"],
    "diverse": ["--config.decode.search=beam(diversity=0.5)", "--config.decode.length_penalty=1.0"],
    "greedy": ["--config.decode.beam_size=1"],
    "sampling": ["--config.decode.search=sampling(top_k=20)"],
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(hashes(Path(folder)), indent=2))


def hashes(folder: Path) -> dict[str, str]:
    """Return hashes of the losses and parameters of each run, and of the output of each search."""
    found = {}
    for name, flags in RUNS.items():
        jformer(*flags, f"--workdir={folder / name}", devices=2 if name == "pmap" else 1)
    jformer(*TINY, "--config.train.steps=150", f"--workdir={folder / 'resumed'}")
    jformer(*RUNS["tiny"], f"--workdir={folder / 'resumed'}")
    for name in (*RUNS, "resumed"):
        lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
        losses = [[line["step"], line.get("loss"), line.get("nll")] for line in lines]
        found[f"{name}: losses"] = digest(json.dumps(losses).encode())
        found[f"{name}: parameters"] = digest(to_bytes(load(folder / name).params))
    source = folder / "source.txt"
    source.write_text("\n".join(f"{number} minutes and Yiddish" for number in range(40)) + "\n")
    for name, flags in SEARCHES.items():
        command = ["translate", f"--workdir={folder / 'tiny'}", f"--input={source}"]
        found[f"output of {name}"] = digest(jformer(*command, "--format=jsonl", *flags))
    return found


def jformer(*arguments: str, devices: int = 1) -> bytes:
    """Run one jformer command and return its standard output."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
    command = [sys.executable, "-m", "jformer.main", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.decode())
    return done.stdout


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    main()
