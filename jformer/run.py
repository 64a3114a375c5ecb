"""A loaded run directory: the interface for translating, scoring and notebooks.

A run directory is self-contained: config.json, vocabulary.json (and source_vocabulary.json if each
language has its own), metrics.jsonl, results.json, checkpoints/. Checkpoints written by many
devices are restored on one device of any kind.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jformer.backend import use_compilation_cache
from jformer.components import find
from jformer.config import Config, overridden
from jformer.console import say
from jformer.data.tokens import model_sources
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.decoding.pool import Decoder
from jformer.decoding.scoring import Attention, attention_of, score_pairs
from jformer.decoding.translate import Hypothesis, hypotheses, warm_up
from jformer.errors import UserError, check_strings
from jformer.evaluation.scorer import Translations
from jformer.model.transformer import Transformer
from jformer.rundir import BEST, CHECKPOINTS, config_to_open, served_checkpoint
from jformer.schema import local_paths
from jformer.training.checkpoints import Checkpoints, averaged
from jformer.training.loss import perplexity
from jformer.training.provenance import component_hashes


@dataclasses.dataclass(frozen=True)
class Scored:
    """The log-probability of a target, given its source."""

    log_prob: float  # of its tokens and EOS
    perplexity: float  # per token, EOS counted
    tokens: list[str]
    token_log_probs: list[float]  # one more than tokens: the last belongs to EOS


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """A run directory, and its parameters at a checkpoint or the mean of several."""

    workdir: Path
    checkpoint: str  # the name that selected the steps
    config: Config
    vocabularies: Vocabularies
    model: Transformer
    params: Any
    steps: tuple[int, ...]  # whose parameters are averaged
    others: tuple["Run", ...] = ()  # the other members of an ensemble

    def __repr__(self) -> str:
        return f"Run({str(self.workdir)!r}, step {self.step}, {len(self.others)} others)"

    @property
    def step(self) -> int:
        return self.steps[-1]

    @property
    def vocabulary(self) -> Vocabulary:
        """Return the target vocabulary; a joint vocabulary is also the source's."""
        return self.vocabularies.target

    @functools.cached_property
    def scorer(self) -> Translations:
        """The component that scores outputs and converts texts to and from the model's format."""
        return find("config.data.scorer", "scorer", self.config.data.scorer)

    def translate(
        self, sentences: Sequence[str], prefixes: Sequence[str] | None = None, **decode: Any
    ) -> list[str]:
        """Return the best output for each sentence, which begins with its prefix.

        A prefix may end within a word, which the output completes. If its last word is complete,
        end it with a space.

        `decode` overrides keys of `config.decode`, such as beam_size=1.
        """
        found = self.hypotheses(sentences, prefixes, **decode)
        return [best[0].text for best in found]

    def hypotheses(
        self,
        sentences: Sequence[str],
        prefixes: Sequence[str] | None = None,
        details: bool = False,
        **decode: Any,
    ) -> list[list[Hypothesis]]:
        """Return up to `n_best` outputs per sentence, the best first, or samples as drawn.

        If `choose` is not "score", each sentence has a single output, chosen from these. `details`
        adds tokens, their log-probabilities and a word alignment.
        """
        check_strings("sentences", sentences)
        check_strings("prefixes", prefixes or [])
        decoder = self.with_decode(**decode).decoder
        sources = model_sources(sentences, self.vocabularies, self.config.data)
        language = self.config.data.target_language
        found = hypotheses(decoder, self.vocabularies, sources, prefixes, details, language)
        for sentence, n_best in zip(sentences, found, strict=True):
            for i, hypothesis in enumerate(n_best):
                text, well_formed = self.scorer.output(hypothesis.text, sentence)
                n_best[i] = dataclasses.replace(hypothesis, text=text, well_formed=well_formed)
        return found

    def warm_up(self, lengths: Sequence[int], batch: int = 1, **decode: Any) -> None:
        """Compile the search before the first request, for example in a server.

            run.warm_up(lengths=[16, 64], batch=8)

        One program serves sources of up to 15 tokens, the next one up to 31, then 63, and so on.
        `lengths` has a number of tokens for each program. Afterwards, no request of up to `batch`
        sentences compiles anything. `decode` overrides keys of `config.decode`.
        """
        warm_up(self.with_decode(**decode).decoder, self.vocabularies, lengths, batch)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Scored]:
        """Return the log-probability of each target as the translation of its source.

        Raises `UserError` for a pair too long for a table of learned positions.
        """
        check_strings("sources", sources)
        check_strings("targets", targets)
        texts = zip(targets, sources, strict=True)
        targets = [self.scorer.target(*pair, self.config) for pair in texts]
        sources = model_sources(sources, self.vocabularies, self.config.data)
        source_ids = self.vocabularies.source.encode(sources)
        target_ids = self.vocabularies.target.encode(targets)
        pairs = list(zip(source_ids, target_ids, strict=True))
        scored = []
        for ids, forced in zip(target_ids, score_pairs(self.decoder, pairs), strict=True):
            log_probs_T, tokens = forced.log_probs_T, self.vocabulary.tokens(ids)
            mean = perplexity(-log_probs_T.mean(), 1)
            scored.append(Scored(float(log_probs_T.sum()), mean, tokens, log_probs_T.tolist()))
        return scored

    def attention(self, source: str, target: str) -> Attention:
        """Return the weights of every attention for a pair, as `decoder_0/cross_attention`.

        In an ensemble, only this run's attention is returned. A text beyond a table of learned
        positions raises `UserError`.
        """
        target = self.scorer.target(target, source, self.config)
        (source,) = model_sources([source], self.vocabularies, self.config.data)
        return attention_of(self.model, self.params, self.vocabularies, source, target)

    @functools.cached_property
    def decoder(self) -> Decoder:
        members = (self, *self.others)
        return Decoder(
            tuple(run.model for run in members),
            tuple(run.params for run in members),
            self.config.decode,
            self.config.data.max_length,
        )

    def with_decode(self, **changes: Any) -> "Run":
        """Return the same run with other, checked values in `config.decode`."""
        if not changes:
            return self
        values = {f"decode.{name}": value for name, value in changes.items()}
        return dataclasses.replace(self, config=overridden(self.config, values, self.config))


