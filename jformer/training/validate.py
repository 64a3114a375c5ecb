"""Validation while training: likelihood and BLEU at their intervals, and the best by one."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax

from jformer.data.tokenize import tokenize
from jformer.decoding.attention import attention_of
from jformer.decoding.translate import translate
from jformer.evaluation.scores import bleu
from jformer.training import parallel
from jformer.training.checkpoint import Checkpoints
from jformer.training.evaluate import has_room
from jformer.training.monitor import Monitor
from jformer.training.setup import TrainSetup
from jformer.training.step import TrainState

ROWS_SHOWN = 20


@dataclasses.dataclass
class Best:
    """The best validation score so far, and how many came after it."""

    score: float | None = None
    step: int = 0
    worse: int = 0

    def note(self, step: int, name: str, score: float) -> bool:
        """Whether this is better than all before: a lower NLL, a higher BLEU."""
        rises = name == "bleu"
        better = self.score is None or (score > self.score if rises else score < self.score)
        better = better and not math.isnan(score)  # nothing would be better than that
        if better:
            self.score, self.step, self.worse = score, step, 0
        else:
            self.worse += 1
        return better


def validate(
    task: TrainSetup,
    state: TrainState,
    step: int,
    due: Callable[[int], bool],
    best: Best,
    checkpoints: Checkpoints,
    monitor: Monitor,
) -> None:
    """The scores that are due, as a line of the log; a checkpoint more, if they are the best."""
    every = task.config.train
    params = state.params if state.ema is None else state.ema
    scores: dict[str, float] = {}
    if due(every.evaluate_every):
        scores |= task.likelihood(params)
    if due(every.bleu_every):
        scores["bleu"] = bleu_of_first(task, params, step, monitor)
    if scores:
        monitor.line(step, "validation", **scores)
    if every.best_by in scores and best.note(step, every.best_by, scores[every.best_by]):
        checkpoints.save_best(state, scores[every.best_by], task.config, task.vocabularies.hash)


def bleu_of_first(task: TrainSetup, params: Any, step: int, monitor: Monitor) -> float:
    """Of the first pairs; every process translates them, on a device of its own."""
    config, split, vocabularies = task.config, task.validation, task.vocabularies
    number = config.train.bleu_pairs
    sources, targets = split.sources[:number], split.targets[:number]
    params = jax.device_put(parallel.to_host(params), jax.local_devices()[0])
    outputs = translate(
        task.model, params, vocabularies, sources, config.decode, config.data.max_length
    )
    if monitor.writes:
        rows = list(zip(sources, targets, outputs, strict=True))[:ROWS_SHOWN]
        monitor.board.translations(step, rows)
        shown = has_room(tokenize(split, vocabularies), config.model).argmax()  # the first that has
        pair = split.sources[shown], split.targets[shown]
        first = attention_of(task.model, params, vocabularies, *pair)
        monitor.board.attention(step, *first)
    return bleu(outputs, targets)
