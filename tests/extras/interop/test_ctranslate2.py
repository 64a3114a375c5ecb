"""Runs with random weights, opened by CTranslate2: its outputs and scores are ours."""

import importlib.util

import numpy as np
import pytest
from tokenizers import Tokenizer

from jformer.errors import UserError
from jformer.extras.interop import engine
from jformer.extras.interop.ctranslate2 import export, token_names
from jformer.main import main
from tests.extras.interop.small import TEXTS, random_run

if importlib.util.find_spec("ctranslate2") is None:
    pytest.skip(
        "the extra `export` has CTranslate2: pip install -e '.[export]'", allow_module_level=True
    )


def assert_engine_agrees(run, **decode):
    """The same outputs, and their log-probabilities: float32 in another order of sums."""
    ours = run.hypotheses(TEXTS, **decode)
    theirs = engine.with_engine(run.with_decode(**decode), "ctranslate2").hypotheses(TEXTS)
    for one, other in zip(ours, theirs, strict=True):
        assert [x.text for x in other] == [x.text for x in one]
        assert [x.complete for x in other] == [x.complete for x in one]
        np.testing.assert_allclose(
            [x.log_prob for x in other], [x.log_prob for x in one], rtol=1e-3, atol=1e-3
        )
        np.testing.assert_allclose(
            [x.score for x in other], [x.score for x in one], rtol=1e-3, atol=1e-3
        )
    assert len({one[0].text for one in ours}) > 5  # not the same for every source


def test_greedy_outputs_and_log_probabilities_of_the_papers_model_are_ours():
    assert_engine_agrees(random_run())


@pytest.mark.process
@pytest.mark.parametrize(
    "model",
    [
        {"norm_position": "pre", "activation": "gelu", "positions": "halves"},
        {"positions": "learned", "tying": "output"},
        {"positions": "none", "tying": "none", "num_decoder_layers": 1},
        {"attention_bias": True, "output_bias": True, "activation": "silu", "norm_epsilon": 0.1},
    ],
    ids=lambda model: " ".join(map(str, model.values())),
)
def test_greedy_outputs_and_log_probabilities_of_variants_are_ours(model):
    assert_engine_agrees(random_run(**model))


def test_a_greedy_search_has_our_scores_under_our_length_penalty():
    assert_engine_agrees(random_run(), length_penalty=0.6, length_penalty_beta=5.0)


def test_a_beam_finds_the_same_lists_where_both_end_and_penalize_alike():
    assert_engine_agrees(random_run(), beam_size=3, n_best=2, length_penalty=0.7)


def test_vocabularies_of_their_own_stay_apart():
    assert_engine_agrees(random_run(joint=False, tying="output"))


@pytest.mark.process
def test_details_and_texts_in_parts_are_those_of_a_run():
    run = random_run(decode={"long_texts": "split"})
    long = " ".join(TEXTS[:3]) + ". " + " ".join(TEXTS[3:6]) + "."
    texts = ["", long, TEXTS[4]]
    found = engine.with_engine(run, "ctranslate2").hypotheses(texts, details=True)
    expected = run.hypotheses(texts, details=True)
    assert [[x.tokens for x in one] for one in found] == [
        [x.tokens for x in one] for one in expected
    ]
    assert found[1][0].alignment == expected[1][0].alignment


@pytest.mark.process
def test_the_folder_is_enough_for_ctranslate2_alone(tmp_path):
    import ctranslate2

    run = random_run()
    export(run, tmp_path, "ctranslate2")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    translator = ctranslate2.Translator(str(tmp_path), device="cpu")
    for text, expected in zip(TEXTS, run.translate(TEXTS), strict=True):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        length = len(encoding.ids) + run.config.decode.max_extra_length
        [result] = translator.translate_batch(
            [encoding.tokens], beam_size=1, max_decoding_length=length
        )
        tokens = [tokenizer.token_to_id(token) for token in result.hypotheses[0]]
        assert tokenizer.decode(tokens, skip_special_tokens=False) == expected


def test_weights_in_8_bits_take_a_quarter_of_the_file(tmp_path):
    sizes = {}
    for format in ("ctranslate2", "ctranslate2:int8"):
        folder = tmp_path / format.replace(":", "-")
        folder.mkdir()
        export(random_run(), folder, format)
        sizes[format] = (folder / "model.bin").stat().st_size
    table = 4 * 1025 * 42  # positions stay in float32
    assert sizes["ctranslate2:int8"] - table < 0.4 * (sizes["ctranslate2"] - table)


def test_entries_that_are_named_like_a_special_token_keep_their_names():
    class Entries:
        def entries(self):
            return [None, None, None, "<s>", None, "a"]

    assert token_names(Entries()) == ["<pad>", "<<s>>", "</s>", "<s>", "<gap 4>", "a"]


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ({"positions": "rotary"}, "positions=rotary"),
        ({"scaled_attention": False}, "scaled_attention=False"),
        ({"d_k": 6}, "d_k=6"),
        ({"out_projection": False}, "out_projection=False"),
        ({"zero_padding": True}, "zero_padding=True"),
        ({"final_norm": "on"}, "final_norm=on"),
    ],
)
def test_what_the_format_cannot_hold_is_named(tmp_path, model, key):
    with pytest.raises(UserError, match=f"config.model.{key}: .*--format=ctranslate2"):
        export(random_run(**model), tmp_path, "ctranslate2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("decode", "key"),
    [
        ({"search": "sampling"}, "search=beam"),
        ({"beam_size": 2, "diversity": 0.5}, "diversity=0"),
        ({"beam_size": 2, "early_stopping": False}, "early_stopping=true"),
        ({"beam_size": 2, "length_penalty_beta": 5.0}, "length_penalty_beta=0"),
    ],
)
def test_what_the_engine_cannot_follow_is_named(decode, key):
    with pytest.raises(UserError, match=f"--engine=ctranslate2: .*--config.decode.{key}$"):
        engine.with_engine(random_run(decode=decode), "ctranslate2")


@pytest.mark.process
def test_the_commands_translate_and_export(trained_workdir, tmp_path, capsys):
    source, folder = tmp_path / "in", tmp_path / "out"
    source.write_text("1 2 3\n\n4 5 6 7 8\n")
    translate = ["jformer", "translate", f"--workdir={trained_workdir}", f"--input={source}"]
    translate.append("--config.decode.beam_size=1")
    assert main([*translate, f"--output={tmp_path / 'ours'}"]) == 0
    assert main([*translate, "--engine=ctranslate2", f"--output={tmp_path / 'theirs'}"]) == 0
    assert (tmp_path / "theirs").read_text() == (tmp_path / "ours").read_text()
    assert main([*translate, "--engine=ctranslate2", f"--prefix={source}"]) == 2
    message = capsys.readouterr().err
    assert "--prefix" in message
    assert "--engine=ctranslate2" in message
    export = ["jformer", "export", f"--workdir={trained_workdir}", f"--output={folder}"]
    assert main([*export, "--format=ctranslate2:int8"]) == 0
    assert (folder / "model.bin").exists()
    assert main([*export, "--format=ctranslate2"]) == 2
    assert f"--output={folder}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]