def load(
    workdir: str | Path,
    checkpoint: str | int | Sequence[int] = "served",
    ensemble: Sequence[str] = (),
    plugins: Sequence[str | Path] = (),
) -> Run:
    """Open a run directory and restore its parameters onto one device of any kind.

        run = jformer.load("runs/mine")
        run.translate(["A sentence.", "Another one."], beam_size=1)

    The run has the methods `translate`, `hypotheses` (n-best lists with scores), `score`
    (log-probabilities of given pairs), `attention` and `warm_up`, and `config`, `model`, `params`,
    `vocabulary` and `step`.

    `checkpoint` is `average` (the mean of the last `train.average_checkpoints`, or the moving
    average of a run that has one), `last`, `served` (whichever of these two validated better at the
    end of training; before the end, `last`), `best`, a step, or steps to average as `[1000, 2000]`.
    The probabilities of the runs in `ensemble`, each RUN[@CHECKPOINT], are averaged with this
    run's. If the config names Python files, pass them as `plugins`, which are executed. Raises
    `UserError` for missing or damaged files.
    """
    if not isinstance(checkpoint, str | int):
        checkpoint = ",".join(map(str, checkpoint))
    folder, which = Path(local_paths("workdir", str(workdir))), str(checkpoint)
    files = [local_paths("plugins", str(file)) for file in plugins]
    config = config_to_open(folder, files)
    use_compilation_cache(config.compilation_cache)
    if which == "served":
        which = served_checkpoint(folder, max(Checkpoints(folder).steps(), default=0)) or "last"
    checkpoints = Checkpoints(folder, folder=BEST if which == "best" else CHECKPOINTS)
    if not checkpoints.steps():
        raise UserError(f"{folder}: no checkpoint yet for checkpoint={which}; train first")
    steps = steps_named(which, checkpoints, config)
    vocabularies = Vocabularies.load(folder, config.data.joint_vocabulary)
    model = Transformer(config.model, vocabularies.target.size, vocabularies.source.size)
    versions = checkpoints.newest("metadata").get("versions", {})
    for name, content in component_hashes(config).items():
        if versions.get(name, content) != content:
            say(f"{name}: has changed since {folder} was trained with it; outputs may differ")
    one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    like = jax.tree.map(lambda x: x.update(sharding=one_device), parameter_shapes(model))
    moving = config.train.ema_decay > 0 and which in ("average", "best")
    params = checkpoints.mean(steps, like, "ema" if moving else "params")
    others = tuple(load(*run_and_checkpoint(name), plugins=files) for name in ensemble)
    for name, other in zip(ensemble, others, strict=True):
        if other.vocabularies.hash != vocabularies.hash:
            raise UserError(f"{name}: its vocabulary differs from {workdir}'s; train both with one")
    return Run(folder, which, config, vocabularies, model, params, tuple(steps), others)


def steps_named(which: str, checkpoints: Checkpoints, config: Config) -> list[int]:
    """Return the steps of the checkpoints to average."""
    saved = checkpoints.steps()
    # The last moving average is a mean of many steps already.
    if which == "average" and not config.train.ema_decay:
        ended = saved[-1] >= config.train.steps or checkpoints.newest("position").get("ended")
        return averaged(saved, bool(ended), config.train)
    if which in ("average", "last", "best"):
        return saved[-1:]
    if re.fullmatch(r"\d+(,\d+)*", which):
        return sorted(int(number) for number in which.split(","))  # their order rounds the mean
    names = "served, average, last, best, a step, or comma-separated steps"
    raise UserError(f"checkpoint {which!r} is unknown; must be {names}")


def run_and_checkpoint(text: str) -> tuple[Path, str]:
    """Split RUN[@CHECKPOINT], unless RUN@CHECKPOINT exists; CHECKPOINT is `served` by default."""
    if "@" not in text or Path(text).exists():
        return Path(text), "served"
    workdir, _, which = text.rpartition("@")
    return Path(workdir), which or "served"


def parameter_shapes(model: Transformer) -> Any:
    """Return the shapes of the parameters, without computing them or using a device."""
    # Parameters are float32 for any dtype; `auto` would query the device.
    model = model.clone(config=dataclasses.replace(model.config, dtype="float32"))

    def init() -> Any:
        tokens_11 = jnp.ones((1, 1), jnp.int32)
        return model.init(jax.random.key(0), tokens_11, tokens_11)["params"]

    return jax.eval_shape(init)
