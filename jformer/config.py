"""The one schema: every key with its unit, its paper section and the paper's default.

A config file edits a locked `ConfigDict` made by `default_config`; the program works on the frozen
dataclasses below, made by `freeze`, which is also where every value is checked. Nothing else in
the package has defaults of its own.
"""

import dataclasses
import json
import os
from pathlib import Path

from ml_collections import config_dict

from jformer.checks import check_data, check_decode, check_model, check_parallel, check_training
from jformer.files import read_object, replace_file
from jformer.keys import UserError, check_values, key, nearest, replaced, thaw

# The ids on which the data, the model and the search agree.
PAD, BOS, EOS = 0, 1, 2

DATASETS = (
    "phrases", "multi30k", "iwslt14", "iwslt17", "wmt14", "wmt16", "tatoeba", "hub", "files",
)  # fmt: skip
POSITIONS = ("sinusoidal", "halves", "learned", "relative", "rotary", "alibi", "none")
# Where the paper's 37,000 would be too many for the text.
VOCABULARY_SIZES = {
    "phrases": 2000, "multi30k": 8000, "tatoeba": 8000, "iwslt14": 10_000, "iwslt17": 16_000,
}  # fmt: skip
TOKENIZERS = ("byte_bpe", "bpe", "wordpiece", "unigram")
TYINGS = ("all", "output", "none")
SMOOTHINGS = ("all", "others", "others_but_padding")
# Of sizes: beyond them no machine holds a model.
STACK, WIDTH, ROWS = (">= 1", "<= 1024"), (">= 1", "<= 65536"), (">= 1", "<= 1048576")
SEEDS = (">= 0", "<= 4294967295")  # those that JAX tells apart
SCHEDULES = ("equation_3", "inverse_sqrt", "linear", "cosine", "constant")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    num_layers: int = key(6, "layers in each of the two stacks, N; Section 3.1", *STACK)
    num_decoder_layers: int | None = key(
        None, "layers of the decoder alone; unset: num_layers", *STACK
    )
    d_model: int = key(512, "width of embeddings and sub-layers; Section 3.1", ">= 2", "<= 65536")
    d_ff: int = key(2048, "inner width of the feed-forward network; Section 3.3", *ROWS)
    num_heads: int = key(8, "attention heads, h; Section 3.2.2", ">= 1", "<= 4096")
    d_k: int | None = key(None, "width of a query and a key; unset: d_model / h", *WIDTH)
    d_v: int | None = key(None, "width of a value; unset: d_model / h", *WIDTH)
    dropout: float = key(0.1, "P_drop, probability of a zero; Section 5.4", ">= 0", "< 1")
    attention_dropout: float = key(0.0, "of the weights of Equation 1", ">= 0", "< 1")
    activation_dropout: float = key(0.0, "of the inner layer of Equation 2", ">= 0", "< 1")
    activation: str = key("relu", "of Equation 2", "relu", "gelu")
    scaled_attention: bool = key(True, "Equation 1 divides by sqrt(d_k); Section 3.2.1")
    norm_position: str = key("post", "LayerNorm after or before a sub-layer", "post", "pre")
    positions: str = key("sinusoidal", "Section 3.5", *POSITIONS)
    max_positions: int = key(512, "rows of the learned positions; Table 3, row E", *ROWS)
    max_distance: int = key(16, "farthest that relative positions tell apart", *ROWS)
    tying: str = key("all", "one matrix for source, target, output; Section 3.4", *TYINGS)
    initializer: str = key("scaled_xavier", "of the kernels", "scaled_xavier", "xavier", "normal")
    dtype: str = key(
        "auto", "of activations and products; auto: bfloat16 on GPU and TPU, else float32",
        "auto", "float32", "bfloat16",
    )  # fmt: skip
    remat: str = key(
        "none", "computed again in the backward pass: all of a layer, or all but its products",
        "none", "layer", "dots",
    )  # fmt: skip
    scan_layers: bool = key(False, "compile one layer of a stack and loop over it")

    def __post_init__(self):
        check_model(self)

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
    def compute_dtype(self) -> str:
        """Of activations and products. Who makes a run's model puts the backend's for auto."""
        return "bfloat16" if self.dtype == "bfloat16" else "float32"


