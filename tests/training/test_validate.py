"""Scores while training: the best checkpoint by one of them, patience with it, TensorBoard."""

import contextlib
import dataclasses
import io
import json
import re

import numpy as np
import pytest

import jformer
from jformer.config import read_config
from jformer.data.corpora import Split
from jformer.evaluation.scores import score
from jformer.main import main
from jformer.training.setup import is_complete
from jformer.training.validate import Best
from tests.conftest import number_words, small_flags, write_split
from tests.training.test_tensorboard import values_in

pytestmark = pytest.mark.process

PAIRS = 8  # of the validation split, translated for BLEU
VALIDATION = number_words(20300, 20312)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Sentences of five words, as BLEU counts four in a row; the first of validation is another."""
    directory = tmp_path_factory.mktemp("validate")
    write_split(directory / "train", number_words(10000, 10300))
    write_split(directory / "validation", VALIDATION)
    return directory


def run(directory, name, *more):
    flags = [f for f in small_flags(directory, directory / name) if "data.test" not in f]
    assert main(["jformer", *flags, "--config.train.checkpoint_every=1000", *more]) == 0
    return directory / name


def metrics_of(workdir, split="validation"):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split]


def bleu_of(outputs):
    return score(outputs, [VALIDATION.targets[:PAIRS]], "de")["bleu"]


LEARNING = [
    "--config.train.steps=50", "--config.optimizer.warmup_steps=20",
    "--config.train.metrics_every=10", f"--config.train.metrics_pairs={PAIRS}",
]  # fmt: skip


@pytest.fixture(scope="module")
def by_nll(directory):
    return run(directory, "by_nll", *LEARNING, "--config.train.evaluate_every=5")


@pytest.fixture(scope="module")
def by_bleu(directory):
    best_by = "--config.train.best_by=bleu"
    return run(directory, "by_bleu", *LEARNING, best_by, "--config.train.evaluate_every=50")


def test_validation_scores_are_lines_at_their_intervals(by_nll):
    lines = metrics_of(by_nll)
    assert [line["step"] for line in lines] == [*range(5, 51, 5)]
    assert [line["step"] for line in lines if "bleu" in line] == [10, 20, 30, 40, 50]
    assert all(line["perplexity"] == pytest.approx(np.exp(line["nll"])) for line in lines)


def test_the_best_checkpoint_has_the_lowest_nll_of_the_log(by_nll):
    lines = metrics_of(by_nll)
    lowest = min(lines, key=lambda line: line["nll"])
    assert lowest["step"] < 50  # else the last one would do as well
    best = jformer.load(by_nll, "best")
    assert best.step == lowest["step"]
    scored = best.score(VALIDATION.sources, VALIDATION.targets)
    log_probs = [x for one in scored for x in one.token_log_probs]
    assert np.exp(-np.mean(log_probs)) == pytest.approx(lowest["perplexity"], rel=1e-5)


def test_the_best_checkpoint_has_the_highest_bleu_where_that_is_asked_for(by_bleu):
    lines = [line for line in metrics_of(by_bleu) if "bleu" in line]
    highest = max(lines, key=lambda line: line["bleu"])
    assert 10 < highest["step"] < 50  # neither the first nor the last
    best = jformer.load(by_bleu, "best")
    assert best.step == highest["step"]
    outputs = best.translate(VALIDATION.sources[:PAIRS])
    assert bleu_of(outputs) == highest["bleu"]


def test_bleu_while_training_is_that_of_translating_with_the_checkpoint(by_nll):
    outputs = jformer.load(by_nll, "last").translate(VALIDATION.sources[:PAIRS])
    bleu = bleu_of(outputs)
    assert metrics_of(by_nll)[-1]["bleu"] == bleu > 0


def test_tensorboard_has_the_curves_of_the_log(by_nll):
    for split, name in (("train", "loss"), ("validation", "nll"), ("validation", "bleu")):
        curve = [(step, v.simple_value) for step, v in values_in(by_nll, f"{split}/{name}")]
        logged = [(m["step"], np.float32(m[name])) for m in metrics_of(by_nll, split) if name in m]
        assert curve == logged


def test_tensorboard_has_translations_and_attention_at_each_bleu(by_nll, tmp_path):
    outputs = jformer.load(by_nll, "last").translate(VALIDATION.sources[:PAIRS])
    tables = values_in(by_nll, "validation/translations")
    assert [step for step, _ in tables] == [10, 20, 30, 40, 50]
    rows = zip(VALIDATION.sources[:PAIRS], VALIDATION.targets[:PAIRS], outputs, strict=True)
    lines = tables[-1][1].tensor.string_val[0].decode().splitlines()
    assert lines[2:] == [f"| {' | '.join(row)} |" for row in rows]
    pictures = values_in(by_nll, "attention/decoder_0/cross_attention")
    assert [step for step, _ in pictures] == [10, 20, 30, 40, 50]
    assert len(values_in(by_nll, "attention/tokens")) == 5


@pytest.mark.parametrize(
    ("name", "scores", "better"),
    [
        ("nll", [3.0, 2.0, 2.0, 2.5, 1.0], [True, True, False, False, True]),
        ("bleu", [3.0, 2.0, 3.0, 3.5, 1.0], [True, False, False, True, False]),
    ],
)
def test_a_score_is_better_when_it_is_lower_or_for_bleu_higher(name, scores, better):
    best = Best()
    assert [best.note(step, name, x) for step, x in enumerate(scores)] == better
    last = max(step for step in range(5) if better[step])
    assert (best.score, best.step, best.worse) == (scores[last], last, 4 - last)


def test_a_score_that_is_no_number_is_never_the_best():
    best = Best()
    notes = [best.note(step, "nll", x) for step, x in enumerate([np.nan, np.inf, 2.0, np.nan])]
    assert notes == [False, True, True, False]
    assert (best.score, best.step, best.worse) == (2.0, 2, 1)


@pytest.fixture(scope="module")
def impatient(directory):
    """Calls of a run that cannot learn: with patience 3, once more, then with patience 4."""
    calls = []
    still = ["--config.optimizer.schedule=equation_3(factor=1e-30)", "--config.train.steps=20"]
    for patience in (3, 3, 4):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            workdir = run(
                directory, "impatient", *still, f"--config.train.patience={patience}",
                "--config.train.evaluate_every=2",
            )  # fmt: skip
        steps = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())
        calls.append((errors.getvalue(), metrics_of(workdir), metrics_of(workdir, "ended"), steps))
    return calls


def test_a_run_without_a_better_score_ends_after_its_patience_and_saves(impatient):
    errors, lines, ended, checkpoints = impatient[0]
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert ended == [{"step": 8, "split": "ended", "patience": 3, "best_step": 2}]
    assert re.search(r"patience 3\b.*best_step 2\b", errors)
    assert checkpoints == [8]


def test_a_run_that_lost_its_patience_is_complete(impatient):
    errors, *after = impatient[1]
    assert re.search(r"complete.*step 8\b", errors)
    assert not re.search(r"resum.*step", errors)
    assert (*after,) == impatient[0][1:]


def test_a_run_that_lost_its_patience_goes_on_with_more_of_it(impatient):
    errors, lines, ended, checkpoints = impatient[2]
    assert re.search(r"resum.*step 8\b", errors)
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10]
    assert ended[-1] == {"step": 10, "split": "ended", "patience": 4, "best_step": 2}
    assert checkpoints[-1] == 10


@pytest.mark.parametrize(
    ("change", "complete"),
    [
        ({}, True),
        ({"patience": 2}, True),
        ({"patience": 5}, False),
        ({"patience": 0}, False),
        ({"patience": 0, "steps": 10}, True),
    ],
)
def test_a_run_is_complete_at_its_last_step_or_without_patience(
    impatient, directory, change, complete
):
    """It ended at step 10 of 20, with patience 4."""
    workdir = directory / "impatient"
    config = read_config(workdir / "config.json")
    train = dataclasses.replace(config.train, **change)
    assert is_complete(dataclasses.replace(config, train=train), workdir) is complete


@pytest.fixture(scope="module")
def averaged(directory):
    """With moving averages, and batches of validation that hold unequally many tokens."""
    split = Split([*VALIDATION.sources[:10], "7"], [*VALIDATION.targets[:10], "seven"])
    write_split(directory / "uneven", split)
    flags = [
        "--config.train.ema_decay=0.9", "--config.train.batch_tokens=64", "--config.train.steps=30",
        "--config.train.evaluate_every=30", "--config.optimizer.warmup_steps=20",
        f"--config.data.validation={directory / 'uneven'}",
    ]  # fmt: skip
    return split, run(directory, "averaged", *flags)


def nll_by(run, split):
    scored = run.score(split.sources, split.targets)
    return -np.mean([x for one in scored for x in one.token_log_probs])


def test_the_validation_nll_is_the_mean_over_all_tokens_however_they_fall_into_batches(averaged):
    split, workdir = averaged
    run = jformer.load(workdir, "average")
    (line,) = metrics_of(workdir)
    lengths = [len(ids) + 1 for ids in run.vocabulary.encode(split.targets)]
    assert max(lengths) * len(lengths) > run.config.train.batch_tokens  # several batches
    assert min(lengths) < max(lengths)
    assert line["nll"] == pytest.approx(nll_by(run, split), rel=1e-5)  # float32
    assert line["perplexity"] == pytest.approx(np.exp(line["nll"]))


def test_a_run_with_moving_averages_is_validated_by_them(averaged):
    split, workdir = averaged
    (line,) = metrics_of(workdir)
    average, last = (nll_by(jformer.load(workdir, which), split) for which in ("average", "last"))
    assert abs(average - last) > 0.01
    assert line["nll"] == pytest.approx(average, rel=1e-5)  # float32
