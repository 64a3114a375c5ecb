"""Train, translate and score Transformers.

    python -m jformer.main [train] --config=configs/tiny.py[:DATASET] [--workdir=DIR]
    python -m jformer.main translate --workdir=DIR [--input=FILE] [--output=FILE]
    python -m jformer.main evaluate  --workdir=DIR [--data=PREFIX]
    python -m jformer.main summary   --config=configs/base.py

    train      train, then score; the same command again resumes, or prints the scores of a
               complete run
    translate  one line out for each line in; standard input and output by default
    evaluate   score the run's test splits, or PREFIX.en and PREFIX.de, each also as .gz
    summary    parameters by module, no training

Results go to standard output, everything else to standard error. Exit status: 0 done, 2 the
user's mistake in one line, 1 a failure of ours, 130 interrupted. DATASET is phrases, multi30k or
files. --debug shows the traceback of a mistake.
"""
# Flags and sub-commands only: no other module reads a flag. Whatever imports JAX is imported where
# it is used, so that --help and a mistyped flag answer at once.

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from jformer.config import (
    Config,
    UserError,
    check_flags,
    freeze,
    help_text,
    nearest,
    read_config,
    thaw,
)

EXAMPLES_SHOWN = 5


def main(argv: list[str]) -> int:
    """Run one command line, program name first, and return its exit status."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, force=True)
    if "--help" in argv or "-h" in argv:
        print(f"{__doc__}\nConfig keys, with the paper's base model as default:\n{help_text()}")
        return 0
    try:
        command, arguments = split_command(argv[1:])
        return command(arguments)
    except (UserError, flags.Error) as error:
        if "--debug" in argv:
            raise
        print(f"jformer: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jformer: interrupted; the same command resumes", file=sys.stderr)
        return 130


def run_main() -> None:
    """The console script."""
    use_huge_pages()
    sys.exit(main(sys.argv))


def use_huge_pages() -> None:
    """Start this process once more, with malloc on huge pages.

    XLA's CPU backend takes fresh memory for the temporaries of each step. With small pages a third
    of the step goes into page faults, and glibc reads this setting only when a process starts.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def split_command(arguments: list[str]) -> tuple[Callable[[list[str]], int], list[str]]:
    commands = {
        "train": train_command,
        "translate": translate_command,
        "evaluate": evaluate_command,
        "summary": summary_command,
    }
    if not arguments or arguments[0].startswith("-"):
        return train_command, arguments
    if arguments[0] not in commands:
        raise UserError(f"no command {arguments[0]!r}{nearest(arguments[0], commands)}")
    return commands[arguments[0]], arguments[1:]


def train_command(arguments: list[str]) -> int:
    values = parse(arguments, required=["config"], optional=["workdir"])
    config = values["config"]
    workdir = Path(values["workdir"] or default_workdir(config))
    say(f"workdir     {workdir}")
    say(f"config      {config.name}, {config.train.steps:,} steps on {config.data.name}")

    from jformer.data.corpora import load_splits
    from jformer.run import load, read_results
    from jformer.training.loop import check_same_config, train

    check_same_config(config, workdir)
    splits = load_splits(config.data, config.seed)
    make_directory(workdir)
    train(config, splits, workdir)
    run = load(workdir)
    results = read_results(workdir)
    tests = {name: split for name, split in splits.items() if name not in ("train", "validation")}
    if all(results.get(name, {}).get("step") == run.step for name in tests):
        say(f"the run is complete at step {run.step}; --config.train.steps=MORE goes on")
        print_results({name: results[name] for name in tests})
        return 0
    print_results(score_splits(run, tests))
    return 0


def evaluate_command(arguments: list[str]) -> int:
    values = parse(arguments, required=["workdir"], optional=["data"], run_config=True)

    from jformer.data.corpora import load_splits, read_pair
    from jformer.run import load

    config = values["config"]
    if values["data"]:
        languages = config.data.source_language, config.data.target_language
        tests = {values["data"]: read_pair(values["data"], *languages)}
    else:
        splits = load_splits(config.data, config.seed)
        tests = {name: split for name, split in splits.items() if name != "train"}
    print_results(score_splits(load(values["workdir"]).with_decode(config.decode), tests))
    return 0