@dataclasses.dataclass(frozen=True)
class DataConfig:
    name: str = key("phrases", "corpus", *DATASETS)
    source_language: str = key("en", "suffix of the source files; phrases: a CLDR locale")
    target_language: str = key("de", "suffix of the target files; phrases: a CLDR locale")
    directory: str = key("", "folder with a named corpus's files; empty: from the hub")
    hub: str = key("", "hub: REPOSITORY[@REVISION] or a folder of Parquet files, with three splits")
    train: str = key("", "PREFIX, FILE.tsv or FILE.parquet, or several with commas between")
    weights: str = key("", "times an epoch holds each training corpus, as 1,4; empty: once each")
    validation: str = key("", "files: PREFIX, FILE.tsv or FILE.parquet of the validation pairs")
    test: str = key("", "files: the same of the test pairs; empty: nothing is scored")
    phrases: int = key(40_000, "phrases: pairs made, before the splits", ">= 1000", "<= 10000000")
    bad_lines: str = key("error", "what is not UTF-8 or not two texts", "error", "replace", "skip")
    long_pairs: str = key("skip", "training pairs beyond max_length", "skip", "truncate")
    max_length: int = key(256, "tokens a side of a pair, and of a packed row", ">= 2", "<= 32768")
    tokenizer: str = key("byte_bpe", "sub-words; Section 5.1", *TOKENIZERS)
    vocabulary_size: int = key(37_000, "entries at most; Section 5.1", ">= 260", "<= 10000000")
    vocabulary_sample: int = key(2_000_000, "pairs that a vocabulary is learned from", ">= 1")
    joint_vocabulary: bool = key(True, "one for both languages, not one each; Section 5.1")
    vocabulary: str = key("", "tokenizer.json or SentencePiece .model to take instead of learning")
    source_vocabulary: str = key("", "the same for the source, where each language has its own")
    normalization: str = key(
        "none", "of all text, by Unicode; lower: nfc and lower case", "none", "nfc", "nfkc", "lower"
    )
    bpe_dropout: float = key(0.0, "probability that a merge is left out", ">= 0", "< 1")
    batching: str = key("buckets", "of training pairs: one a row, or several", "buckets", "packed")
    num_buckets: int = key(10, "static batch shapes at most, each compiled once", ">= 1", "<= 255")
    cache: str = key("", "folder of tokenized text; empty: ~/.cache/jformer")

    def corpus_weights(self, number: int) -> list[int]:
        """Times an epoch holds each of `number` training corpora."""
        weights = [int(weight) for weight in self.weights.split(",") if self.weights]
        if weights and len(weights) != number:
            raise UserError(
                f"config.data.weights={self.weights}: has {len(weights)} numbers, and the training "
                f"corpora are {number}"
            )
        return weights or [1] * number


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    steps: int = key(100_000, "optimizer updates; Section 5.2", ">= 1")
    batch_tokens: int = key(
        25_000, "positions of a global batch on each side, with padding; Section 5.1", ">= 1"
    )
    accumulate: int = key(1, "parts of a batch, one after the other to save memory", ">= 1")
    label_smoothing: float = key(0.1, "epsilon_ls; Section 5.4", ">= 0", "< 1")
    smoothing_over: str = key("all", "the entries that share epsilon_ls", *SMOOTHINGS)
    consistency: float = key(
        0.0, "alpha of R-Drop: two passes with other masks must agree; 0: one pass", ">= 0"
    )
    log_every: int = key(100, "steps between lines of metrics.jsonl", ">= 1")
    evaluate_every: int = key(2000, "steps between validation losses", ">= 1")
    bleu_every: int = key(0, "steps between BLEU scores of validation; 0: none", ">= 0")
    bleu_pairs: int = key(200, "first pairs of validation, translated for that score", ">= 1")
    checkpoint_every: int = key(1000, "steps between checkpoints", ">= 1")
    checkpoint_minutes: float = key(
        0.0, "minutes between further checkpoints, which are not averaged; 0: none", ">= 0"
    )
    average_checkpoints: int = key(
        5, "last regular checkpoints averaged to score and translate; Section 6.1", ">= 1"
    )
    keep_checkpoints: int | None = key(None, "last ones kept; unset: as many as averaged", ">= 1")
    keep_every: int = key(0, "steps at whose multiples a checkpoint stays; 0: none", ">= 0")
    best_by: str = key("nll", "validation score of the best checkpoint", "nll", "bleu")
    patience: int = key(0, "such scores without a better one that end a run; 0: never", ">= 0")
    scored: str = key(
        "test", "what is translated and scored after the last step", "test", "validation", "all"
    )
    ema_decay: float = key(
        0.0, "of moving averages of parameters, used for scores; 0: none", ">= 0", "< 1"
    )
    init_from: str = key("", "RUN[@CHECKPOINT] whose parameters a new run begins with")
    max_skipped: int = key(10, "updates in a row, not finite, that end a run", ">= 1")
    damaged: str = key("fall_back", "to the checkpoint before a damaged one", "fall_back", "error")
    failed_save: str = key("stop", "when a checkpoint cannot be written", "stop", "go_on")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    name: str = key("adam", "optimizer; Section 5.3", "adam", "adamw")
    beta1: float = key(0.9, "Adam; Section 5.3", ">= 0", "< 1")
    beta2: float = key(0.98, "Adam; Section 5.3", ">= 0", "< 1")
    epsilon: float = key(1e-9, "Adam; Section 5.3", "> 0")
    weight_decay: float = key(0.0, "adamw: of all matrices, times the learning rate", ">= 0")
    clip_norm: float = key(0.0, "longest gradient, longer ones are scaled to it; 0: none", ">= 0")
    schedule: str = key("equation_3", "of the learning rate; Section 5.3", *SCHEDULES)
    warmup_steps: int = key(4000, "updates until the highest rate; Section 5.3", ">= 1")
    learning_rate_factor: float = key(1.0, "times the schedule; the paper has 1", "> 0")
    learning_rate: float = key(5e-4, "the highest of a schedule that is not equation_3", "> 0")
    start_learning_rate: float = key(0.0, "before warm-up; not equation_3", ">= 0")
    end_learning_rate: float = key(0.0, "after linear or cosine decay", ">= 0")
    decay_steps: int | None = key(
        None, "linear, cosine: update of the lowest rate; unset: train.steps", ">= 1"
    )


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
    backend: str = key("jit", "what spreads a step over devices", "jit", "pmap")
    data: int = key(-1, "groups of devices that share out a batch; -1: the rest", ">= -1")
    fsdp: int = key(1, "devices that share out a batch, and parameters too; -1: the rest", ">= -1")
    model: int = key(1, "devices that share out heads, d_ff and V; -1: the rest", ">= -1")
    coordinator: str = key(
        "", "HOST:PORT of process 0; auto: found on Slurm, TPU pods; empty: one process"
    )
    processes: int | None = key(None, "how many there are, with HOST:PORT", ">= 1")
    process: int | None = key(None, "which this one is, from 0 on, with HOST:PORT", ">= 0")
    timeout: int = key(300, "seconds to wait for another process", ">= 1")


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    search: str = key("beam", "for the likeliest output, or by chance", "beam", "sampling")
    beam_size: int = key(4, "beam: hypotheses, 1 is greedy; Section 6.1", ">= 1")
    n_best: int = key(1, "outputs a sentence; of a beam at most beam_size", ">= 1")
    length_penalty: float = key(
        0.6, "alpha of ((beta + length) / (beta + 1))^alpha; Section 6.1", ">= 0", "<= 10"
    )
    length_penalty_beta: float = key(5.0, "its beta; 0: length^alpha", ">= 0")
    diversity: float = key(0.0, "beam: taken off for each better child of a hypothesis", ">= 0")
    min_length: int = key(0, "output tokens at least", ">= 0")
    max_length: int | None = key(
        None, "output tokens at most; unset: only max_extra_length", ">= 1"
    )
    max_extra_length: int = key(
        50, "output tokens beyond the source's at most; Section 6.1", ">= 0"
    )
    temperature: float = key(1.0, "sampling: logits are divided by it", "> 0")
    top_k: int = key(0, "sampling: only the likeliest tokens; 0: all", ">= 0")
    top_p: float = key(1.0, "sampling: only the fewest that hold this probability", "> 0", "<= 1")
    seed: int = key(0, "sampling: with the sentence, it decides what is drawn", *SEEDS)
    long_texts: str = key("cut", "sources beyond data.max_length", "cut", "split")
    alignment_layer: int | None = key(None, "of the decoder; unset: the last but one", ">= 1")
    batch_size: int = key(64, "sentences searched together; float32: no effect on outputs", ">= 1")
    read_ahead: int = key(10_000, "lines at most that are searched by length, then written", ">= 1")


