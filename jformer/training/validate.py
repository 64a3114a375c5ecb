"""Validation during training: likelihood, scores of outputs, and the best checkpoint by one."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import multihost_utils

from jformer.components import parse, split_list
from jformer.data.tokenize import tokenize
from jformer.decoding.attention import attention_of
from jformer.decoding.translate import translate
from jformer.evaluation.metrics import Validation, score_by
from jformer.training.checkpoint import Checkpoints
from jformer.training.likelihood import has_room
from jformer.training.monitor import Monitor
from jformer.training.setup import TrainSetup
from jformer.training.step import TrainState

ROWS_SHOWN = 20


@dataclasses.dataclass
class Best:
    """The best validation score so far, its step, and the number of scores since then."""

    score: float | None = None
    step: int = 0
    worse: int = 0

    def note(self, step: int, name: str, score: float) -> bool:
        """Record a score and return whether it is the best so far: lowest NLL, or highest other."""
        rises = name != "nll"
        better = self.score is None or (score > self.score if rises else score < self.score)
        better = better and not math.isnan(score)  # no later score would beat NaN
        if better:
            self.score, self.step, self.worse = score, step, 0
        else:
            self.worse += 1
        return better


def validate(
    setup: TrainSetup,
    state: TrainState,
    step: int,
    due: Callable[[int], bool],
    best: Best,
    checkpoints: Checkpoints,
    monitor: Monitor,
) -> None:
    """Compute and log the scores that are due at this step; save the state if it is the best."""
    every = setup.config.train
    params = state.params if state.ema is None else state.ema
    scores: dict[str, float] = {}
    if due(every.evaluate_every):
        scores |= setup.likelihood(params)
    if due(every.metrics_every):
        scores |= score_of_first(setup, params, step, monitor)
    if scores:
        monitor.line(step, "validation", **scores)
    if every.best_by in scores and best.note(step, every.best_by, scores[every.best_by]):
        checkpoints.save_best(state, scores[every.best_by], setup.config, setup.vocabularies.hash)


def score_of_first(setup: TrainSetup, params: Any, step: int, monitor: Monitor) -> dict[str, float]:
    """Return the `metrics` of the first pairs by name.

    Each process translates all of them, on one of its devices. The first one also writes some
    translations and an attention picture to TensorBoard.
    """
    config, split, vocabularies = setup.config, setup.validation, setup.vocabularies
    number = config.train.metrics_pairs
    sources, targets = split.sources[:number], split.targets[:number]
    whole = multihost_utils.process_allgather(params, tiled=True)  # several may hold shards
    params = jax.device_put(whole, jax.local_devices()[0])
    outputs = translate(
        setup.model,
        params,
        vocabularies,
        sources,
        config.decode,
        config.data.max_length,
        setup.bleu_tokenizer,
    )
    if monitor.writes:
        rows = list(zip(sources, targets, outputs, strict=True))[:ROWS_SHOWN]
        monitor.board.translations(step, rows)
        # The first pair that fits.
        shown = has_room(tokenize(split, vocabularies), config.model).argmax()
        pair = split.sources[shown], split.targets[shown]
        seen = attention_of(setup.model, params, vocabularies, *pair)
        monitor.board.attention(step, seen)
    texts = (sources, outputs, targets)
    validation = Validation(*texts, params, config, setup.bleu_tokenizer, split.gold[:number])
    return {
        parse(text).name: score_by(text, validation) for text in split_list(config.train.metrics)
    }