def translate_command(arguments: list[str]) -> int:
    values = parse(
        arguments, required=["workdir"], optional=["input", "output"], run_config=True
    )

    from jformer.data.corpora import decode_lines, read_lines
    from jformer.run import load

    output = Path(values["output"]) if values["output"] else None
    if output and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise UserError(f"{output}: cannot be written; its folder must exist")
    if values["input"]:
        if not Path(values["input"]).is_file():
            raise UserError(f"{values['input']}: no such file")
        sentences = read_lines(Path(values["input"]))
    else:
        sentences = decode_lines(sys.stdin.buffer.read(), "standard input")
    run = load(values["workdir"]).with_decode(values["config"].decode)
    # A translation could hold a line break of its own; the lines must stay those of the input.
    lines = [" ".join(text.split("\n")) + "\n" for text in run.translate(sentences)]
    content = "".join(lines).encode("utf-8", errors="replace")
    if output:
        output.write_bytes(content)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    return 0


def summary_command(arguments: list[str]) -> int:
    values = parse(arguments, required=["config"])

    from jformer.run import count_parameters

    config = values["config"]
    counts = count_parameters(config)
    width = max(map(len, counts))
    for module, count in counts.items():
        print(f"{module:<{width}}  {count:>13,}")
    print(f"{'total':<{width}}  {sum(counts.values()):>13,}")
    say(f"with a vocabulary of {config.data.vocabulary_size:,} (config.data.vocabulary_size)")
    return 0


def parse(
    arguments: list[str],
    *,
    required: list[str],
    optional: list[str] = (),
    run_config: bool = False,
) -> dict[str, Any]:
    """`{flag: value}`, `config` checked and frozen; anything unknown or missing is an error.

    `run_config`: the config is that of the run in `--workdir`, and only `decode` may differ.
    """
    check_flags(arguments)
    values = flags.FlagValues()
    for name in (*required, *optional):
        if name != "config":
            flags.DEFINE_string(name, None, "", flag_values=values)
    flags.DEFINE_bool("debug", False, "", flag_values=values)
    known = {"sys_argv": ["jformer", *arguments], "flag_values": values}
    if run_config:
        workdir = flag_value(arguments, "workdir")
        stored = read_config(Path(workdir) / "config.json") if workdir else Config()
        for argument in arguments:
            if argument.startswith("--config.") and not argument.startswith("--config.decode."):
                raise UserError(f"{argument}: the run is trained; only config.decode.* can change")
        config_flags.DEFINE_config_dict("config", thaw(stored), **known)
    else:
        config_flags.DEFINE_config_file("config", None, **known)
    try:
        rest = values(["jformer", *arguments])[1:]
    except OSError as error:
        path = flag_value(arguments, "config")
        raise UserError(f"--config={path}: no such file; try configs/tiny.py") from error
    except (AttributeError, TypeError, SyntaxError) as error:
        raise UserError(f"--config={flag_value(arguments, 'config')}: {error}") from error
    if rest:
        raise UserError(f"{rest[0]!r} is neither a flag nor a command; values follow a flag's =")
    for name in required:
        if not values[name].value:
            raise UserError(f"--{name} is missing, as in --{name}={EXAMPLE_VALUES[name]}")
    parsed = {name: values[name].value for name in (*required, *optional)}
    return {**parsed, "config": freeze(values["config"].value)}


EXAMPLE_VALUES = {"config": "configs/tiny.py", "workdir": "runs/tiny-phrases-en-de"}


def flag_value(arguments: list[str], name: str) -> str | None:
    """The value of `--name=value` or `--name value` before absl has parsed anything."""
    for argument, following in zip(arguments, [*arguments[1:], None], strict=True):
        if argument == f"--{name}":
            return following
        if argument.startswith(f"--{name}="):
            return argument.partition("=")[2]
    return None


def default_workdir(config: Config) -> str:
    data = config.data
    return f"runs/{config.name}-{data.name}-{data.source_language}-{data.target_language}"


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--workdir={path}: cannot be made ({error.strerror})") from error


def score_splits(run: Any, tests: dict[str, Any]) -> dict[str, Any]:
    """Translate and score each split, showing some of its translations."""
    from jformer.run import score_split

    scores = {}
    for name, split in tests.items():
        scores[name], hypotheses = score_split(run, name, split)
        say(f"\n{name}: {len(split):,} pairs, BLEU {scores[name]['bleu']:.2f}")
        for i in range(0, len(split), max(1, len(split) // EXAMPLES_SHOWN))[:EXAMPLES_SHOWN]:
            say(f"  source     {split.sources[i]}")
            say(f"  reference  {split.targets[i]}")
            say(f"  output     {hypotheses[i]}")
    return scores


def print_results(results: dict[str, Any]) -> None:
    print(json.dumps(results), flush=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_main()
