"""The schema is closed, each value is checked, and every key changes something."""

import dataclasses
import importlib
import json
from pathlib import Path

import pytest

from jformer.components import BUILT_IN, arguments
from jformer.config import Config, freeze, read_config, write_config
from jformer.errors import UserError
from jformer.schema import flatten, thaw

DATASETS = [*BUILT_IN["dataset"]]
CONFIG_FILES = sorted(path.stem for path in Path("configs").glob("*.py"))


OF_ONE_DATA_SET = ("table3", "parsing")
NEEDED_KEYS = {"files": ("train", "validation"), "parsing": ("directory",)}


def edited(**changes):
    """The default config with `section__key=value` changed."""
    config = thaw(Config())
    for name, value in changes.items():
        section, _, key = name.rpartition("__")
        (config[section] if section else config)[key] = value
    return config


@pytest.mark.parametrize("name", [name for name in CONFIG_FILES if name not in OF_ONE_DATA_SET])
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_config_file_gives_a_valid_config_for_every_data_set(name, dataset):
    config = importlib.import_module(f"configs.{name}").get_config(dataset)
    for key in NEEDED_KEYS.get(dataset, ()):
        config.data[key] = "somewhere"
    assert freeze(config).name == name
    assert freeze(config).data.name == dataset


def test_the_default_is_the_papers_base_model():
    flat = flatten(freeze(thaw(Config())))
    expected = {
        "model.num_layers": 6, "model.d_model": 512, "model.d_ff": 2048, "model.num_heads": 8,
        "model.dropout": 0.1, "train.label_smoothing": 0.1, "train.steps": 100_000,
        "train.batch_tokens": 25_000, "optimizer.warmup_steps": 4000, "decode.beam_size": 4,
        "decode.length_penalty": 0.6, "decode.max_extra_length": 50,
        "train.average_checkpoints": 5, "data.vocabulary_size": 37_000,
    }  # fmt: skip
    assert {name: flat[name] for name in expected} == expected
    assert arguments("optimizer", flat["optimizer.name"]) == {
        "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model__num_heads": 7}, r"config\.model\.num_heads=7\b.*512"),
        ({"data__name": "phrase"}, r"config\.data\.name=phrase: .*phrases\?"),
        ({"data__name": "files"}, r"config\.data\.name=files: .*config\.data\.train"),
        ({"data__target_tokenizer": "words"}, r"config\.data\.joint_vocabulary=False"),
        ({"train__batch_tokens": 100}, r"config\.train\.batch_tokens=100: .*max_length=256"),
        ({"optimizer__name": "adam(epsilom=0.1)"}, r"config\.optimizer\.name=.*epsilon\?"),
        ({"optimizer__name": "adamm"}, r"config\.optimizer\.name=adamm: .*adam\?"),
        ({"decode__search": "sampling(temperature=0)"}, r"config\.decode\.search: temperature"),
        ({"model__positions": "learned(max_positions=305)"}, r"max_positions=305\b.*>= 306"),
        ({"data__joint_vocabulary": False}, r"joint_vocabulary=False: .*config\.model\.tying"),
        ({"optimizer__learning_rate": 1e-3}, r"config\.optimizer\.schedule=inverse_sqrt or"),
        ({"train__best_by": "bleu"}, r"best_by=bleu: .*config\.train\.metrics_every"),
        ({"train__keep_checkpoints": 3}, r"keep_checkpoints=3: .*average_check"),
        ({"parallel__backend": "pmap", "parallel__model": 2}, r"config\.parallel\.backend=pmap"),
        ({"decode__n_best": 5}, r"n_best=5: .*config\.decode\.beam_size=4"),
        ({"decode__choose": "mbr"}, r"n_best=1: .*config\.decode\.choose=mbr"),
        ({"decode__choose": "mbr(utility='f1')", "decode__n_best": 2}, "utility must be .*chrf"),
    ],
)
def test_an_impossible_value_is_one_line_with_the_key_and_the_value(change, message):
    with pytest.raises(UserError, match=message) as caught:
        freeze(edited(**change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"train__batch_tokens": 256},  # as many as data.max_length
        {"model__positions": f"learned(max_positions={256 + 50})"},
        # The lengths of rows are rounded up by at most 63.
        {"model__positions": "learned(max_positions=319)", "data__length_multiple": 64},
        {"train__metrics": "bleu, chrf", "train__best_by": "chrf", "train__metrics_every": 9},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_value_that_is_just_possible_is_taken(change):
    values = flatten(freeze(edited(**change)))
    for name, value in change.items():
        assert values[name.replace("__", ".")] == value


@pytest.mark.parametrize(
    ("section", "key", "value", "named"),
    [
        ("model", "depth", 3, r"config\.json: config\.model\.depth"),
        ("train", "steps", "many", r"config\.train\.steps=many: .*int"),
        ("model", "scan_layers", 1, r"config\.model\.scan_layers=1: .*bool"),
    ],
)
def test_a_stored_config_with_an_unknown_key_or_type_is_refused(
    section, key, value, named, tmp_path
):
    values = dataclasses.asdict(Config())
    values[section][key] = value
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=named):
        read_config(tmp_path / "config.json")


def test_a_written_config_reads_back_equal(tmp_path):
    config = freeze(edited(model__d_k=3, train__steps=7, name="other"))
    write_config(config, tmp_path / "config.json")
    assert read_config(tmp_path / "config.json") == config
    assert freeze(thaw(config)) == config
