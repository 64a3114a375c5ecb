"""config.train, config.optimizer and config.parallel: how and where a model is trained."""

import dataclasses
import re

from jformer.schema import RATE, Section, choice, key, part, paths

SMOOTHINGS = ("all", "others", "others_but_padding")
SCHEDULES = ("equation_3", "inverse_sqrt", "linear", "cosine", "constant")
WITH_RATE = ("schedule", "inverse_sqrt", "linear", "cosine", "constant")
DECAYING = ("schedule", "linear", "cosine")


@dataclasses.dataclass(frozen=True)
class TrainConfig(Section):
    path = "config.train"

    steps: int = key(100_000, "optimizer updates; Section 5.2", ">= 1", resumable=True)
    batch_tokens: int = key(
        25_000, "positions of a global batch on each side, with padding; Section 5.1", ">= 1"
    )
    accumulate: int = key(
        1, "parts that a batch is computed in, to save memory", ">= 1", resumable=True
    )
    loss_chunk: int | None = key(
        None,
        "target positions of a device whose logits are in memory at a time; 0: all; unset: on a "
        "CPU 2 d_model, at least 256, elsewhere 16,384",
        ">= 0",
        resumable=True,
    )
    label_smoothing: float = key(0.1, "epsilon_ls; Section 5.4", *RATE)
    smoothing_over: str = choice("vocabulary entries that share epsilon_ls", *SMOOTHINGS)
    r_drop_alpha: float = key(
        0.0,
        "weight of the divergence between two passes (R-Drop, Wu et al. 2021); 0: one pass",
        ">= 0",
    )
    log_every: int = key(100, "steps between lines of metrics.jsonl", ">= 1", resumable=True)
    evaluate_every: int = key(2000, "steps between validation losses", ">= 1", resumable=True)
    bleu_every: int = key(
        0, "steps between scores of outputs, BLEU or F1; 0: never", ">= 0", resumable=True
    )
    bleu_pairs: int = key(
        200, "number of validation pairs translated for these", ">= 1", resumable=True
    )
    checkpoint_every: int = key(1000, "steps between checkpoints", ">= 1")
    checkpoint_minutes: float = key(
        0.0,
        "minutes between further checkpoints, which are not averaged; 0: never",
        ">= 0",
        resumable=True,
    )
    average_checkpoints: int = key(
        5, "last checkpoints averaged to translate and score; Section 6.1", ">= 1"
    )
    keep_checkpoints: int | None = key(
        None, "last checkpoints kept; unset: average_checkpoints", ">= 1", resumable=True
    )
    keep_every: int = key(
        0, "keep every checkpoint whose step is a multiple; 0: none", ">= 0", resumable=True
    )
    best_by: str = choice("validation score that chooses the best checkpoint", "nll", "bleu", "f1")
    patience: int = key(
        0,
        "end the run after so many validations without a better score; 0: never",
        ">= 0",
        resumable=True,
    )
    scored: str = choice(
        "splits scored after the last step", "test", "validation", "all", resumable=True
    )
    ema_decay: float = key(
        0.0, "decay of an exponential moving average of the parameters; 0: none", *RATE
    )
    init_from: str = paths("RUN[@CHECKPOINT] to take the initial parameters from")
    max_skipped: int = key(
        10,
        "end the run after so many non-finite updates in a row, which are skipped",
        ">= 1",
        resumable=True,
    )
    damaged: str = choice(
        "resume from the checkpoint before a damaged one, or fail",
        "fall_back",
        "error",
        resumable=True,
    )
    failed_save: str = choice(
        "what to do when a checkpoint cannot be written", "stop", "go_on", resumable=True
    )

    def check(self) -> None:
        """Raise `UserError` for the first value that cannot work."""
        if self.best_by != "nll" and not self.bleu_every:
            raise self.wrong("best_by", "is for a run with config.train.bleu_every")
        if self.keep_checkpoints and self.keep_checkpoints < self.average_checkpoints:
            at_least = self.assignment("average_checkpoints")
            raise self.wrong("keep_checkpoints", f"must be >= {at_least}")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Section):
    path = "config.optimizer"

    name: str = part(
        "optimizer; Section 5.3; muon: AdamW, with orthogonal updates of the kernels of attention "
        "and feed-forward network (Jordan et al. 2024)",
        "adam",
        "adamw",
        "muon",
    )
    beta1: float = key(0.9, "of Adam; Section 5.3", *RATE)
    beta2: float = key(0.98, "of Adam; Section 5.3", *RATE)
    epsilon: float = key(1e-9, "of Adam; Section 5.3", "> 0")
    momentum: float = key(0.95, "of Muon", *RATE, only_if=("name", "muon"))
    adam_factor: float = key(
        1.0,
        "multiplies the updates by Adam of the parameters that Muon leaves to it",
        "> 0",
        only_if=("name", "muon"),
    )
    weight_decay: float = key(
        0.0,
        "decay of all matrices, times the learning rate",
        ">= 0",
        only_if=("name", "adamw", "muon"),
    )
    clip_norm: float = key(0.0, "maximum norm of the gradient; 0: no clipping", ">= 0")
    schedule: str = choice("learning-rate schedule; Section 5.3", *SCHEDULES)
    warmup_steps: int = key(4000, "steps of linear warm-up; Section 5.3", ">= 1")
    learning_rate_factor: float = key(1.0, "multiplies the schedule; the paper has 1", "> 0")
    learning_rate: float = key(5e-4, "peak learning rate", "> 0", only_if=WITH_RATE)
    start_learning_rate: float = key(
        0.0, "learning rate before the warm-up", ">= 0", only_if=WITH_RATE
    )
    end_learning_rate: float = key(
        0.0, "learning rate at the end of the decay", ">= 0", only_if=DECAYING
    )
    decay_steps: int | None = key(
        None, "step at which the decay ends; unset: train.steps", ">= 1", only_if=DECAYING
    )

    @property
    def depends_on_train_steps(self) -> bool:
        """Whether another `train.steps` would be another schedule."""
        return self.schedule in DECAYING and self.decay_steps is None

    def check(self, train_steps: int) -> None:
        """Raise `UserError` for the first value that cannot work in a run of `train_steps`."""
        for name in ("start_learning_rate", "end_learning_rate"):
            if getattr(self, name) > self.learning_rate:
                raise self.wrong(name, f"must be <= {self.assignment('learning_rate')}")
        end = self.decay_steps or train_steps
        if self.schedule in DECAYING and end <= self.warmup_steps:
            what = "the step at which the decay ends (decay_steps, or train.steps)"
            raise self.wrong("warmup_steps", f"must be below {end}, {what}")


