"""Configuration: the one schema with every key, its paper section and the paper's default.

A config file edits a locked `ConfigDict` made by `default_config`. The program works on frozen
dataclasses, made by `freeze`, which checks every value. Nothing else in the package has defaults
of its own: a section per module here, each with its keys and their checks.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from jformer.config.data import DataConfig
from jformer.config.decoding import SEEDS, DecodeConfig
from jformer.config.model import ModelConfig
from jformer.config.training import OptimizerConfig, ParallelConfig, TrainConfig
from jformer.errors import UserError
from jformer.files import read_object, write_object
from jformer.schema import Section, choice, is_own, key, nearest, paths, replaced, thaw, walk

# The token ids on which the data, the model and the search agree.
PAD, BOS, EOS = 0, 1, 2
# For corpora that are too small for the paper's 37,000.
VOCABULARY_SIZES = {
    "phrases": 2000,
    "multi30k": 8000,
    "tatoeba": 8000,
    "iwslt14": 10_000,
    "iwslt17": 16_000,
    "parsing": 16_000,  # Section 6.3, for the Wall Street Journal alone
}
# A parser translates words into linearised trees.
PARSING = {
    "data.source_language": "words",
    "data.target_language": "tree",
    "data.joint_vocabulary": False,
    "data.target_tokenizer": "words",
    "model.tying": "output",
    "decode.constraint": "trees",
}
RENAMED = {"consistency": "r_drop_alpha"}  # keys of config.train in runs made before 0.2


@dataclasses.dataclass(frozen=True)
class Config(Section):
    path = "config"

    name: str = key("base", "name of the config, and of its default run directory", resumable=True)
    seed: int = key(0, "seed of the parameters, dropout, data order and phrases", *SEEDS)
    plugins: str = paths(
        "Python files, with commas between, that define parts of your own; docs/plugins.md"
    )
    compilation_cache: str = choice(
        "keep compiled programs in the folder that doctor names; auto: where JAX loads them again",
        "auto",
        "on",
        "off",
        resumable=True,
    )
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)
    decode: DecodeConfig = dataclasses.field(default_factory=DecodeConfig)

    @property
    def longest(self) -> int:
        """The most positions that a text, in a row of rounded length, or an output takes."""
        rounding = self.data.length_multiple - 1
        longest = self.data.max_length + max(rounding, self.decode.max_extra_length)
        return max(longest, self.decode.min_length + 1)

    @property
    def plugin_files(self) -> list[str]:
        return [name for name in self.plugins.split(",") if name]

    def check_own_parts(self) -> None:
        """Raise `UserError` for a part that is not ours where no plugin is named to define it."""
        if self.plugins:
            return
        for path, field, value in walk(self):
            if is_own(field, value):
                known = nearest(value, field.metadata["bounds"])
                raise UserError(
                    f"config.{path}={value}: is unknown{known}; a part of your own is defined in "
                    f"a file named by config.plugins"
                )

    def check(self) -> None:
        """Raise `UserError` for the first value that cannot work, alone or with others."""
        model, data, train = self.model, self.data, self.train
        model.check()
        for section in (self, data, train, self.optimizer, self.parallel, self.decode):
            section.check_keys()
        data.check()
        train.check()
        self.optimizer.check(train.steps)
        self.parallel.check()
        self.decode.check(model.decoder_layers)
        self._check_parsing()
        if train.batch_tokens < data.max_length:
            reason = (
                f"one pair may be as long as data.max_length={data.max_length}; raise the one or "
                f"lower the other"
            )
            raise train.wrong("batch_tokens", reason)
        if model.positions == "learned" and model.max_positions < self.longest:
            keys = (
                "data.max_length, data.length_multiple, decode.max_extra_length and "
                "decode.min_length"
            )
            raise model.wrong("max_positions", f"must be >= {self.longest}, for {keys}")
        if model.tying == "all" and not data.joint_vocabulary:
            reason = "two vocabularies cannot share a matrix; set config.model.tying=output or none"
            raise data.wrong("joint_vocabulary", reason)

    def _check_parsing(self) -> None:
        """Raise `UserError` for keys that a parser, or a search for trees, cannot follow."""
        data, decode = self.data, self.decode
        if decode.constraint == "trees":
            if data.name != "parsing":
                raise decode.wrong("constraint", f"is not for {data.assignment('name')}")
            if data.target_tokenizer != "words":
                raise decode.wrong("constraint", "needs config.data.target_tokenizer=words")
            for name, value in {"keep": "", "min_length": 0, "long_texts": "cut"}.items():
                if getattr(decode, name) != value:
                    raise decode.wrong(name, "is not for config.decode.constraint=trees")
        if data.name == "parsing":
            if data.normalization != "none":
                raise data.wrong("normalization", "changes the labels of trees; set it to none")
            if decode.choose == "mbr" and decode.constraint == "none":
                raise decode.wrong("choose", "needs trees: config.decode.constraint=trees")
        if self.train.best_by == ("bleu" if data.name == "parsing" else "f1"):
            raise self.train.wrong("best_by", f"is not for {data.assignment('name')}")


def default_config(dataset: str = "phrases") -> config_dict.ConfigDict:
    """Return the paper's base model on `dataset`, locked against keys that the schema lacks.

    Whether there is such a data set is checked later, when it is known which plugins there are.
    """
    size = VOCABULARY_SIZES.get(dataset, DataConfig.vocabulary_size)
    config = thaw(Config(data=DataConfig(name=dataset, vocabulary_size=size)))
    config.update_from_flattened_dict(PARSING if dataset == "parsing" else {})
    return config


def freeze(config: config_dict.ConfigDict | dict, of_run: bool = False) -> Config:
    """Return the same values as a checked, hashable `Config`; `UserError` names a bad key.

    The config `of_run` that is trained may lack the plugins that it was trained with.
    """
    frozen = replaced(Config(), config if isinstance(config, dict) else config.to_dict())
    frozen.check()
    if not of_run:
        frozen.check_own_parts()
    return frozen


def write_config(config: Config, path: Path) -> None:
    write_object(path, dataclasses.asdict(config))


def read_config(path: Path) -> Config:
    if not os.path.exists(path):
        raise UserError(f"{path}: no such file; is {path.parent} the directory of a run?")
    values = read_object(path, "restore the file")
    try:
        return freeze(with_current_names(values))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def with_current_names(values: dict[str, Any]) -> dict[str, Any]:
    """Return a stored config with today's names of its keys."""
    if not isinstance(train := values.get("train"), dict):
        return values
    return {**values, "train": {RENAMED.get(name, name): train[name] for name in train}}
