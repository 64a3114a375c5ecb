"""The contenders of `time_to_bleu`, with their commands for training and translation."""

import argparse
import dataclasses
import json
import os
import string
import sys
from collections.abc import Callable
from pathlib import Path

from experiments.benchmarks import turns
from jformer.components import arguments
from jformer.config import Config, TrainConfig, write_config
from jformer.training.checkpoints import averaged

JOB = Path(__file__).with_name("joeynmt_job.py")
SHORT_OUTPUT = 10  # limits outputs in JoeyNMT's own validation, to save time


@dataclasses.dataclass
class Contender:
    train: list[str]  # the command for training
    # Makes the command for translation: source file, steps to average, output file.
    translate: Callable[[str, str, str], list[str]]
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


def peer_config(folder: Path, options: argparse.Namespace) -> Config:
    """Return the config with the changes of `--peers`."""
    return turns.make_config(flags_of(folder, options), options.peers)


def rates_of(config: Config) -> list[float]:
    """Return the learning rate of each step."""
    import jax
    import numpy as np

    from jformer.training.schedules import learning_rate

    jax.config.update("jax_platforms", "cpu")  # leaves the GPU to the contenders
    return learning_rate(config)(np.arange(config.train.steps)).tolist()


def ours(folder: Path, options: argparse.Namespace) -> Contender:
    flags, program = flags_of(folder, options), [sys.executable, "-m", "jformer.main"]
    workdir = folder / "run"

    def translate(source: str, steps: str, output: str) -> list[str]:
        files = [f"--input={source}", f"--output={output}", f"--checkpoint={steps}"]
        return [*program, "translate", f"--workdir={workdir}", *files]

    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # it may have programs already
    train, config = [*program, *flags, f"--workdir={workdir}"], turns.make_config(flags, "").train
    return Contender(train, translate, workdir / "checkpoints", config, environment=environment)


def marian(folder: Path, options: argparse.Namespace, dtype: str = "float32") -> Contender:
    config = peer_config(folder, options)
    write_config(config, folder / "config.json")
    (folder / "rates.json").write_text(json.dumps(rates_of(config)))
    program = [sys.executable, "-m", "experiments.benchmarks.marian_job"]
    rest = [str(folder), turns.PLATFORMS[options.platform], dtype]
    return Contender(
        [*program, "train", *rest],
        lambda *files: [*program, "translate", *rest, *files],
        folder / "checkpoints",
        config.train,
    )


def marian_bf16(folder: Path, options: argparse.Namespace) -> Contender:
    return marian(folder, options, "bfloat16")


def joeynmt(folder: Path, options: argparse.Namespace) -> Contender:
    config = peer_config(folder, options)
    names = {
        "folder": folder,
        "train": folder.parent / "train",
        "one_pair": folder.parent / "one_pair",
        "use_cuda": options.platform == "gpu",
        "seed": config.seed,
        "decoder_layers": config.model.decoder_layers,
        "peak_rate": max(rates_of(config)),
        "weight_decay": 0.0,
        **arguments("optimizer", config.optimizer.name),
    }
    for section in (config.data, config.model, config.train, config.optimizer, config.decode):
        names = {**dataclasses.asdict(section), **names}
    template = string.Template(JOB.with_name("joeynmt.yaml").read_text())
    training = template.substitute(names, max_output_length=SHORT_OUTPUT)
    (folder / "train.yaml").write_text(training)
    translating = template.substitute(names, max_output_length=config.data.max_length)
    (folder / "translate.yaml").write_text(f"{translating}  load_model: {folder}/mean.ckpt\n")
    program = [options.joeynmt, str(JOB)]
    texts = [f"{folder.parent / 'train'}.{language}" for language in options.languages.split(",")]
    size = str(config.data.vocabulary_size)
    return Contender(
        [*program, "train", str(folder), size, *texts],
        lambda *files: [*program, "translate", str(folder), *files],
        folder / "model",
        config.train,
        ".ckpt",
    )


MAKERS = {"jformer": ours, "marian": marian, "marian bf16": marian_bf16, "joeynmt": joeynmt}
