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
    UserError,
    check,
    nearest,
    read_config,
    replace_file,
)
from jformer.data.corpora import Split
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.decoding.translate import translate
from jformer.evaluation.scores import score
from jformer.model.transformer import Transformer
from jformer.training import parallel
from jformer.training.checkpoint import Checkpoints
from jformer.training.loop import evaluation, make_model
from jformer.training.step import abstract_params


@dataclasses.dataclass(frozen=True)
class Run:
    """`params` are the mean of the last `config.train.average_checkpoints` checkpoints."""

    workdir: Path
    config: Config
    model: Transformer
    params: Any
    vocabularies: Vocabularies
    step: int

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
        mesh = parallel.make_mesh(jax.local_devices()[:1])
        evaluate = evaluation(self.model, self.vocabularies, split, self.config, mesh)
        return {
            **score(hypotheses, split.targets),
            "perplexity": evaluate(self.params)["perplexity"],
        }


def load(workdir: str | Path, step: int | None = None) -> Run:
    """Open a run directory at its newest checkpoint, or at `step`.

    `UserError` says what is missing.
    """
    workdir = Path(workdir)
    config = read_config(workdir / "config.json")
    vocabularies = Vocabularies.load(workdir, config.data.joint_vocabulary)
    model = make_model(config, vocabularies)
    with Checkpoints(workdir) as checkpoints:
        saved = checkpoints.steps()
        if not saved:
            raise UserError(f"{workdir / 'checkpoints'}: no checkpoint yet; train first")
        steps = [s for s in saved if step is None or s <= step]
        if not steps or step not in (None, steps[-1]):
            raise UserError(f"{workdir}: no checkpoint of step {step}; there are {saved}")
        checkpoints.check_vocabulary(steps[-1], vocabularies.hash)
        averaged = steps[-config.train.average_checkpoints :]
        params = checkpoints.average_params(abstract_params(model), averaged)
    return Run(workdir, config, model, params, vocabularies, steps[-1])


def score_split(run: Run, name: str, split: Split) -> tuple[dict[str, Any], list[str]]:
    """Translate and score a split, and keep the scores under its name in results.json."""
    began = time.monotonic()
    hypotheses = run.translate(split.sources)
    seconds = time.monotonic() - began
    scores = {**run.score(split, hypotheses), "step": run.step}
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
