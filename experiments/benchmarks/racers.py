"""The contenders of `time_to_bleu`, with their commands for training and translation."""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.benchmarks import turns
from jformer.cli import config_of_flags
from jformer.components import arguments, name_of, split_list
from jformer.config import Config, TrainConfig, write_config
from jformer.training.checkpoints import averaged

JOB = str(Path(__file__).with_name("joeynmt_job.py"))


@dataclasses.dataclass
class Contender:
    train: list[str]  # the command for training
    translate: Callable[
        [list[int], Path], list[str]
    ]  # command that averages checkpoints, writes a file
    checkpoints: Path  # the folder of checkpoints
    config: TrainConfig
    ending: str = ""  # suffix of a checkpoint's name, after its step
    environment: dict[str, str] | None = None

    def steps(self) -> list[int]:
        """Return the steps of the existing checkpoints."""
        names = (path.name for path in self.checkpoints.glob(f"*{self.ending}"))
        steps = (name.removesuffix(self.ending) for name in names)
        return sorted(int(step) for step in steps if step.isdecimal())

    def averaged(self, step: int) -> list[int]:
        """Return the steps of the checkpoints to average for a run that ends at `step`."""
        return averaged([each for each in self.steps() if each <= step], True, self.config)


def flags_of(folder: Path, options: argparse.Namespace) -> list[str]:
    """Return flags for a run on the texts in the parent of `folder`. It keeps all checkpoints."""
    source, target = options.languages.split(",")
    keys = {
        "data.source_language": source,
        "data.target_language": target,
        "data.train": folder.parent / "train",
        "data.validation": folder.parent / "validation",
        "train.keep_every": 1,
    }
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return [f"--config={options.config}:files", *flags]


def source_of(folder: Path, options: argparse.Namespace) -> str:
    return str(folder / f"validation.{options.languages.split(',')[0]}")


def our_environment(cache: Path, options: argparse.Namespace) -> dict[str, str]:
    """Return the environment of jformer's processes, with an empty cache."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment["JAX_PLATFORMS"] = turns.PLATFORMS[options.platform]
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # it may have programs already
    return environment


def config_of(folder: Path, options: argparse.Namespace, keys: str = "") -> Config:
    """Return the config with `keys` changed, a comma-separated list of KEY=VALUE."""
    more = [f"--config.{each}" for each in split_list(keys)]
    return config_of_flags([*flags_of(folder, options), *more])


def ours(folder: Path, options: argparse.Namespace) -> Contender:
    program, workdir = [sys.executable, "-m", "jformer.main"], folder / "run"

    def translate(steps: list[int], output: Path) -> list[str]:
        files = [f"--input={source_of(folder.parent, options)}", f"--output={output}"]
        checkpoint = f"--checkpoint={comma_separated(steps)}"
        return [*program, "translate", f"--workdir={workdir}", checkpoint, *files]

    return Contender(
        [*program, *flags_of(folder, options), f"--workdir={workdir}"],
        translate,
        workdir / "checkpoints",
        config_of(folder, options).train,
        environment=our_environment(folder / "cache", options),
    )


def marian(folder: Path, options: argparse.Namespace, dtype: str) -> Contender:
    config = config_of(folder, options, options.peers)
    write_config(config, folder / "config.json")
    program = [sys.executable, "-m", "experiments.benchmarks.marian_job"]
    rest = [str(folder), turns.PLATFORMS[options.platform], dtype]

    def translate(steps: list[int], output: Path) -> list[str]:
        files = [source_of(folder.parent, options), comma_separated(steps), str(output)]
        return [*program, "translate", *rest, *files]

    return Contender([*program, "train", *rest], translate, folder / "checkpoints", config.train)


def joeynmt(folder: Path, options: argparse.Namespace) -> Contender:
    config = config_of(folder, options, options.peers)
    model, train = config.model, config.train
    optimizer = {"weight_decay": 0.0, **arguments("optimizer", config.optimizer.name)}
    settings = {
        "languages": options.languages.split(","),
        "train": str(folder.parent / "train"),
        "one_pair": str(folder.parent / "one_pair"),
        "device": turns.PLATFORMS[options.platform],
        "seed": config.seed,
        "decoder_layers": model.decoder_layers,
        "learning_rate": peak_rate(config),
        **values(config.data, "vocabulary_size", "max_length"),
        **values(model, "num_layers", "d_model", "d_ff", "num_heads", "dropout", "norm_position"),
        **values(train, "steps", "batch_tokens", "checkpoint_every", "label_smoothing"),
        **values(config.optimizer, "warmup_steps"),
        **{name: optimizer[name] for name in ("beta1", "beta2", "weight_decay")},
        **values(config.decode, "batch_size", "beam_size", "length_penalty"),
    }
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    program = [options.joeynmt, JOB]

    def translate(steps: list[int], output: Path) -> list[str]:
        files = [source_of(folder.parent, options), comma_separated(steps), str(output)]
        return [*program, "translate", str(folder), *files]

    command = [*program, "train", str(folder)]
    return Contender(command, translate, folder / "model", config.train, ".ckpt")


def comma_separated(steps: list[int]) -> str:
    return ",".join(map(str, steps))


def values(section: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(section, name) for name in names}


def peak_rate(config: Config) -> float:
    optimizer = config.optimizer
    if name_of(optimizer.schedule) != "equation_3":
        return optimizer.learning_rate
    factor = arguments("schedule", optimizer.schedule)["factor"]
    return factor * (config.model.d_model * optimizer.warmup_steps) ** -0.5
