"""A run directory, opened from Python."""

import numpy as np
import pytest

import jformer
from jformer.decoding.translate import Hypothesis
from jformer.errors import UserError
from jformer.main import main
from tests.conftest import small_flags

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def run(trained_workdir):
    return jformer.load(trained_workdir)


def test_decode_overrides_take_effect_and_are_checked(run):
    sentences = [" ".join(str(n)) for n in range(100, 103)]
    assert run.translate(sentences, max_length=2) != run.translate(sentences)
    with pytest.raises(UserError, match=r"beam_sise.*\bbeam_size"):
        run.translate(sentences, beam_sise=2)
    with pytest.raises(UserError, match=r"config\.decode\.beam_size=0"):
        run.translate(sentences, beam_size=0)


def test_outputs_come_with_scores_tokens_and_alignments(run):
    sentences = ["1 2 3", "", "4 5 6 7 8"]
    found = run.hypotheses(sentences, n_best=2, details=True, length_penalty=0.7)
    assert [ones[0].text for ones in found] == run.translate(sentences, length_penalty=0.7)
    assert found[1] == [Hypothesis("", 0.0, 0.0, True, (), (), [], [], [])]
    for sentence, ones in zip(sentences, found, strict=True):
        assert [one.score for one in ones] == sorted((one.score for one in ones), reverse=True)
        for one in ones:
            length = len(one.tokens) + one.complete
            expected = one.log_prob / ((5 + length) / 6) ** 0.7 if sentence else 0.0
            assert one.score == pytest.approx(expected, rel=1e-5)
            words = [link[1] for link in one.alignment]
            assert words == list(range(len(one.text.split())))
            assert all(0 <= i < len(sentence.split()) for i, _ in one.alignment)


@pytest.mark.parametrize(
    "decode", [{"beam_size": 20}, {"search": "sampling(seed=3)"}], ids=["beam", "sampling"]
)
def test_the_score_of_an_output_is_what_the_search_reported(run, decode):
    """Where the vocabulary cuts the output into the tokens that the search wrote.

    Outputs are short, and many: this run is hardly trained and writes all sorts of bytes.
    """
    found = run.hypotheses(["1 2 3", "4 5"], details=True, n_best=20, max_length=2, **decode)
    pairs = [(i, one) for i, ones in enumerate(found) for one in ones]
    scored = run.score([["1 2 3", "4 5"][i] for i, _ in pairs], [one.text for _, one in pairs])
    same = [
        (one, own)
        for (_, one), own in zip(pairs, scored, strict=True)
        if one.tokens == own.tokens and "\ufffd" not in one.text
    ]
    assert len(same) > 5
    for one, own in same:
        # Forced decoding sums in another order than cached steps.
        assert own.token_log_probs == pytest.approx(one.token_log_probs, abs=1e-4)
        counted = len(one.tokens) + one.complete
        assert sum(own.token_log_probs[:counted]) == pytest.approx(one.log_prob, abs=1e-4)
        assert own.log_prob == pytest.approx(sum(own.token_log_probs), abs=1e-4)
        mean = own.log_prob / len(own.token_log_probs)
        assert own.perplexity == pytest.approx(np.exp(-mean), rel=1e-5)


def test_lists_of_different_lengths_and_single_strings_are_refused(run):
    with pytest.raises(ValueError, match="shorter"):
        run.translate(["1", "2"], ["one"])
    with pytest.raises(ValueError, match="longer"):
        run.score(["1", "2"], ["one"])
    with pytest.raises(TypeError, match="sentences"):
        run.translate("1 2")


def test_an_ensemble_averages_the_probabilities_of_its_runs(trained_workdir, run):
    both = jformer.load(trained_workdir, 12, ensemble=[f"{trained_workdir}@9"])
    pair = (["1 2 3"], ["one two three"])
    (mean,) = both.score(*pair)
    (first,), (second,) = (jformer.load(trained_workdir, step).score(*pair) for step in (12, 9))
    # Exactly so for the first token; what comes later depends on the same tokens, too.
    expected = np.log((np.exp(first.token_log_probs) + np.exp(second.token_log_probs)) / 2)
    np.testing.assert_allclose(mean.token_log_probs, expected, atol=1e-5)
    found = both.hypotheses(["1 2 3"], details=True)[0][0]
    counted = len(found.tokens) + found.complete
    assert found.log_prob == pytest.approx(sum(found.token_log_probs[:counted]), abs=1e-4)


def test_an_ensemble_needs_one_vocabulary(trained_workdir):
    other = "tests/stored_run/run"
    with pytest.raises(UserError, match=rf"^{other}: .*vocabulary"):
        jformer.load(trained_workdir, ensemble=[other])


def test_attention_has_the_weights_of_each_kind_and_the_tokens(run):
    attention = run.attention("1 2 3", "one two")
    T, S = len(attention.target_tokens), len(attention.source_tokens)
    assert "".join(attention.source_tokens) == "1 2 3#2"  # and EOS
    assert "".join(attention.target_tokens) == "#1one two"  # after BOS
    assert {name: weights.shape[1:] for name, weights in attention.weights.items()} == {
        "encoder_0/self_attention": (S, S),
        "decoder_0/self_attention": (T, T),
        "decoder_0/cross_attention": (T, S),
    }
    for weights in attention.weights.values():
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)


def test_two_vocabularies_train_save_and_translate(corpus_directory, tmp_path):
    flags = small_flags(corpus_directory, tmp_path / "run")
    apart = ["--config.data.joint_vocabulary=False", "--config.model.tying=output"]
    apart += ["--config.data.test=", "--config.train.steps=3"]
    assert main(["jformer", *flags, *apart]) == 0
    run = jformer.load(tmp_path / "run")
    source, target = run.vocabularies.source, run.vocabularies.target
    assert source.size < target.size  # digits are few, words are many
    assert run.params["source_embedding"].shape == (source.size, 16)
    assert run.params["embedding"].shape == (target.size, 16)
    assert len(run.translate(["1 2 3"])) == 1
    (tmp_path / "run" / "source_vocabulary.json").unlink()
    with pytest.raises(UserError, match=r"source_vocabulary\.json: "):
        jformer.load(tmp_path / "run")
