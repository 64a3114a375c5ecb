"""Configuration: the only schema, with every key, its paper section and the paper's default.

A config file edits a locked `ConfigDict` from `default_config`. `freeze` checks every value and
returns the frozen dataclasses that the program uses. All defaults are in this package: each section
is a module with its keys and their checks.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from jformer import components
from jformer.config.data import DataConfig
from jformer.config.decoding import DecodeConfig
from jformer.config.model import ON_OFF, ModelConfig
from jformer.config.training import OptimizerConfig, ParallelConfig, TrainConfig
from jformer.errors import UserError
from jformer.files import read_object, write_object
from jformer.schema import Section, choice, key, replaced, thaw, walk_components

# The token ids shared by the data, the model and the search.
PAD, BOS, EOS = 0, 1, 2
# For corpora too small for the paper's 37,000.
VOCABULARY_SIZES = {
    "phrases": 2000,
    "multi30k": 8000,
    "tatoeba": 8000,
    "iwslt14": 10_000,
    "iwslt17": 16_000,
}


@dataclasses.dataclass(frozen=True)
class Config(Section):
    path = "config"

    name: str = key("base", "name of the config, and of its default run directory", resumable=True)
    seed: int = key(0, "seed of parameters, dropout and data order", ">= 0")
    compilation_cache: str = choice(
        "keep compiled programs on disk; auto: if JAX can load them", *ON_OFF, resumable=True
    )
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)
    decode: DecodeConfig = dataclasses.field(default_factory=DecodeConfig)

    @property
    def longest(self) -> int:
        """The maximum number of positions of a text, rounded up, or of an output."""
        rounding = self.data.length_multiple - 1
        longest = self.data.max_length + max(rounding, self.decode.max_extra_length)
        return max(longest, self.decode.min_length + 1)

    def check(self) -> None:
        """Raise `UserError` for the first value that is invalid, alone or with others."""
        super().check()
        model, data, train = self.model, self.data, self.train
        if train.batch_tokens < data.max_length:
            reason = f"must be >= {data.assignment('max_length')}, the length of one pair"
            raise train.wrong("batch_tokens", reason)
        if model.max_positions < self.longest:
            reason = f"max_positions must be >= {self.longest}; or decrease config.data.max_length"
            raise model.wrong("positions", reason)
        if model.tying == "all" and not data.joint_vocabulary:
            reason = "two vocabularies cannot share a matrix; set config.model.tying=output or none"
            raise data.wrong("joint_vocabulary", reason)


def default_config(dataset: str = "phrases") -> config_dict.ConfigDict:
    """Return the paper's base model on a data set, locked against unknown keys."""
    size = VOCABULARY_SIZES.get(components.name_of(dataset), DataConfig.vocabulary_size)
    return thaw(Config(data=DataConfig(name=dataset, vocabulary_size=size)))


def freeze(config: config_dict.ConfigDict | Mapping, values: Mapping[str, Any] = {}) -> Config:
    """Return a config file's config, with other values of some keys, as a checked `Config`."""
    return overridden(replaced(Config(), config), values)


def overridden(config: Config, values: Mapping[str, Any], stored: Config | None = None) -> Config:
    """Return the config with other values of some keys; `UserError` names an invalid key.

    Component files are run, unless the config `stored` of a run already names them.
    """
    config = replaced(config, values)
    config.check()
    check_components(config, stored)
    return config


def check_components(config: Config, stored: Config | None = None) -> None:
    """Allow the files that the user's config names; raise `UserError` for an unknown option.

    A component that the config `stored` of a run already names was not named by the user.
    """
    known = [*walk_components(stored)] if stored else []
    for path, kind, text in walk_components(config):
        component = components.parse(text)
        if (path, kind, text) in known:
            continue
        if component.file:
            components.allow(component.file)
        if component.file or component.options:
            components.find(path, kind, text)


def component_files(config: Config) -> list[str]:
    """Return the files of the user's own components."""
    files = (components.parse(text).file for _, _, text in walk_components(config))
    return [file for file in dict.fromkeys(files) if file]


def write_config(config: Config, path: Path) -> None:
    write_object(path, dataclasses.asdict(config))


def read_config(path: Path) -> Config:
    """Return the config of a run, without running its component files."""
    if not path.is_file():
        raise UserError(f"{path}: not found; is {path.parent} a run directory?")
    values = read_object(path, "restore the file")
    try:
        config = replaced(Config(), values)
        config.check()
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return config
