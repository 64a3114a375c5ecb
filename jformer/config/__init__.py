"""Configuration: the only schema, with every key, its paper section and the paper's default.

A config file edits a locked `ConfigDict` from `default_config`. `freeze` checks every value and
returns the frozen dataclasses that the program uses. Each section of keys is a class with the
checks of its keys. All defaults are here.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from jformer import components, schema
from jformer.backend import compute_capability, target_platform
from jformer.components import NAMED_DATASETS, name_of, parse, split_list
from jformer.files import read_object, write_object
from jformer.schema import RATE, Section, choice, component, key, paths

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
HOPPER = 9.0  # the compute capability of the GPUs where attention_kernel=auto selects cuDNN
ON_OFF = ("auto", "on", "off")
DTYPES = ("auto", "float32", "bfloat16")
REMATS = ("none", "layer", "dots")
WITH_RATE = ("schedule", "inverse_sqrt", "linear", "cosine", "constant")
ADDRESS = re.compile(r"(.+:\d+)/(\d+)/(\d+)")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Section):
    """The size of the Transformer and the variants of its parts."""

    path = "config.model"

    num_layers: int = key(6, "layers of each stack, N; Section 3.1", ">= 1")
    num_decoder_layers: int | None = key(None, "layers of the decoder, if different", ">= 1")
    d_model: int = key(512, "width of embeddings and layers; Section 3.1", ">= 2")
    d_ff: int = key(2048, "inner width of feed-forward layers; Section 3.3", ">= 1")
    num_heads: int = key(8, "attention heads, h; Section 3.2.2", ">= 1")
    d_k: int | None = key(None, "width of queries and keys; unset: d_model / h", ">= 1")
    d_v: int | None = key(None, "width of values; unset: d_model / h", ">= 1")
    dropout: float = key(0.1, "dropout rate, P_drop; Section 5.4", *RATE)
    attention_dropout: float = key(0.0, "dropout rate of attention weights", *RATE)
    activation_dropout: float = key(0.0, "dropout rate of activations", *RATE)
    residual_dropout: bool = key(True, "dropout of sub-layers; Section 5.4")
    attention: str = component("dot_product", "attention", "attention of each head; Section 3.2.1")
    activation: str = component("relu", "activation", "activation of feed-forward layers")
    norm: str = component("layer_norm", "norm", "normalization; Section 3.1")
    attention_bias: bool = key(False, "biases in attention projections")
    out_projection: bool = key(True, "project the concatenated heads, W^O; Section 3.2.2")
    norm_position: str = choice("norm after residual sums, or before sub-layers", "post", "pre")
    final_norm: str = choice("a norm after each stack; auto: if norm_position=pre", *ON_OFF)
    positions: str = component("sinusoidal", "positions", "position encoding; Section 3.5")
    tying: str = choice("which matrices are shared; Section 3.4", "all", "output", "none")
    output_bias: bool = key(False, "a bias for each logit")
    zero_padding: bool = key(False, "keep the embedding of padding at zero")
    initializer: str = choice("initial values of the kernels", "scaled_xavier", "xavier", "normal")
    dtype: str = choice("compute dtype; auto: bfloat16, or float32 on CPU", *DTYPES, resumable=True)
    attention_kernel: str = choice(
        "kernel of attention; auto: cuDNN on Hopper GPUs", "auto", "xla", "cudnn", resumable=True
    )
    remat: str = choice(
        "recompute layers, or all but products, in the backward pass", *REMATS, resumable=True
    )
    scan_layers: bool = key(False, "compile one layer and loop over it", resumable=True)

    def check(self) -> None:
        super().check()
        if self.d_model % self.num_heads and None in (self.d_k, self.d_v):
            raise self.wrong("num_heads", f"must divide d_model={self.d_model}; or set d_k and d_v")
        if self.attention_kernel == "cudnn" and not self.fits_cudnn:
            reason = "requires dot_product, no alibi, attention_dropout=0, bfloat16, d_k = d_v = 8n"
            raise self.wrong("attention_kernel", reason)

    @property
    def decoder_layers(self) -> int:
        return self.num_decoder_layers or self.num_layers

    @property
    def key_width(self) -> int:
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        return self.d_v or self.d_model // self.num_heads

    @property
    def ends_in_norm(self) -> bool:
        """Whether each stack ends in a norm of its own, in addition to its layers' norms."""
        if self.final_norm == "auto":
            return self.norm_position == "pre"
        return self.final_norm == "on"

    @property
    def compute_dtype(self) -> str:
        """The dtype of activations: on a CPU XLA has no fast bfloat16 product."""
        if self.dtype != "auto":
            return self.dtype
        return "float32" if target_platform() == "cpu" else "bfloat16"

    @property
    def fused_attention(self) -> bool:
        """Whether cuDNN's kernel computes attention over whole texts on this backend."""
        if self.attention_kernel == "xla" or target_platform() != "gpu":
            return False
        is_chosen = self.attention_kernel == "cudnn" or compute_capability() == HOPPER
        return is_chosen and self.compute_dtype == "bfloat16" and self.fits_cudnn

    @property
    def fits_cudnn(self) -> bool:
        """Whether cuDNN's fused kernel can compute this attention."""
        return (
            name_of(self.attention) == "dot_product"
            and name_of(self.positions) not in ("alibi", "")
            and self.attention_dropout == 0
            and self.dtype != "float32"
            and self.key_width == self.value_width
            and self.key_width % 8 == 0
            and self.key_width <= 128
        )

    @property
    def max_positions(self) -> float:
        """The maximum number of tokens of a text, EOS included; finite for a learned table."""
        if name_of(self.positions) != "learned":
            return math.inf
        return components.arguments("positions", self.positions)["max_positions"]


