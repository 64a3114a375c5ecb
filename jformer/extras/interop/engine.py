"""Translation of a run through CTranslate2, on one device.

Reading, cutting and splitting of long texts, the order of outputs, their details and their files
are those of every run: only the search of a sentence is CTranslate2's.
"""

import dataclasses
import functools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jformer.config import EOS, PAD, DecodeConfig
from jformer.decoding.decoder import Decoder
from jformer.decoding.pool import Request
from jformer.decoding.search import NO_RULES, Hypotheses, Rules, length_penalty
from jformer.errors import UserError
from jformer.extras.interop import ctranslate2
from jformer.run import Run


@dataclasses.dataclass(frozen=True, repr=False)
class EngineRun(Run):
    """A run that searches with CTranslate2; its own model scores and aligns the outputs."""

    translator: Any = None

    @functools.cached_property
    def decoder(self) -> Decoder:
        check_decode(self.config.decode)
        own = super().decoder
        fields = {field.name: getattr(own, field.name) for field in dataclasses.fields(own)}
        names = tuple(ctranslate2.token_names(vocabulary) for vocabulary in self.vocabularies)
        return EngineDecoder(**fields, translator=self.translator, names=names)


@dataclasses.dataclass
class EngineDecoder(Decoder):
    translator: Any
    names: tuple[list[str], ...]  # of the tokens of the source and of the target

    def find(self, requests: Sequence[Request], rules: Rules = NO_RULES) -> dict[int, Hypotheses]:
        """Decode all requests: return the hypotheses by the number of the request."""
        if any(request.prefix or request.terms for request in requests):
            raise UserError("--engine=ctranslate2: has no prefixes and no terms; leave them out")
        limits = {number: request.limit(self.config) for number, request in enumerate(requests)}
        found = self.search(requests, list(limits), max(limits.values(), default=1))
        # CTranslate2 has one limit for all: a text whose output is beyond its own is done again.
        beyond: dict[int, list[int]] = {}
        for number, raw in found.items():
            if (raw.tokens_WT != PAD).sum(axis=1).max() > limits[number]:
                beyond.setdefault(limits[number], []).append(number)
        for limit, numbers in beyond.items():
            found |= self.search(requests, numbers, limit)
        return found

    def search(
        self, requests: Sequence[Request], numbers: list[int], limit: int
    ) -> dict[int, Hypotheses]:
        """Decode the requests of these numbers with at most `limit` tokens, EOS counted."""
        config, (source_names, target_names) = self.config, self.names
        ids = {name: token for token, name in enumerate(target_names)}
        results = self.translator.translate_batch(
            [[source_names[token] for token in requests[number].source] for number in numbers],
            max_batch_size=self.places,
            beam_size=config.beam_size,
            num_hypotheses=config.n_best,
            length_penalty=config.length_penalty,
            min_decoding_length=config.min_length,
            max_decoding_length=limit,
            max_input_length=0,
            suppress_sequences=[[name] for name in target_names[:EOS]],  # PAD and BOS
            return_scores=True,
            return_end_token=True,
        )
        outputs = ([[ids[name] for name in one] for one in result.hypotheses] for result in results)
        return {
            number: hypotheses_of(tokens, result.scores, config)
            for number, tokens, result in zip(numbers, outputs, results, strict=True)
        }


def hypotheses_of(
    outputs: list[list[int]], scores: list[float], config: DecodeConfig
) -> Hypotheses:
    """Return outputs with their scores as a search of ours does."""
    lengths_W = np.array([max(1, len(tokens)) for tokens in outputs])
    tokens_WT = np.full((len(outputs), lengths_W.max()), PAD, np.int32)
    for row_T, tokens in zip(tokens_WT, outputs, strict=True):
        row_T[: len(tokens)] = tokens
    # CTranslate2's own penalty is length^alpha, whatever beta is.
    sums_W = np.array(scores) * lengths_W**config.length_penalty
    return Hypotheses(tokens_WT, sums_W, sums_W / length_penalty(lengths_W, config))


def check_decode(config: DecodeConfig) -> None:
    """Raise `UserError` that names all keys that CTranslate2 cannot follow, with the way out."""
    beam = config.beam_size > 1
    followed = {
        "search=beam": config.search == "beam",
        "diversity=0": config.diversity == 0,
        "keep=": not config.keep,
        "constraint=none": config.constraint == "none",
        "early_stopping=true": config.early_stopping or not beam,
        "length_penalty_beta=0": 0 in (config.length_penalty_beta, config.length_penalty)
        or not beam,
    }
    if needed := [f"--config.decode.{key}" for key, follows in followed.items() if not follows]:
        raise UserError(f"--engine=ctranslate2: needs {' '.join(needed)}")


def with_engine(run: Run, engine: str) -> EngineRun:
    """Return the run with the engine `ctranslate2` or `ctranslate2:int8` in place of our search."""
    ctranslate2.check(run.config.model, f"--engine={engine}")
    check_decode(run.config.decode)
    quantization = ctranslate2.QUANTIZATIONS[engine]
    workers = run.config.decode.threads or 1
    with tempfile.TemporaryDirectory() as folder:
        ctranslate2.save_model(run, Path(folder), quantization)
        import ctranslate2 as library

        translator = library.Translator(
            folder,
            device="cuda" if jax.default_backend() == "gpu" else "cpu",
            compute_type=quantization,
            inter_threads=workers,
            intra_threads=max(1, (os.cpu_count() or 1) // workers),
        )
    fields = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    return EngineRun(**fields, translator=translator)
