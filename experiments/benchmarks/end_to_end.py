"""A benchmark of whole jobs: from text files to a trained model and a file that it translates.

    python -m experiments.benchmarks.end_to_end [--prefix=PREFIX] [--languages=en,de]
        [--config=tiny] [--steps=100] [--beam=1] [--held_out=1000] [--rounds=2]
        [--platform=cpu|gpu] [--contenders=marian,...] [--json=FILE] [--chart=FILE]

The text is that of PREFIX.en and PREFIX.de, or else of the embedded phrases. Its last pairs are
held out, for the validation loss and to be translated. A job is two processes, as a user starts
them: one learns a vocabulary by `tokenizers`, trains by `steps` batches of as many tokens, computes
the validation loss and saves, the other translates. `jformer` begins without any cache, and
`jformer again` is the same in another run directory with the caches of that. Both have float32 on a
CPU and bfloat16 on a GPU. All seconds are wall time, seen from outside; of the steps those that
compile another shape of batch are part, but not of the tokens a second, which have no padding.
"""

import argparse
import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.benchmarks import turns
from experiments.benchmarks.data import read_pairs
from jformer.cli import config_of_flags
from jformer.config import PAD, Config, write_config

OURS, AGAIN, MARIAN = "jformer", "jformer again", "marian"
# What each contender's process imports.
MODULES = {
    OURS: "jformer.training.loop",
    AGAIN: "jformer.training.loop",
    MARIAN: "experiments.benchmarks.marian_job",
}
# What ends a part on the standard error of jformer, in order.
MARKS = {
    "start": r"^workdir ",
    "data": r"^model ",
    "first step": r"^step 1/",
    "steps": r"train  loss",
    "validation": r"validation  nll",
}
PARTS = (*MARKS, "checkpoint", "translation")


class JobError(Exception):
    """A process of a contender has failed."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prefix", default="", help="PREFIX of the text files")
    parser.add_argument("--languages", default="en,de")
    parser.add_argument("--config", default="tiny", help="name of a config, without a data set")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--held_out", type=int, default=1000, help="pairs that are not trained on")
    turns.add_flags(parser, rounds=2)
    options = parser.parse_args()
    names = turns.chosen(parser, MODULES, options.contenders, (OURS,))
    turns.give_huge_pages()
    with tempfile.TemporaryDirectory() as folder:
        number = write_texts(Path(folder), options)
        results = take_turns(list(names), Path(folder), options)
    title = (
        f"Whole jobs, {options.config}: {number:,} pairs, {options.steps} steps, "
        f"{options.held_out:,} sentences translated by beam {options.beam}, {options.platform}"
    )
    turns.publish(title, table(results), results, options)


def write_texts(folder: Path, options: argparse.Namespace) -> int:
    """Write train.* and validation.*, and return the number of training pairs."""
    languages = options.languages.split(",")
    pairs = read_pairs(options.prefix, languages)
    number = len(pairs) - options.held_out
    for name, part in (("train", pairs[:number]), ("validation", pairs[number:])):
        for language, texts in zip(languages, zip(*part, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in texts)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return number


def take_turns(names: list[str], folder: Path, options: argparse.Namespace) -> list[turns.Result]:
    """Run each contender's whole job in each round; an answer has the figures of each round."""
    results = {name: turns.Result(name, [], 0.0, 0.0, []) for name in names}
    for name in names:
        # Who comes first must not be the one that reads the libraries from the disk.
        subprocess.run([sys.executable, "-c", f"import {MODULES[name]}"], stderr=subprocess.DEVNULL)
    for number in range(options.rounds):
        place = folder / f"round{number}"
        place.mkdir()
        for name in in_order(results, number):
            result = results[name]
            try:
                figures = (marian_job if name == MARIAN else our_job)(name, folder, place, options)
            except JobError as error:  # told in the table, the others go on without it
                if name == OURS:
                    raise
                result.error = str(error)
                continue
            words = (place / name / "output").read_text(encoding="utf-8").split()
            figures["words"] = len(words) / options.held_out
            result.seconds.append(sum(figures["seconds"].values()))
            result.memory = max(result.memory, figures["memory"])
            result.answer.append(figures)
            print(f"round {number + 1}: {name} {result.seconds[-1]:.1f} s", file=sys.stderr)
    tokens = trained_tokens(config_of(folder, options), place / "cache" / "jformer")
    for result in results.values():
        result.first = result.seconds[0] if result.seconds else 0.0
        for figures in result.answer:
            figures.setdefault("tokens", tokens)
    return list(results.values())


def in_order(results: dict[str, turns.Result], number: int) -> list[str]:
    """Return who takes part in a round: `AGAIN` after `OURS`, whose caches it has."""
    able = [name for name, result in results.items() if not result.error]
    order = turns.in_order([name for name in able if name != AGAIN], number)
    if AGAIN in able:
        order.insert(order.index(OURS) + 1, AGAIN)
    return order


def our_flags(folder: Path, options: argparse.Namespace) -> list[str]:
    """Return the flags of a run that is logged, validated and saved after its last step only."""
    at_the_end = [f"train.{name}_every" for name in ("log", "evaluate", "checkpoint")]
    keys = {
        "train.steps": options.steps,
        **dict.fromkeys(at_the_end, options.steps),
        "decode.beam_size": options.beam,
    }
    return config_flags(folder, options, keys)


