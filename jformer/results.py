"""A run's outputs for test sets, scored and kept in results.json."""

import dataclasses
import json
import logging
import time
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from jformer.config import Config, UserError, replace_file
from jformer.data.corpora import Split, existing, open_corpus, read_text, texts
from jformer.data.pipeline import open_corpora, read_split
from jformer.evaluation.compare import compare
from jformer.evaluation.lengths import by_length
from jformer.evaluation.named import open_test_set
from jformer.evaluation.scores import score
from jformer.run import Run
from jformer.stream import perplexity

log = logging.getLogger(__name__)

SACREBLEU = "sacrebleu:"  # before the name of a test set that it knows
SPEED = ("batch_size", "read_ahead")  # of config.decode; the outputs do not depend on them


@dataclasses.dataclass(frozen=True)
class TestSet:
    """Sources, and one list of references from each translator."""

    sources: Sequence[str]
    references: Sequence[Sequence[str]]


def own_test_sets(config: Config) -> dict[str, TestSet]:
    """The validation and test splits that a run was trained with."""
    corpora = open_corpora(config.data, config.seed, with_train=False)
    splits = {name: read_split(corpus, config.data) for name, corpus in corpora.items()}
    return {name: as_test_set(split) for name, split in splits.items()}


def as_test_set(split: Split) -> TestSet:
    return TestSet(split.sources, [split.targets])


def named_test_set(name: str, more_references: str, config: Config) -> TestSet:
    """`sacrebleu:NAME`, or pairs of text as for training; files of more references, by commas."""
    source, target = config.data.source_language, config.data.target_language
    if name.startswith(SACREBLEU):
        found = TestSet(*open_test_set(name.removeprefix(SACREBLEU), source, target))
    else:
        found = as_test_set(read_split([open_corpus(name, source, target)], config.data))
    more = [path for path in more_references.split(",") if path]
    streams = [read_text(texts(existing(Path(p))), p, config.data.bad_lines) for p in more]
    for path, stream in zip(more, streams, strict=True):
        if len(stream) != len(found.sources):
            raise UserError(
                f"{path} has {len(stream)} lines, and {name} has {len(found.sources)}: each line "
                f"must be a reference for the same line"
            )
    return TestSet(found.sources, [*found.references, *streams])


def score_test_set(
    run: Run, name: str, test: TestSet, against: Run | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The scores of the run's outputs, kept under the set's name in results.json; the outputs.

    `against` translates it, too, with the same `config.decode`.
    """
    began = time.monotonic()
    outputs = run.translate(test.sources)
    seconds = time.monotonic() - began
    scores = score(outputs, test.references, run.config.data.target_language)
    scores |= perplexity_of(run, name, test)
    scores["by_length"] = by_length(test.sources, outputs, test.references)
    if against is not None:
        others = against.translate(test.sources, **dataclasses.asdict(run.config.decode))
        names = (label(run), label(against))
        scores["against"] = compare(outputs, others, test.references, names)
    scores |= {"seconds": round(seconds, 1), **made_by(run)}
    results = {**read_results(run.workdir), name: scores}
    replace_file(run.workdir / "results.json", json.dumps(results, indent=2).encode() + b"\n")
    return scores, outputs


def perplexity_of(run: Run, name: str, test: TestSet) -> dict[str, Any]:
    """Of the first references, without the pairs that have no room in a table of positions."""
    fits = run.can_score(test.sources, test.references[0])
    sources, targets = ([*compress(s, fits)] for s in (test.sources, test.references[0]))
    found: dict[str, Any] = {}
    if left_out := fits.count(False):
        found["pairs_without_perplexity"] = left_out
        log.warning(
            f"{name}: {left_out:,} of {len(fits):,} pairs beyond the tokens of "
            f"config.model.max_positions, left out of its perplexity"
        )
    if sources:
        scored = run.score(sources, targets)
        tokens = sum(len(one.token_log_probs) for one in scored)
        found["perplexity"] = perplexity(sum(one.log_prob for one in scored), tokens)
    return found


def made_by(run: Run) -> dict[str, Any]:
    """What decides about a run's outputs, as results.json has it."""
    decode = dataclasses.asdict(run.config.decode)
    return {
        "step": run.step,
        "checkpoint": run.checkpoint,
        "ensemble": [label(other) for other in run.others],
        "decode": {name: value for name, value in decode.items() if name not in SPEED},
    }


def job_of(run: Run, format: str, files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What decides about the lines of a translated file; nothing, if they cannot be read again."""
    if "input" not in files or any(file["sha256"] is None for file in files.values()):
        return {}
    made = made_by(run)
    decode = {f"config.decode.{name}": value for name, value in made.pop("decode").items()}
    return {**files, "format": format, "workdir": str(run.workdir.resolve()), **made, **decode}


def known_scores(run: Run) -> dict[str, dict[str, Any]]:
    """What results.json has of this very run, made by the same search."""
    now = made_by(run).items()
    return {name: s for name, s in read_results(run.workdir).items() if now <= s.items()}


def label(run: Run) -> str:
    return f"{run.workdir}@{run.checkpoint}"


def read_results(workdir: Path) -> dict[str, Any]:
    """`{test set: scores}` of what has been scored so far."""
    path = workdir / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
