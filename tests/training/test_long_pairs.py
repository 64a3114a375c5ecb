"""A pair beyond the table of learned positions costs its own perplexity, and nothing else."""

import contextlib
import io
import json
import math
import re

import pytest

import jformer
from jformer.evaluation.scores import score
from jformer.main import main
from tests.conftest import number_words, small_flags, write_split

pytestmark = pytest.mark.process

LIMIT = 53  # the least that the data and the search of `small_flags` ask for
LONG = "7" * 60  # as many tokens, whatever the vocabulary: digits stand alone
FITTING = "7" * (LIMIT - 1)  # and EOS; the length of its row would be rounded up beyond the table


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A long source in the third line of test, and a long target in the first of validation."""
    directory = tmp_path_factory.mktemp("long")
    write_split(directory / "train", number_words(100, 400))
    validation, test = number_words(400, 406), number_words(420, 426)
    validation.targets[0] = test.sources[2] = LONG
    validation.targets[1] = test.sources[3] = FITTING
    write_split(directory / "validation", validation)
    write_split(directory / "test", test)
    return directory


def learned_flags(directory, name):
    return [
        "jformer", *small_flags(directory, directory / name),
        f"--config.model.positions=learned(max_positions={LIMIT})", "--config.train.steps=6",
        "--config.train.metrics_every=3", "--config.train.evaluate_every=3",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(directory):
    """The run's directory, its standard output and its standard error."""
    output, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
        assert main(learned_flags(directory, "run")) == 0, error.getvalue()
    return directory / "run", output.getvalue(), error.getvalue()


def test_long_lines_are_told_before_training_and_again_with_the_scores(directory, trained):
    _, _, error = trained
    begins = error.index("training    6 steps")
    for split, place in (("validation", "validation.en:1"), ("test", "test.en:3")):
        names = rf"{LIMIT}\b.*config\.model\.positions.*{directory / place}\b.*61"
        assert re.search(rf"^{split}: 1 of 6 .*{names}", error[:begins], re.MULTILINE)
    assert re.search(r"1 of 6 .*config\.model\.positions", error[begins:])


def test_a_long_line_costs_its_own_perplexity_and_not_the_bleu(trained):
    workdir, output, _ = trained
    scores = json.loads(output)["test"]
    run = jformer.load(workdir)
    test = number_words(420, 426)
    test.sources[2:4] = LONG, FITTING
    outputs = run.translate(test.sources)
    assert len(outputs) == 6
    assert scores["bleu"] == score(outputs, [test.targets], "de")["bleu"]
    others = [n for n in range(6) if n != 2]
    scored = run.score([test.sources[n] for n in others], [test.targets[n] for n in others])
    log_probs = [x for one in scored for x in one.token_log_probs]
    assert scores["perplexity"] == pytest.approx(math.exp(-sum(log_probs) / len(log_probs)))
    assert scores["pairs_without_perplexity"] == 1


def test_validation_goes_on_without_its_long_line(trained):
    lines = [json.loads(x) for x in (trained[0] / "metrics.jsonl").read_text().splitlines()]
    validated = [line for line in lines if line["split"] == "validation"]
    assert [math.isfinite(line["nll"]) for line in validated] == [True, True]
    assert all("bleu" in line for line in validated)


def test_a_pair_that_is_to_be_scored_alone_is_named(directory, trained, capfd):
    """`score` has a line for each pair, so there it is an error."""
    command = ["jformer", "score", f"--workdir={trained[0]}", f"--data={directory / 'test'}"]
    assert main(command) == 2
    message = capfd.readouterr().err.splitlines()[-1]
    assert re.match(rf"jformer: config\.model\.positions\b.*{LIMIT}\b.*pair 3\b.*61", message)


def test_a_validation_split_of_which_no_pair_can_be_scored_is_refused(directory, capsys):
    split = number_words(400, 402)
    split.targets[:] = LONG, LONG
    write_split(directory / "all_long", split)
    flags = [f"--config.data.validation={directory / 'all_long'}"]
    assert main([*learned_flags(directory, "none"), *flags]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.match(rf"jformer: config\.model\.positions=.*{LIMIT}\b.*validation", message)
    assert not (directory / "none").exists()
