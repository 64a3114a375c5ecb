"""Scoring of a run on test sets; the scores are kept in results.json."""

import dataclasses
import logging
import time
from itertools import compress
from pathlib import Path
from typing import Any

from jformer import rundir
from jformer.components import find, without_folders
from jformer.config import Config
from jformer.console import say
from jformer.data.corpora import Split, decode_lines, read_lines, require_file
from jformer.data.datasets import open_corpora, read_split
from jformer.errors import UserError
from jformer.evaluation.named_sets import open_test_set
from jformer.evaluation.scorer import TestSet
from jformer.evaluation.scores import METRICS, REPORTED, check_tokenizer
from jformer.files import is_special, sha256_of
from jformer.run import Run
from jformer.training.loss import perplexity
from jformer.training.provenance import component_hashes, versions

log = logging.getLogger(__name__)

NUMBERS = (*REPORTED, "seconds")  # of results.json that others read
EXAMPLES_SHOWN = 5
SACREBLEU = "sacrebleu:"  # prefix of the names of sacreBLEU's test sets


def own_test_sets(config: Config) -> dict[str, TestSet]:
    """Return the validation and test splits of the config that a run was trained with."""
    corpora = open_corpora(config, with_train=False)
    return {name: as_test_set(read_split(files, config.data)) for name, files in corpora.items()}


def as_test_set(split: Split) -> TestSet:
    return TestSet(split.sources, [split.targets], split.gold)


def named_test_set(name: str, more_references: str, config: Config) -> TestSet:
    """Open `sacrebleu:NAME`, or pairs of text as for training.

    `more_references` names files of further references, separated by commas.
    """
    source, target = config.data.source_language, config.data.target_language
    if name.startswith(SACREBLEU):
        found = TestSet(*open_test_set(name.removeprefix(SACREBLEU), source, target))
    else:
        scorer = find("config.data.scorer", "scorer", config.data.scorer)
        found = as_test_set(read_split([scorer.open_pairs(name, config)], config.data))
    if more_references and found.gold:
        raise UserError(f"--references={more_references}: requires a test set of translations")
    references = [*found.references]
    for path in filter(None, more_references.split(",")):
        stream = decode_lines(read_lines(require_file(Path(path))), path, config.data.bad_lines)
        if len(stream) != len(found.sources):
            raise UserError(
                f"{path} has {len(stream)} lines, and {name} has {len(found.sources)}: each line "
                f"must be a reference for the same line"
            )
        references.append(stream)
    return TestSet(found.sources, references, found.gold)