@dataclasses.dataclass(frozen=True)
class DataConfig(Section):
    """The corpus, its vocabulary and its batches."""

    path = "config.data"

    name: str = component("phrases", "dataset", "data set; given: the pairs of jformer.train")
    source_language: str = key("en", "suffix of the source files; for phrases en or de")
    target_language: str = key("de", "suffix of the target files; for phrases de or en")
    directory: str = paths(
        "folder of the data set; empty: download from the Hugging Face hub",
        only_if=("name", "hub", *NAMED_DATASETS, "parsing"),
    )
    train: str = paths("training pairs: PREFIX, FILE.tsv or FILE.parquet, comma-separated")
    weights: str = key("", "repeats of each training corpus, such as 1,4")
    validation: str = paths("validation pairs", only_if=("name", "files", "parsing"))
    test: str = paths("test pairs; empty: no test scores", only_if=("name", "files", "parsing"))
    scorer: str = component("translation", "scorer", "scores of a test set")
    bad_lines: str = choice("training lines with bad UTF-8 or wrong columns", "error", "skip")
    max_length: int = key(256, "maximum tokens of a text or a packed row", ">= 2")
    tokenizer: str = component("byte_bpe", "tokenizer", "sub-word algorithm; Section 5.1")
    target_tokenizer: str = component(
        "", "tokenizer", "target tokenizer, if different", only_if=("joint_vocabulary", "False")
    )
    vocabulary_size: int = key(37_000, "maximum number of entries; Section 5.1", ">= 260")
    joint_vocabulary: bool = key(True, "one for both languages; Section 5.1")
    vocabulary: str = paths("tokenizer.json or SentencePiece .model; SOURCE,TARGET if not joint")
    augment: str = component("", "augmentation", "changes to the training pairs in each epoch")
    batching: str = choice("one pair per row, or several", "buckets", "packed")
    num_buckets: int = key(10, "batch shapes, each compiled once", ">= 1")
    length_multiple: int = key(4, "lengths of rows are multiples of this", ">= 1")
    cache: str = paths("folder for tokenized text; empty: ~/.cache/jformer")

    @property
    def vocabulary_files(self) -> list[str]:
        """The files of `vocabulary`: one, or one per language; empty if not given."""
        files = self.vocabulary.split(",")
        return files if self.joint_vocabulary or len(files) == 2 else ["", *files]

    @property
    def is_lowercase(self) -> bool:
        """Whether the target tokenizer converts all text to lower case."""
        component = parse(self.target_tokenizer or self.tokenizer)
        return component.options.get("normalization") == "lower"

    @property
    def languages(self) -> str:
        return f"{self.source_language}-{self.target_language}"

    def corpus_weights(self, number: int) -> list[int]:
        """Return how often an epoch repeats each of `number` training corpora."""
        if not self.weights:
            return [1] * number
        weights = self.weights.split(",")
        if len(weights) != number or not all(map(str.isdecimal, weights)):
            raise self.wrong("weights", f"must be {number} whole numbers, one per training corpus")
        return [*map(int, weights)]

    def check(self) -> None:
        super().check()
        if name_of(self.name) == "files" and not (self.train and self.validation):
            raise self.wrong("name", "requires config.data.train and config.data.validation")
        if self.source_language == self.target_language:
            raise self.wrong("target_language", "must differ from config.data.source_language")
        if len(self.vocabulary.split(",")) > 2 - self.joint_vocabulary:
            raise self.wrong("vocabulary", "must be one file, or SOURCE,TARGET if not joint")


