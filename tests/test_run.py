"""A run directory, opened from Python."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import jformer
from jformer.config import UserError
from jformer.data.corpora import Split
from jformer.run import read_results
from jformer.training import parallel
from jformer.training.checkpoint import Checkpoints
from jformer.training.evaluate import likelihood
from tests.conftest import number_words, small_flags


@pytest.fixture(scope="module")
def run(trained_workdir):
    return jformer.load(trained_workdir)


def test_a_loaded_run_translates_a_list(run):
    sentences = ["1 2 3", "", "4 5 6 7 8"]
    outputs = run.translate(sentences)
    assert outputs == [run.translate([sentence])[0] for sentence in sentences]
    assert [bool(text) for text in outputs] == [True, False, True]


def test_decode_overrides_take_effect_and_are_checked(run):
    sentences = [" ".join(str(n)) for n in range(100, 120)]
    assert run.translate(sentences, max_extra_length=0) != run.translate(sentences)
    with pytest.raises(UserError, match="did you mean beam_size"):
        run.translate(sentences, beam_sise=2)
    with pytest.raises(UserError, match=r"config\.decode\.beam_size=0"):
        run.translate(sentences, beam_size=0)
    with pytest.raises(TypeError, match="list of sentences"):
        run.translate("1 2 3")


def test_parameters_are_the_mean_of_the_last_checkpoints(run, trained_workdir):
    with Checkpoints(trained_workdir) as checkpoints:
        assert checkpoints.steps() == [9, 12]
        single = [checkpoints.params([step], run.params) for step in (9, 12)]
    mean = (single[0]["embedding"] + single[1]["embedding"]) / 2
    np.testing.assert_allclose(run.params["embedding"], mean, rtol=1e-6)
    assert not np.allclose(single[0]["embedding"], single[1]["embedding"])


def test_a_run_can_be_opened_at_an_earlier_step(trained_workdir):
    assert jformer.load(trained_workdir, 9).step == 9
    with pytest.raises(UserError, match=r"no checkpoint of step 10; there are \[9, 12\]"):
        jformer.load(trained_workdir, 10)


def test_a_copied_run_directory_is_all_that_is_needed(run, trained_workdir, tmp_path):
    shutil.copytree(trained_workdir, tmp_path / "elsewhere")
    assert jformer.load(tmp_path / "elsewhere").translate(["1 2"]) == run.translate(["1 2"])


def test_what_is_no_run_directory_is_named(tmp_path, trained_workdir):
    with pytest.raises(
        UserError, match=r"config\.json: no such file; is .* the directory of a run"
    ):
        jformer.load(tmp_path)
    shutil.copy(trained_workdir / "config.json", tmp_path)
    shutil.copy(trained_workdir / "vocabulary.json", tmp_path)
    with pytest.raises(UserError, match="no checkpoint yet"):
        jformer.load(tmp_path)


def test_results_hold_the_scores_of_the_test_split(trained_workdir):
    results = read_results(trained_workdir)
    assert "test" in results
    assert set(results["test"]) == {
        "bleu", "bleu_lowercase", "chrf", "perplexity", "signature", "signature_lowercase",
        "step", "checkpoint", "seconds", "decode",
    }  # fmt: skip
    assert results["test"]["step"] == 12
    assert results["test"]["perplexity"] > 1


def test_perplexity_is_that_of_each_pair_scored_alone(run):
    """Batches, their padding and their order play no part in it."""
    from jformer.data.corpora import Split

    sources, targets = ["1 2 3", "4", "5 6 7 8"], ["one two three", "four", "five six seven eight"]
    together = run.score(Split(sources, targets), targets)["perplexity"]
    total = tokens = 0.0
    for source, target in zip(sources, targets, strict=True):
        count = len(run.vocabulary.encode([target])[0]) + 1
        alone = run.score(Split([source], [target]), [target])["perplexity"]
        total, tokens = total + np.log(alone) * count, tokens + count
    assert together == pytest.approx(np.exp(total / tokens), rel=1e-4)


def test_two_vocabularies_train_save_and_translate(corpus_directory, tmp_path, capsys):
    from jformer.main import main

    flags = small_flags(corpus_directory, tmp_path / "run")
    apart = ["--config.data.joint_vocabulary=False", "--config.model.tying=output"]
    apart += ["--config.data.test=", "--config.train.steps=3"]
    assert main(["jformer", *flags, *apart]) == 0
    run = jformer.load(tmp_path / "run")
    source, target = run.vocabularies.source, run.vocabularies.target
    assert source.size < target.size  # digits are few, words are many
    assert f"vocabulary of {source.size:,} and {target.size:,}" in capsys.readouterr().err
    assert run.params["source_embedding"].shape == (source.size, 16)
    assert run.params["embedding"].shape == (target.size, 16)
    assert len(run.translate(["1 2 3"])) == 1
    (tmp_path / "run" / "source_vocabulary.json").unlink()
    with pytest.raises(UserError, match=r"source_vocabulary\.json: no such file"):
        jformer.load(tmp_path / "run")


def test_importing_the_package_does_not_import_jax():
    import subprocess
    import sys

    program = "import sys, jformer; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_results_json_is_what_was_printed(trained_workdir, capsys):
    from jformer.main import main

    assert main(["jformer", "evaluate", f"--workdir={trained_workdir}"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    stored = read_results(trained_workdir)
    assert {name: stored[name] for name in printed} == printed


def test_a_split_is_scored_whole_whatever_the_batches(run):
    """Each sentence once: the mean over all tokens is that of the sentences one by one."""
    split = number_words(410, 423)

    def nll(split, batch_tokens):
        train = dataclasses.replace(run.config.train, batch_tokens=batch_tokens)
        config = dataclasses.replace(run.config, train=train)
        mesh = parallel.make_mesh(config)
        return likelihood(run.model, run.vocabularies, split, config, mesh)(run.params)["nll"]

    tokens = [len(ids) + 1 for ids in run.vocabulary.encode(split.targets)]
    single = [nll(Split([s], [t]), 48) for s, t in zip(split.sources, split.targets, strict=True)]
    mean = np.dot(single, tokens) / sum(tokens)
    # Float32 sums in another order.
    assert nll(split, 48) == pytest.approx(mean, rel=1e-5)
    assert nll(split, 4096) == pytest.approx(mean, rel=1e-5)
