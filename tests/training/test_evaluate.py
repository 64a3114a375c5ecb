"""Validation while training: the likelihood, scores of outputs, and the best checkpoint by one."""

import numpy as np
import pytest

import jformer
from jformer.data.corpora import Split
from jformer.evaluation.scores import score
from jformer.main import main
from jformer.schema import replaced
from jformer.training import sharding
from jformer.training.evaluate import likelihood
from tests.conftest import number_words, small_flags, write_split
from tests.training.test_logging import lines_of, text_in, values_in

PAIRS = 8  # of the validation split, translated for BLEU
VALIDATION = number_words(20300, 20312)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Sentences of five words, as BLEU counts four in a row."""
    directory = tmp_path_factory.mktemp("evaluate")
    write_split(directory / "train", number_words(10000, 10300))
    write_split(directory / "validation", VALIDATION)
    return directory


def run(directory, name, *more):
    changed = ["data.test=", "train.checkpoint_every=1000", "optimizer.warmup_steps=20"]
    flags = [*small_flags(directory, directory / name), *(f"--config.{key}" for key in changed)]
    return main(["jformer", *flags, *more])


def validated(workdir):
    return lines_of(workdir, "validation")


def nll_of(run, split):
    """The NLL a token, by forced decoding of each pair."""
    scored = run.score(split.sources, split.targets)
    return -np.mean([x for one in scored for x in one.token_log_probs])


def bleu_of(run):
    outputs = run.translate(VALIDATION.sources[:PAIRS])
    return score(outputs, [VALIDATION.targets[:PAIRS]], "de")["bleu"]


LEARNING = ["--config.train.steps=50", "--config.train.metrics_every=10"]
LEARNING.append(f"--config.train.metrics_pairs={PAIRS}")


@pytest.fixture(scope="module")
def by_nll(directory):
    assert run(directory, "by_nll", *LEARNING, "--config.train.evaluate_every=5") == 0
    return directory / "by_nll"


@pytest.mark.process
def test_scores_are_logged_when_due_and_the_best_checkpoint_has_the_lowest_nll(by_nll):
    lines = validated(by_nll)
    assert [line["step"] for line in lines] == [*range(5, 51, 5)]
    assert [line["step"] for line in lines if "bleu" in line] == [10, 20, 30, 40, 50]
    lowest = min(lines, key=lambda line: line["nll"])
    assert lowest["step"] < 50  # else the last one would do as well
    best = jformer.load(by_nll, "best")
    assert best.step == lowest["step"]
    # Sums of float32 in another order, here and below.
    assert nll_of(best, VALIDATION) == pytest.approx(lowest["nll"], rel=1e-5)


@pytest.mark.process
def test_bleu_is_of_translating_with_the_parameters_and_tensorboard_shows_some(by_nll):
    last = jformer.load(by_nll, "last")
    assert validated(by_nll)[-1]["bleu"] == bleu_of(last) > 0
    outputs = last.translate(VALIDATION.sources[:PAIRS])
    rows = zip(VALIDATION.sources[:PAIRS], VALIDATION.targets[:PAIRS], outputs, strict=True)
    lines = text_in(by_nll, "validation/translations").splitlines()
    assert [line[15:] for line in lines] == [x for row in rows for x in (*row, "")]
    assert [step for step, _ in values_in(by_nll, "validation/bleu")] == [10, 20, 30, 40, 50]


@pytest.mark.process
def test_moving_averages_are_validated_where_a_run_has_them(directory):
    more = ["--config.train.ema_decay=0.9", "--config.train.evaluate_every=12"]
    assert run(directory, "moving", *more) == 0
    (line,) = validated(directory / "moving")
    runs = [jformer.load(directory / "moving", which) for which in ("average", "last")]
    average, last = (nll_of(run, VALIDATION) for run in runs)
    assert abs(average - last) > 0.01
    assert line["nll"] == pytest.approx(average, rel=1e-5)


def test_the_likelihood_is_that_of_each_pair_once_whatever_the_batches():
    """With a pair that is much longer than the others."""
    run = jformer.load("tests/stored_run/run", "last")
    sources, targets = ["7", " ".join("7" * 60)], ["seven", " ".join(["seven"] * 60)]
    split = Split([*VALIDATION.sources, *sources], [*VALIDATION.targets, *targets])
    expected = nll_of(run, split)
    for batch_tokens, num_buckets in ((256, 1), (8192, 3)):
        keys = {"train": {"batch_tokens": batch_tokens}, "data": {"num_buckets": num_buckets}}
        config = replaced(run.config, keys)
        mesh = sharding.make_mesh(config)
        scores = likelihood(run.model, run.vocabularies, split, config, mesh)(run.params)
        assert scores["nll"] == pytest.approx(expected, rel=1e-5)
        assert scores["perplexity"] == pytest.approx(np.exp(scores["nll"]))
