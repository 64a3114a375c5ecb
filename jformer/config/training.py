"""config.train, config.optimizer and config.parallel: the training, its updates and devices."""

import dataclasses
import re

from jformer.components import parse, split_list
from jformer.schema import RATE, Section, choice, component, key, paths

WITH_RATE = ("schedule", "inverse_sqrt", "linear", "cosine", "constant")
ADDRESS = re.compile(r"(.+):(\d+)/(\d+)/(\d+)")


@dataclasses.dataclass(frozen=True)
class TrainConfig(Section):
    path = "config.train"

    steps: int = key(100_000, "optimizer updates; Section 5.2", ">= 1", resumable=True)
    batch_tokens: int = key(
        25_000, "positions of a global batch on each side, with padding; Section 5.1", ">= 1"
    )
    accumulate: int = key(1, "parts of a batch, to save memory", ">= 1", resumable=True)
    loss: str = component("cross_entropy", "loss", "loss of each target token; Section 5.4")
    label_smoothing: float = key(0.1, "epsilon_ls; Section 5.4", *RATE)
    r_drop_alpha: float = key(0.0, "weight of R-Drop, arXiv 2106.14448; 0: one pass", ">= 0")
    log_every: int = key(100, "steps between lines of metrics.jsonl", ">= 1", resumable=True)
    evaluate_every: int = key(2000, "steps between validation losses", ">= 1", resumable=True)
    metrics: str = component("bleu", "metric", "scores of validation outputs", resumable=True)
    metrics_every: int = key(0, "steps between translations; 0: never", ">= 0", resumable=True)
    metrics_pairs: int = key(200, "validation pairs to translate", ">= 1", resumable=True)
    checkpoint_every: int = key(1000, "steps between checkpoints", ">= 1")
    checkpoint_minutes: float = key(
        0.0, "minutes between extra checkpoints, not averaged; 0: never", ">= 0", resumable=True
    )
    average_checkpoints: int = key(5, "last checkpoints to average; Section 6.1", ">= 1")
    keep_checkpoints: int | None = key(
        None, "last checkpoints to keep; unset: average_checkpoints", ">= 1", resumable=True
    )
    keep_every: int = key(0, "also keep multiples of this step; 0: none", ">= 0", resumable=True)
    best_by: str = key("nll", "score of the best checkpoint: nll, or a name in metrics")
    patience: int = key(
        0, "stop after this many validations without improvement; 0: never", ">= 0", resumable=True
    )
    scored: str = choice("splits scored at the end", "test", "validation", "all", resumable=True)
    ema_decay: float = key(0.0, "decay of a moving average of the parameters; 0: none", *RATE)
    init_from: str = paths("RUN[@CHECKPOINT] with the initial parameters")

    def check(self) -> None:
        super().check()
        names = [parse(metric).name for metric in split_list(self.metrics)]
        if self.best_by not in ("nll", *names):
            raise self.wrong("best_by", f"must be nll, or a name in {self.assignment('metrics')}")
        if self.best_by != "nll" and not self.metrics_every:
            raise self.wrong("best_by", "requires config.train.metrics_every > 0")
        if self.keep_checkpoints and self.keep_checkpoints < self.average_checkpoints:
            at_least = self.assignment("average_checkpoints")
            raise self.wrong("keep_checkpoints", f"must be >= {at_least}")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Section):
    path = "config.optimizer"

    name: str = component("adam", "optimizer", "optimizer; Section 5.3")
    clip_norm: float = key(0.0, "maximum norm of the gradient; 0: no clipping", ">= 0")
    schedule: str = component("equation_3", "schedule", "learning-rate schedule; Section 5.3")
    warmup_steps: int = key(4000, "steps of linear warm-up; Section 5.3", ">= 1")
    learning_rate: float = key(5e-4, "peak learning rate", ">= 0", only_if=WITH_RATE)


@dataclasses.dataclass(frozen=True)
class ParallelConfig(Section):
    path = "config.parallel"

    backend: str = choice("jit over a mesh of devices, or pmap", "jit", "pmap", resumable=True)
    fsdp: int = key(1, "devices that share the parameters; -1: all others", resumable=True)
    model: int = key(1, "devices for tensor parallelism; -1: all others", resumable=True)
    coordinator: str = key(
        "", "HOST:PORT/INDEX/NUMBER of processes, or auto on Slurm and TPU pods", resumable=True
    )

    def check(self) -> None:
        super().check()
        if self.backend == "pmap" and (self.fsdp, self.model, self.coordinator) != (1, 1, ""):
            raise self.wrong("backend", "requires fsdp=1, model=1 and one process; set it to jit")
        if self.coordinator not in ("", "auto") and not self.address:
            raise self.wrong("coordinator", "must be HOST:PORT/INDEX/NUMBER, or auto")

    @property
    def address(self) -> tuple[str, int, int, int] | None:
        """The host and the port of process 0, the index of this process and their number."""
        match = ADDRESS.fullmatch(self.coordinator)
        if not match:
            return None
        port, index, number = map(int, match.groups()[1:])
        return (match[1], port, index, number) if index < number else None
