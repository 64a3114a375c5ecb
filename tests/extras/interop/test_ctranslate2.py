"""Runs with random weights, opened by CTranslate2: its outputs and scores are ours."""

import importlib.util

import pytest
from tokenizers import Tokenizer

from jformer.config import EOS
from jformer.errors import UserError
from jformer.extras.interop.ctranslate2 import export, token_names
from jformer.main import main
from tests.extras.interop.small import TEXTS, random_run

if importlib.util.find_spec("ctranslate2") is None:
    pytest.skip(
        "the extra `export` has CTranslate2: pip install -e '.[export]'", allow_module_level=True
    )


@pytest.mark.parametrize(
    "model",
    [
        {},
        {
            "joint": False,
            "tying": "output",
            "norm_position": "pre",
            "activation": "gelu",
            "positions": "halves",
        },
        pytest.param(
            {"positions": "learned(max_positions=67)", "attention_bias": True, "output_bias": True},
            marks=pytest.mark.process,
        ),
    ],
    ids=["paper", "own vocabularies, pre-norm", "biases"],
)
def test_greedy_outputs_and_log_probabilities_are_ours(tmp_path, model):
    """It leaves the shares of PAD and BOS to the others."""
    import ctranslate2

    run = random_run(**model)
    export(run, tmp_path, "ctranslate2")
    translator = ctranslate2.Translator(str(tmp_path), device="cpu")
    source, target = run.vocabularies.source, run.vocabularies.target
    source_names, target_names = token_names(source), token_names(target)
    found = run.hypotheses(TEXTS)
    for text, [ours] in zip(TEXTS, found, strict=True):
        ids = source.encode([text])[0]
        [result] = translator.translate_batch(
            [[source_names[token] for token in ids if token != EOS]],
            beam_size=1,
            max_decoding_length=len(ids) + run.config.decode.max_extra_length,
            suppress_sequences=[[name] for name in target_names[:EOS]],  # PAD and BOS
            return_scores=True,
            return_end_token=True,
        )
        tokens = [target_names.index(name) for name in result.hypotheses[0]]
        assert target.decode([token for token in tokens if token != EOS]) == ours.text
        assert result.scores[0] * len(tokens) == pytest.approx(ours.log_prob, rel=2e-3, abs=2e-3)
    assert len({outputs[0].text for outputs in found}) > 5  # not the same for every source


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


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ({"positions": "rotary"}, "positions=rotary"),
        ({"attention": "dot_product(scaled=False)"}, r"attention=dot_product\(scaled=False\)"),
    ],
)
def test_what_the_format_cannot_hold_is_named(tmp_path, model, key):
    with pytest.raises(UserError, match=f"config.model.{key}: .*--format=ctranslate2"):
        export(random_run(**model), tmp_path, "ctranslate2")
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_the_command_exports_into_a_new_folder_alone(tmp_path, capsys):
    folder = tmp_path / "out"
    export = ["jformer", "export", "--workdir=tests/stored_run/run", f"--output={folder}"]
    assert main([*export, "--format=ctranslate2:int8"]) == 0
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert folder / "model.bin" in before
    assert main([*export, "--format=ctranslate2"]) == 2
    assert f"--output={folder}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