def score_test_set(
    run: Run, test: TestSet, against: Run | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the scores of the run's outputs for a test set, and the outputs.

    `against` is compared with the run; it translates with the same `config.decode`.
    """
    began = time.monotonic()
    found = [best[0] for best in run.hypotheses(test.sources)]
    outputs = [one.text for one in found]
    seconds = time.monotonic() - began
    well_formed, facts = [one.well_formed for one in found], (run.config, run.bleu_tokenizer)
    scores = run.scorer.scores(outputs, well_formed, test, *facts)
    scores |= perplexity_of(run, test)
    if against is not None:
        others = against.translate(test.sources, **dataclasses.asdict(run.config.decode))
        names = (label(run), label(against))
        scores["against"] = run.scorer.compare(outputs, others, test, names, *facts)
    scores |= {"seconds": round(seconds, 1), "versions": versions(run.config)}
    scores |= identity(run, test)
    return scores, outputs


def score_all(
    run: Run, tests: dict[str, TestSet], against: Run | None = None
) -> dict[str, dict[str, Any]]:
    """Translate and score each test set, print some translations, and store the scores."""
    check_tokenizer(run.bleu_tokenizer)
    scores = {}
    for name, test in tests.items():
        number = len(test.sources)
        say(f"\nscoring {name}: {number:,} pairs with {run.parameters_served} ...")
        scores[name], outputs = score_test_set(run, test, against)
        main = run.scorer.main
        label = METRICS[main].short if main in METRICS else main
        say(f"{name}: {number:,} pairs, {label} {scores[name][main]:.2f}")
        for i in range(0, number, -(-number // EXAMPLES_SHOWN)):
            say(f"  source     {test.sources[i]}")
            say(f"  reference  {test.gold[i] if test.gold else test.references[0][i]}")
            say(f"  output     {outputs[i]}")
        keep_scores(run, name, scores[name])
    return scores


def read_results(workdir: Path) -> dict[str, Any]:
    """Return `{test set: scores}` of what has been scored; `UserError` where it is damaged."""
    results = rundir.read_results(workdir)
    results.pop(rundir.SERVED, None)
    for name, scores in results.items():
        if not isinstance(scores, dict) or not all(
            isinstance(scores.get(key, 0), int | float) for key in NUMBERS
        ):
            raise UserError(
                f"{workdir / rundir.RESULTS}: is damaged: {name!r} has no scores; remove it to "
                f"score the run again"
            )
    return results


def keep_scores(run: Run, name: str, scores: dict[str, Any]) -> None:
    """Put the scores of a test set into results.json; a failure to do so is only a warning."""
    path = run.workdir / rundir.RESULTS
    try:
        rundir.write_results(run.workdir, name, scores)
    except (OSError, UserError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        log.warning("%s: the scores of %s are not kept there (%s)", path, name, reason)


def perplexity_of(run: Run, test: TestSet) -> dict[str, Any]:
    """Return the perplexity of the first references; pairs beyond a position table are left out."""
    fits = run.can_score(test.sources, test.references[0])
    sources, targets = ([*compress(s, fits)] for s in (test.sources, test.references[0]))
    found: dict[str, Any] = {}
    if left_out := fits.count(False):
        found["pairs_without_perplexity"] = left_out
        log.warning(
            f"{left_out:,} of {len(fits):,} pairs beyond the tokens of "
            f"config.model.positions, left out of the perplexity"
        )
    if sources:
        scored = run.score(sources, targets)
        tokens = sum(len(one.token_log_probs) for one in scored)
        found["perplexity"] = perplexity(-sum(one.log_prob for one in scored), tokens)
    return found


def made_by(run: Run) -> dict[str, Any]:
    """Return everything that determines a run's outputs, in the form of results.json."""
    members, decode = (run, *run.others), dataclasses.asdict(run.config.decode)
    for name in ("search", "constraint", "choose"):
        decode[name] = without_folders(decode[name])
    del decode["read_ahead"]
    if all(member.model.config.compute_dtype == "float32" for member in members):
        del decode["batch_size"]  # only bfloat16 rounds by the shapes
    hashes = component_hashes(run.config)
    return {
        **({"components": hashes} if hashes else {}),
        "step": run.step,
        "steps": [*run.steps],
        "checkpoint": run.checkpoint,
        "ensemble": [label(other) for other in run.others],
        "params_sha256": [member.params_sha256 for member in members],
        "decode": decode,
    }


def identity(run: Run, test: TestSet) -> dict[str, Any]:
    """Return what a stored score is valid for: the model, its search, the text and the words."""
    return {**made_by(run), "text_sha256": test.sha256, "bleu_tokenizer": run.bleu_tokenizer}


def job_of(run: Run, format: str, files: dict[str, str]) -> dict[str, Any]:
    """Return what determines the lines of an output; {} if an input can be read only once."""
    named = {key: name for key, name in files.items() if name}
    if any(map(is_special, named.values())):
        return {}
    hashes = {key: sha256_of(Path(name)) for key, name in named.items()}
    return {**hashes, "format": format, "workdir": str(run.workdir.resolve()), **made_by(run)}


def known_scores(run: Run, tests: dict[str, TestSet]) -> dict[str, dict[str, Any]]:
    """Return the stored scores for the same parameters, the same search and the same text."""
    results = read_results(run.workdir)
    return {
        name: results[name]
        for name, test in tests.items()
        if name in results and identity(run, test).items() <= results[name].items()
    }


def label(run: Run) -> str:
    return f"{run.workdir}@{run.checkpoint}"