def config_flags(folder: Path, options: argparse.Namespace, keys: dict[str, Any]) -> list[str]:
    """Return the flags of a run on the texts in a folder, with other keys as given."""
    source, target = options.languages.split(",")
    keys = {
        "data.source_language": source,
        "data.target_language": target,
        "data.train": folder / "train",
        "data.validation": folder / "validation",
        **keys,
    }
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return [f"--config={options.config}:files", *flags]


def our_environment(cache: Path, options: argparse.Namespace) -> dict[str, str]:
    """Return the environment of jformer's processes, with a cache of their own."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment["JAX_PLATFORMS"] = turns.PLATFORMS[options.platform]
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # it would be full in the first round
    return environment


def source_of(folder: Path, options: argparse.Namespace) -> str:
    return str(folder / f"validation.{options.languages.split(',')[0]}")


def config_of(folder: Path, options: argparse.Namespace) -> Config:
    return config_of_flags(our_flags(folder, options))


def our_job(name: str, folder: Path, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    workdir, program = place / name, [sys.executable, "-m", "jformer.main"]
    environment = our_environment(place / "cache", options)
    train = [*program, *our_flags(folder, options), f"--workdir={workdir}"]
    translate = [f"--workdir={workdir}", f"--output={workdir / 'output'}"]
    translate.append(f"--input={source_of(folder, options)}")
    figures = run_job([train, [*program, "translate", *translate]], environment, MARKS)
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    by_split = {line["split"]: line for line in map(json.loads, lines)}
    figures["tokens_per_second"] = by_split["train"]["tokens_per_second"]
    return {**figures, "nll": by_split["validation"]["nll"]}


def marian_job(name: str, folder: Path, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    own = place / name
    own.mkdir()
    write_config(config_of(folder, options), own / "config.json")
    program = [sys.executable, "-m", "experiments.benchmarks.marian_job"]
    device = turns.PLATFORMS[options.platform]
    rest = [str(own), device, "bfloat16" if device == "cuda" else "float32"]
    files = [source_of(folder, options), str(options.steps), str(own / "output")]
    commands = [[*program, "train", *rest], [*program, "translate", *rest, *files]]
    figures = run_job(commands, dict(os.environ), {part: f"^{part}$" for part in MARKS})
    return {**figures, **json.loads((own / "metrics.json").read_text(encoding="utf-8"))}


def run_job(
    commands: list[list[str]], environment: dict[str, str], marks: dict[str, str]
) -> dict[str, Any]:
    """Train and translate; return the seconds of each part, and the peak memory in bytes."""
    train, translate = commands
    seconds, most = watch(train, environment, marks)
    translating, other = watch(translate, environment, {})
    seconds = {**seconds, "translation": sum(translating.values())}
    return {"seconds": dict(zip(PARTS, seconds.values(), strict=True)), "memory": max(most, other)}


def watch(
    command: list[str], environment: dict[str, str], marks: dict[str, str]
) -> tuple[dict[str, float], int]:
    """Run a process; return its seconds up to each mark and to its end, and its peak memory.

    A mark is the pattern of a line on its standard error. Linux counts to a process's peak what the
    one that started it had at that time, so this program must stay smaller than the contenders.
    """
    last, seconds, line = time.perf_counter(), {}, ""
    waiting = [*marks.items()]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    with process.stderr:
        for line in process.stderr:
            if waiting and re.search(waiting[0][1], line):
                now = time.perf_counter()
                seconds[waiting.pop(0)[0]], last = now - last, now
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds["end"] = time.perf_counter() - last
    if process.returncode:
        raise JobError(line.strip() or f"exit status {process.returncode}")
    if waiting:
        raise JobError(f"{' '.join(command[1:3])} has said nothing like {waiting[0][1]!r}")
    return seconds, 1024 * usage.ru_maxrss


def trained_tokens(config: Config, cache: Path) -> int:
    """Return the target tokens without padding of the batches that jformer has trained on."""
    from jformer.data.batches import iterate, make_batches
    from jformer.data.datasets import open_corpora
    from jformer.data.tokens import make_vocabularies, tokenize_corpora

    data = dataclasses.replace(config.data, cache=str(cache))
    corpora = open_corpora(dataclasses.replace(config, data=data))["train"]
    vocabularies = make_vocabularies(corpora, data)
    tokenized = tokenize_corpora(corpora, vocabularies, data)
    batches = make_batches(config, tokenized.pairs, tokenized.rows, vocabularies)
    made = iterate(batches, config.train.steps)
    return sum(int((batch["labels_BT"] != PAD).sum()) for batch, _ in made)


def table(results: list[turns.Result]) -> str:
    header = [
        "",
        "speed, jformer = 1",
        "seconds",
        *PARTS,
        "target tokens",
        "tokens a second",
        "validation NLL",
        "words an output",
        "host memory, MB",
    ]
    rows = []
    for result in results:
        if result.error:
            rows.append([result.name, result.error, *[""] * (len(header) - 2)])
            continue
        rounds = result.answer
        parts = [[each["seconds"][part] for each in rounds] for part in PARTS]
        tokens, speed, nll, words = (
            statistics.median(each[name] for each in rounds)
            for name in ("tokens", "tokens_per_second", "nll", "words")
        )
        rows.append(
            [
                result.name,
                turns.spread(result.ratios(results[0])),
                f"{statistics.median(result.seconds):.1f}",
                *(f"{statistics.median(part):.1f}" for part in parts),
                f"{tokens:,.0f}",
                f"{speed:,.0f}",
                f"{nll:.3f}",
                f"{words:.1f}",
                f"{result.memory / 1e6:,.0f}",
            ]
        )
    return turns.markdown(header, rows)


if __name__ == "__main__":
    main()
