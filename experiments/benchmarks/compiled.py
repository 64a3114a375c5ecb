"""Memory, traffic and collectives of the train step on devices that this machine lacks.

    python -m experiments.benchmarks.compiled gpu|tpu|scaling --output=DIR [--only=PATTERN]

Each row is one compilation of the train step in bfloat16, with packed rows of 256 tokens and a
vocabulary of 37,000. A compilation takes 10 seconds for a GPU, and one to two minutes for a TPU.
Each result is appended at once to DIR/TABLE.jsonl, and a rerun skips the results in that file. The
command prints the table and writes it to DIR/TABLE.md. The extra `targets` installs the compilers.
"""

import argparse
import collections
import fnmatch
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import jformer
from experiments.benchmarks import turns
from jformer.extras import targets

KEYS = {"data.batching": "packed", "data.vocabulary_size": 37000}
LENGTH = 256
# Config, source tokens (and as many target tokens) per chip, target, other keys.
Row = tuple[str, int, str, dict[str, Any]]
TPU: list[Row] = [
    ("base", 24_576, "v5e", {}),
    ("base", 24_576, "v5e-4", {}),
    ("base", 24_576, "v5e-8", {}),
    ("base", 24_576, "v5e-4", {"parallel.fsdp": 4}),
    ("base", 24_576, "v5e-4", {"parallel.fsdp": 2, "parallel.model": 2}),
    ("base", 49_152, "v5p-4", {}),
    ("base", 24_576, "v6e", {}),
    ("big", 8_192, "v5e", {}),
    ("big", 12_288, "v5e-8", {"parallel.fsdp": 8}),
    ("big", 12_288, "v5e-8", {"parallel.fsdp": 4, "parallel.model": 2}),
    ("big", 24_576, "v5p-4", {}),
    ("big", 24_576, "v6e-4", {}),
]
GPU: list[Row] = [
    ("base", 49_152, "h100", {}),
    ("base", 49_152, "h200", {}),
    ("base", 49_152, "a100", {}),
    ("base", 49_152, "a100", {"model.attention_kernel": "cudnn"}),
    ("big", 24_576, "h100", {}),
    ("big", 24_576, "h200", {}),
    ("base", 49_152, "h100", {"model.attention_kernel": "xla"}),
    ("base", 49_152, "h100", {"data.vocabulary_size": 37120}),
]
SCALING: list[Row] = [
    (config, tokens, f"{device}{chips}", {})
    for device, config, tokens in (
        ("h100", "base", 49_152),
        ("h100", "big", 24_576),
        ("v5p", "base", 49_152),
        ("v5p", "big", 24_576),
    )
    for chips in ("", "-8", "-64")
]
TABLES = {"gpu": GPU, "tpu": TPU, "scaling": SCALING}
HEAD = [
    "config", "target", "parallel", "tokens per chip", "state GB", "temporaries GB", "traffic GB",
    "TFLOP", "kernels", "roofline ms", "collectives", "exchanged MB", "exchange ms", "compile s",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default="*", help="pattern for CONFIG TARGET KEYS")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{options.table}.jsonl"
    path.touch()
    done = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    done = [row for row in done if "error" not in row]
    for row in TABLES[options.table]:
        name = name_of(row)
        if any(each["row"] == name for each in done) or not fnmatch.fnmatch(name, options.only):
            continue
        done.append({"row": name, **measure(*row)})
        print(json.dumps(done[-1]), file=sys.stderr, flush=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(done[-1]) + "\n")
    table = turns.markdown(HEAD, [list(cells(each)) for each in done])
    (options.output / f"{options.table}.md").write_text(table + "\n", encoding="utf-8")
    print(table)


def name_of(row: Row) -> str:
    config, _, target, keys = row
    return " ".join([config, target, *(f"{key}={value}" for key, value in keys.items())])


def measure(config: str, tokens: int, target: str, keys: dict[str, Any]) -> dict[str, Any]:
    began, where = time.monotonic(), targets.parse_target(target)
    frozen = jformer.get_config(config, **{**KEYS, **keys})
    batch = {"config": config, "target": target, "tokens": tokens, "keys": keys}
    try:
        cost = targets.compile_step(frozen, where, tokens * where.chips, LENGTH)
    except Exception as error:  # noqa: BLE001  recorded in the table; a small memory, for example
        reason = f"{type(error).__name__}: {error}"
        return {**batch, "error": " ".join(reason.split())[:300]}
    return {
        **batch,
        "state": cost.state,
        "temporaries": cost.temporaries,
        "bytes": cost.bytes,
        "flops": cost.flops,
        "kernels": sum(each.runs for each in cost.kernels),
        "seconds": cost.compute_seconds,
        "collectives": [(each.collective, each.runs, each.bytes) for each in cost.collectives],
        "collective_seconds": cost.collective_seconds,
        "took": time.monotonic() - began,
    }


def cells(row: dict[str, Any]) -> Iterator[str]:
    keys = {key.removeprefix("parallel."): value for key, value in row["keys"].items()}
    yield from (row["config"], row["target"])
    yield ", ".join(f"{key}={value}" for key, value in keys.items()) or "data"
    yield f"{row['tokens']:,}"
    if "error" in row:
        yield row["error"].replace("|", "/")
        return
    runs, exchanged = collections.Counter[str](), 0
    for kind, number, moved in row["collectives"]:
        runs[kind] += number
        exchanged += moved
    yield f"{row['state'] / 1e9:.2f}"
    yield f"{row['temporaries'] / 1e9:.2f}"
    yield f"{row['bytes'] / 1e9:.1f}"
    yield f"{row['flops'] / 1e12:.2f}"
    yield f"{row['kernels']:,}"
    yield f"{1e3 * row['seconds']:.1f}"
    yield ", ".join(f"{number} {kind}" for kind, number in runs.items())
    yield f"{exchanged / 1e6:,.0f}"
    yield f"{1e3 * row['collective_seconds']:.1f}"
    yield f"{row['took']:.0f}"


if __name__ == "__main__":
    main()