@dataclasses.dataclass(frozen=True)
class Config:
    name: str = key("base", "names the default run directory")
    seed: int = key(0, "of parameters, dropout, data order and phrases", *SEEDS)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    parallel: ParallelConfig = ParallelConfig()
    decode: DecodeConfig = DecodeConfig()

    @property
    def longest(self) -> int:
        """Positions of a text or an output at most; rows are rounded up by at most 3."""
        longest = self.data.max_length + max(3, self.decode.max_extra_length)
        return max(longest, self.decode.min_length + 1)


def default_config(dataset: str = "phrases") -> config_dict.ConfigDict:
    """The paper's base model on `dataset`, locked: a key that the schema lacks cannot be added."""
    if dataset not in DATASETS:
        raise UserError(f"data set {dataset!r} is unknown{nearest(dataset, DATASETS)}")
    size = VOCABULARY_SIZES.get(dataset, DataConfig.vocabulary_size)
    return thaw(Config(data=DataConfig(name=dataset, vocabulary_size=size)))


def freeze(config: config_dict.ConfigDict | dict) -> Config:
    """The same values as a checked, hashable `Config`; `UserError` names the first bad key."""
    frozen = replaced(Config(), config if isinstance(config, dict) else config.to_dict())
    check(frozen)
    return frozen


