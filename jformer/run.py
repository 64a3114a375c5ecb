"""A run directory, opened: the way in for translating, scoring and notebooks.

It is self-contained: config.json, vocabulary.json (beside source_vocabulary.json where there are
two), metrics.jsonl, results.json, checkpoints/. What many devices wrote is read on one device of
any kind.
"""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jformer.config import (
    Config,
    DecodeConfig,
    ParallelConfig,
    UserError,
    check,
    nearest,
    replace_file,
)
from jformer.data.corpora import Split
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.decoding.translate import translate
from jformer.evaluation.scores import score
from jformer.model.transformer import Transformer
from jformer.training import parallel
from jformer.training.evaluate import likelihood
from jformer.training.restore import restore


@dataclasses.dataclass(frozen=True)
class Run:
    """`params` are of the checkpoint, or the mean of those, that `load` was asked for."""

    workdir: Path
    config: Config
    model: Transformer
    params: Any
    vocabularies: Vocabularies
    step: int
    checkpoint: str  # what `load` was asked for

    @property
    def vocabulary(self) -> Vocabulary:
        """The target's, which is the source's too where they are joint."""
        return self.vocabularies.target

    def translate(self, sentences: Sequence[str], **decode_overrides: Any) -> list[str]:
        """One translation a sentence; overrides are keys of `config.decode`, as `beam_size=1`."""
        if isinstance(sentences, str):
            raise TypeError("translate takes a list of sentences, got one string")
        known = [field.name for field in dataclasses.fields(self.config.decode)]
        for name, value in decode_overrides.items():
            if name not in known:
                raise UserError(f"{name}={value!r}: no key of config.decode{nearest(name, known)}")
        decode = dataclasses.replace(self.config.decode, **decode_overrides)
        check(dataclasses.replace(self.config, decode=decode))
        return translate(
            self.model, self.params, self.vocabularies, sentences, decode,
            self.config.data.max_length,
        )  # fmt: skip

    def with_decode(self, decode: DecodeConfig) -> "Run":
        return dataclasses.replace(self, config=dataclasses.replace(self.config, decode=decode))

    def score(self, split: Split, hypotheses: Sequence[str]) -> dict[str, Any]:
        """Scores of `hypotheses` for the split, and the model's perplexity on it."""
        alone = dataclasses.replace(self.config, parallel=ParallelConfig())
        mesh = parallel.make_mesh(alone, jax.local_devices()[:1])
        evaluate = likelihood(self.model, self.vocabularies, split, self.config, mesh)
        return {
            **score(hypotheses, split.targets),
            "perplexity": evaluate(self.params)["perplexity"],
        }


def load(workdir: str | Path, checkpoint: str | int | Sequence[int] = "average") -> Run:
    """Open a run directory.

    `checkpoint` is `average` (the mean of the last `train.average_checkpoints`, or the moving
    average of a run that has one), `last`, `best`, a step, or steps to average as `[1000, 2000]`.
    `UserError` says what is missing.
    """
    if not isinstance(checkpoint, str | int):
        checkpoint = ",".join(map(str, checkpoint))
    restored = restore(Path(workdir), str(checkpoint))
    return Run(
        Path(workdir), restored.config, restored.model, restored.params, restored.vocabularies,
        restored.step, str(checkpoint),
    )  # fmt: skip


def score_split(run: Run, name: str, split: Split) -> tuple[dict[str, Any], list[str]]:
    """Translate and score a split, and keep the scores under its name in results.json."""
    began = time.monotonic()
    hypotheses = run.translate(split.sources)
    seconds = time.monotonic() - began
    scores = {**run.score(split, hypotheses), "step": run.step, "checkpoint": run.checkpoint}
    scores |= {"seconds": round(seconds, 1), "decode": dataclasses.asdict(run.config.decode)}
    replace_file(
        run.workdir / "results.json",
        json.dumps({**read_results(run.workdir), name: scores}, indent=2).encode() + b"\n",
    )
    return scores, hypotheses


def read_results(workdir: Path) -> dict[str, Any]:
    """`{split: scores}` of what has been scored so far."""
    path = workdir / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