@dataclasses.dataclass(frozen=True)
class TrainConfig(Section):
    """The length of the training, its loss, its log and its checkpoints."""

    path = "config.train"

    steps: int = key(100_000, "optimizer updates; Section 5.2", ">= 1", resumable=True)
    batch_tokens: int = key(25_000, "positions of a batch on each side; Section 5.1", ">= 1")
    accumulate: int = key(1, "parts of a batch, to save memory", ">= 1", resumable=True)
    loss: str = component("cross_entropy", "loss", "loss of each target token; Section 5.4")
    label_smoothing: float = key(0.1, "epsilon_ls; Section 5.4", *RATE)
    r_drop_alpha: float = key(0.0, "weight of R-Drop, arXiv 2106.14448; 0: off", ">= 0")
    log_every: int = key(100, "steps between lines of metrics.jsonl", ">= 1", resumable=True)
    evaluate_every: int = key(2000, "steps between validation losses", ">= 1", resumable=True)
    metrics: str = component("bleu", "metric", "scores of validation outputs", resumable=True)
    metrics_every: int = key(0, "steps between translations; 0: never", ">= 0", resumable=True)
    metrics_pairs: int = key(200, "validation pairs to translate", ">= 1", resumable=True)
    checkpoint_every: int = key(1000, "steps between checkpoints", ">= 1")
    checkpoint_minutes: float = key(
        0.0, "minutes between extra checkpoints; 0: never", ">= 0", resumable=True
    )
    average_checkpoints: int = key(5, "last checkpoints to average; Section 6.1", ">= 1")
    keep_checkpoints: int | None = key(
        None, "last checkpoints to keep; unset: average_checkpoints", ">= 1", resumable=True
    )
    keep_every: int = key(0, "also keep multiples of this step; 0: none", ">= 0", resumable=True)
    best_by: str = key("nll", "score of the best checkpoint: nll or a metric")
    patience: int = key(
        0, "validations without improvement before a stop; 0: never", ">= 0", resumable=True
    )
    scored: str = choice("splits scored at the end", "test", "validation", "all", resumable=True)
    ema_decay: float = key(0.0, "decay of a moving average; 0: none", *RATE)
    init_from: str = paths("RUN[@CHECKPOINT] with the initial parameters")

    def check(self) -> None:
        super().check()
        names = [parse(metric).name for metric in split_list(self.metrics)]
        if self.best_by not in ("nll", *names):
            raise self.wrong("best_by", f"must be nll, or a name in {self.assignment('metrics')}")
        if self.best_by != "nll" and not self.metrics_every:
            raise self.wrong("best_by", "requires config.train.metrics_every > 0")
        if self.keep_checkpoints and self.keep_checkpoints < self.average_checkpoints:
            raise self.wrong("keep_checkpoints", "must be >= average_checkpoints")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Section):
    """The optimizer and its learning rate."""

    path = "config.optimizer"

    name: str = component("adam", "optimizer", "optimizer; Section 5.3")
    clip_norm: float = key(0.0, "maximum norm of the gradient; 0: no clipping", ">= 0")
    schedule: str = component("equation_3", "schedule", "learning-rate schedule; Section 5.3")
    warmup_steps: int = key(4000, "steps of linear warm-up; Section 5.3", ">= 1")
    learning_rate: float = key(5e-4, "peak learning rate", ">= 0", only_if=WITH_RATE)


@dataclasses.dataclass(frozen=True)
class ParallelConfig(Section):
    """The devices and the processes."""

    path = "config.parallel"

    backend: str = choice("jit over a mesh of devices, or pmap", "jit", "pmap", resumable=True)
    fsdp: int = key(1, "devices that share the parameters; -1: all others", resumable=True)
    model: int = key(1, "devices for tensor parallelism; -1: all others", resumable=True)
    coordinator: str = key(
        "", "HOST:PORT/INDEX/NUMBER, or auto on Slurm and TPU pods", resumable=True
    )

    def check(self) -> None:
        super().check()
        if self.backend == "pmap" and (self.fsdp, self.model, self.coordinator) != (1, 1, ""):
            raise self.wrong("backend", "requires fsdp=1, model=1 and one process; set it to jit")
        if self.coordinator not in ("", "auto") and not self.address:
            raise self.wrong("coordinator", "must be HOST:PORT/INDEX/NUMBER, or auto")

    @property
    def address(self) -> tuple[str, int, int] | tuple[()]:
        """HOST:PORT of process 0, the number of processes and the index of this one."""
        match = ADDRESS.fullmatch(self.coordinator)
        if not match:
            return ()
        index, number = int(match[2]), int(match[3])
        return (match[1], number, index) if index < number else ()