def check(config: Config) -> None:
    """Raise `UserError` for the first value that cannot work; `model` has checked itself."""
    check_values(config, "config.")
    model, data, train = config.model, config.data, config.train
    if train.batch_tokens < data.max_length:
        raise UserError(
            f"config.train.batch_tokens={train.batch_tokens}: one pair may be as long as "
            f"data.max_length={data.max_length}; raise the one or lower the other"
        )
    if model.positions == "learned" and model.max_positions < config.longest:
        raise UserError(
            f"config.model.max_positions={model.max_positions}: must be >= {config.longest}, for "
            f"data.max_length, decode.max_extra_length and decode.min_length"
        )
    if model.tying == "all" and not data.joint_vocabulary:
        raise UserError(
            "config.data.joint_vocabulary=False: two vocabularies cannot share a matrix; "
            "set config.model.tying=output or none"
        )
    check_data(data, DATASETS)
    check_training(train, config.optimizer)
    check_parallel(config.parallel, model)
    check_decode(config.decode, model.decoder_layers)


def write_config(config: Config, path: Path) -> None:
    replace_file(path, (json.dumps(dataclasses.asdict(config), indent=2) + "\n").encode())


def read_config(path: Path) -> Config:
    if not os.path.exists(path):
        raise UserError(f"{path}: no such file; is {path.parent} the directory of a run?")
    values = read_object(path, "restore the file")
    try:
        return freeze(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
