"""Runs with random weights, opened by transformers: tokens, outputs and what it cannot hold."""

import importlib.util

import pytest

from jformer.errors import UserError
from jformer.extras.interop.hugging_face import export
from tests.extras.interop.small import TEXTS, random_run

with_library = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="the extra `parity` has transformers: pip install -e '.[parity]'",
)


@pytest.mark.process
@with_library
def test_the_folder_translates_as_the_run_does(tmp_path):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    run = random_run(activation="silu", output_bias=True)
    export(run, tmp_path, "transformers")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    outputs = []
    for text in TEXTS:  # one by one: each has its own limit
        inputs = tokenizer(text, return_tensors="pt")
        longest = inputs["input_ids"].shape[1] - 1 + run.config.decode.max_extra_length
        found = model.generate(**inputs, max_new_tokens=longest)
        outputs += tokenizer.batch_decode(found, skip_special_tokens=True)
    assert outputs == run.translate(TEXTS)
    assert len(set(outputs)) > 5


@with_library
@pytest.mark.parametrize("kind", ["byte_bpe", "unigram"])
def test_the_tokenizer_has_the_ids_of_the_model_and_an_end(tmp_path, kind):
    from transformers import AutoTokenizer

    run = random_run(kind=kind)
    export(run, tmp_path, "transformers")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    texts = [*TEXTS, "ä 3.5", ""]
    expected = [[*ids, 2] for ids in run.vocabulary.encode(texts)]
    assert tokenizer(texts)["input_ids"] == expected
    assert tokenizer.batch_decode(expected, skip_special_tokens=True) == texts


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ({"norm_position": "pre"}, "model.norm_position=pre"),
        ({"joint": False, "tying": "output"}, "model.tying=output"),
    ],
)
def test_what_marian_cannot_hold_is_named(tmp_path, model, key):
    with pytest.raises(UserError, match=f"config.{key}: .*--format=transformers"):
        export(random_run(**model), tmp_path, "transformers")
    assert not list(tmp_path.iterdir())