@dataclasses.dataclass(frozen=True)
class DecodeConfig(Section):
    """Beam search and sampling. A resumed run may change every key of this section."""

    path = "config.decode"
    key = functools.partial(schema.key, resumable=True)
    component = functools.partial(schema.component, resumable=True)

    search: str = component("beam", "search", "decoding strategy")
    beam_size: int = key(4, "hypotheses; 1 is greedy search; Section 6.1", ">= 1")
    n_best: int = key(1, "outputs per sentence, or candidates for choose", ">= 1")
    choose: str = component("score", "choice", "choice among n_best outputs; score: all, sorted")
    length_penalty: float = key(0.6, "alpha of the length penalty; Section 6.1", ">= 0")
    length_penalty_beta: float = key(5.0, "beta of ((beta + length) / (beta + 1))^alpha", ">= 0")
    min_length: int = key(0, "minimum output tokens", ">= 0")
    max_length: int | None = key(None, "maximum output tokens", ">= 1")
    max_extra_length: int = key(
        50, "output tokens beyond the source's, at most; Section 6.1", ">= 0"
    )
    constraint: str = component("none", "constraint", "tokens that may come next")
    batch_size: int = key(64, "sentences decoded at a time", ">= 1")
    read_ahead: int = key(2_000, "lines read and sorted by length", ">= 1")

    def check(self) -> None:
        super().check()
        if name_of(self.search) == "beam" and self.n_best > self.beam_size:
            raise self.wrong("n_best", f"must be <= {self.assignment('beam_size')}")
        if name_of(self.choose) == "mbr" and self.n_best == 1:
            raise self.wrong("n_best", f"must be > 1 for {self.assignment('choose')}")


@dataclasses.dataclass(frozen=True)
class Config(Section):
    """All keys."""

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
            raise train.wrong("batch_tokens", f"must be >= {data.assignment('max_length')}")
        if model.max_positions < self.longest:
            raise model.wrong("positions", f"max_positions must be >= {self.longest}")
        if model.tying == "all" and not data.joint_vocabulary:
            raise data.wrong("joint_vocabulary", "requires config.model.tying=output or none")


def default_config(dataset: str = "phrases") -> config_dict.ConfigDict:
    """Return the paper's base model on a data set, locked against unknown keys."""
    size = VOCABULARY_SIZES.get(name_of(dataset), DataConfig.vocabulary_size)
    return schema.thaw(Config(data=DataConfig(name=dataset, vocabulary_size=size)))


def freeze(config: config_dict.ConfigDict | Mapping, values: Mapping[str, Any] = {}) -> Config:
    """Return a config file's config, with other values of some keys, as a checked `Config`."""
    return overridden(schema.replaced(Config(), config), values)


def overridden(config: Config, values: Mapping[str, Any], stored: Config | None = None) -> Config:
    """Return the config with other values of some keys; `UserError` names an invalid key.

    This runs the files of components, unless the config `stored` of a run already names them.
    """
    config = schema.replaced(config, values)
    config.check()
    known = [*schema.walk_components(stored)] if stored else []
    for path, kind, text in schema.walk_components(config):
        if (path, kind, text) in known:
            continue
        component = parse(text)
        if component.file:
            components.allow(component.file)
        if component.file or component.options:
            components.find(path, kind, text)
    return config


def component_files(config: Config) -> list[str]:
    """Return the files of the user's own components."""
    return [parse(text).file for _, _, text in schema.walk_components(config) if parse(text).file]


def write_config(config: Config, path: Path) -> None:
    write_object(path, dataclasses.asdict(config))


def read_config(path: Path) -> Config:
    """Return the config of a run, without running its component files."""
    values = read_object(path, f"is {path.parent} a run directory?")
    config = schema.replaced(Config(), values, f"{path}: config.")
    config.check()
    return config