@dataclasses.dataclass(frozen=True)
class ParallelConfig(Section):
    path = "config.parallel"

    backend: str = choice("jit over a mesh of devices, or pmap", "jit", "pmap", resumable=True)
    data: int = key(-1, "devices for data parallelism; -1: the rest", ">= -1", resumable=True)
    fsdp: int = key(
        1,
        "devices that split a batch, the parameters and the optimizer state; -1: the rest",
        ">= -1",
        resumable=True,
    )
    model: int = key(
        1,
        "devices for tensor parallelism: heads, d_ff and vocabulary; -1: the rest",
        ">= -1",
        resumable=True,
    )
    coordinator: str = key(
        "",
        "HOST:PORT of process 0; auto: found on Slurm and TPU pods; empty: one process",
        resumable=True,
    )
    processes: int | None = key(None, "number of processes, with HOST:PORT", ">= 1", resumable=True)
    process: int | None = key(
        None, "index of this process from 0, with HOST:PORT", ">= 0", resumable=True
    )
    timeout: int = key(300, "seconds to wait for another process", ">= 1", resumable=True)

    def check(self) -> None:
        """Raise `UserError` for the first value that cannot work."""
        sizes = {name: getattr(self, name) for name in ("data", "fsdp", "model")}
        for name, size in sizes.items():
            if size == 0:
                raise self.wrong(name, "must be a number of devices, or -1")
        if len(rest := [name for name, size in sizes.items() if size == -1]) > 1:
            other = f"config.parallel.{rest[0]}"
            reason = f"only one axis can be the rest, and {other} is -1, too; set {other}=1"
            raise self.wrong(rest[1], reason)
        if self.backend == "pmap" and (self.fsdp, self.model) != (1, 1):
            name = "fsdp" if self.fsdp != 1 else "model"
            reason = "pmap has the whole state on each device; set config.parallel.backend=jit"
            raise self.wrong(name, reason)
        by_hand = self.coordinator not in ("", "auto")
        port = re.fullmatch(r".+:(\d{1,5})", self.coordinator)
        if by_hand and not (port and 0 < int(port[1]) < 2**16):
            raise self.wrong("coordinator", "must be HOST:PORT, or auto")
        needed = "must be set with" if by_hand else "is only for"
        for name in ("processes", "process"):
            if by_hand != (getattr(self, name) is not None):
                raise self.wrong(name, f"{needed} config.parallel.coordinator=HOST:PORT")
        if by_hand and self.process >= self.processes:  # type: ignore[operator]
            raise self.wrong("process", f"must be below {self.assignment('processes')}")
