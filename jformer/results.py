"""Scoring of a run on test sets; the scores are kept in results.json."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jformer import rundir
from jformer.components import find
from jformer.config import Config
from jformer.console import say
from jformer.data.corpora import Split, decode_lines, read_lines, require_file
from jformer.data.datasets import open_corpora, read_split
from jformer.errors import UserError
from jformer.evaluation.scorer import open_test_set
from jformer.run import Run
from jformer.training.loss import perplexity
from jformer.training.provenance import component_hashes, versions

log = logging.getLogger(__name__)

EXAMPLES_SHOWN = 5
SACREBLEU = "sacrebleu:"  # prefix of the names of sacreBLEU's test sets


def own_test_sets(config: Config) -> dict[str, Split]:
    """Return the validation and test splits of the config that a run was trained with."""
    corpora = open_corpora(config, with_train=False)
    return {name: read_split(files) for name, files in corpora.items()}


def named_test_set(name: str, more_references: Sequence[str], config: Config) -> Split:
    """Open `sacrebleu:NAME`, or pairs of text as for training.

    `more_references` are files of further references.
    """
    if name.startswith(SACREBLEU):
        languages = config.data.source_language, config.data.target_language
        sources, first, *others = open_test_set(name.removeprefix(SACREBLEU), *languages)
        test = Split(sources, first, more_references=others)
    else:
        scorer = find("config.data.scorer", "scorer", config.data.scorer)
        test = read_split([scorer.open_pairs(name, config)])
    references = [*test.more_references]
    for path in more_references:
        lines = [*decode_lines(read_lines(require_file(Path(path))), path)]
        if len(lines) != len(test.sources):
            raise UserError(f"{path} has {len(lines)} lines, and {name} has {len(test.sources)}")
        references.append(lines)
    return dataclasses.replace(test, more_references=references)


def score_all(
    run: Run, tests: dict[str, Split], against: Run | None = None
) -> dict[str, dict[str, Any]]:
    """Translate and score each test set, print some translations, and store the scores.

    `against` is a run to compare with, which translates with the same `config.decode`.
    """
    main, label = next(iter(run.scorer.labels.items()))
    scores = {}
    for name, test in tests.items():
        number = len(test.sources)
        say(f"\nscoring {name}: {number:,} pairs with checkpoint={run.checkpoint} ...")
        scores[name], outputs = score_test_set(run, test, against)
        say(f"{name}: {number:,} pairs, {label} {scores[name][main]:.2f}")
        for i in range(0, number, -(-number // EXAMPLES_SHOWN)):
            say(f"  source     {test.sources[i]}")
            say(f"  reference  {(test.gold or test.references[0])[i]}")
            say(f"  output     {outputs[i]}")
        try:
            rundir.write_results(run.workdir, name, scores[name])
        except OSError as error:  # another user's run, or a full disk
            path = run.workdir / rundir.RESULTS
            log.warning("%s: the scores of %s were not saved (%s)", path, name, error.strerror)
    return scores


def score_test_set(
    run: Run, test: Split, against: Run | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the scores of the run's outputs for a test set, and the outputs."""
    translations = [best for best, *_ in run.hypotheses(test.sources)]
    outputs = [translation.text for translation in translations]
    well_formed = [translation.well_formed for translation in translations]
    scores = run.scorer.scores(outputs, well_formed, test, run.config) | perplexity_of(run, test)
    if against is not None:
        others = against.translate(test.sources, **dataclasses.asdict(run.config.decode))
        names = (label(run), label(against))
        scores["against"] = run.scorer.compare(outputs, others, test, names, run.config)
    scores |= {"versions": versions(run.config), "text_sha256": test.sha256}
    return scores | made_by(run), outputs


def perplexity_of(run: Run, test: Split) -> dict[str, float]:
    """Return the perplexity of the first references; {} if a pair exceeds a position table."""
    try:
        scored = run.score(test.sources, test.references[0])
    except UserError as error:
        log.warning("no perplexity: %s", error)
        return {}
    tokens = sum(len(pair.token_log_probs) for pair in scored)
    return {"perplexity": perplexity(-sum(pair.log_prob for pair in scored), tokens)}


def known_scores(run: Run, tests: dict[str, Split]) -> dict[str, dict[str, Any]]:
    """Return the stored scores for the same checkpoint, the same search and the same text."""
    results, made = rundir.read_results(run.workdir), made_by(run)
    return {
        name: results[name]
        for name, test in tests.items()
        if {**made, "text_sha256": test.sha256}.items() <= results.get(name, {}).items()
    }


def made_by(run: Run) -> dict[str, Any]:
    """Return what determines the outputs of a run directory, in the form of results.json."""
    decode = dataclasses.asdict(run.config.decode)
    del decode["read_ahead"], decode["batch_size"]
    return {
        "components": component_hashes(run.config),
        "checkpoint": run.checkpoint,
        "step": run.step,
        "steps": [*run.steps],
        "ensemble": {label(other): [*other.steps] for other in run.others},
        "decode": decode,
    }


def label(run: Run) -> str:
    return f"{run.workdir}@{run.checkpoint}"
