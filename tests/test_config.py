"""The schema is closed, each value is checked, and every key changes something."""

import dataclasses
import importlib
import json
from pathlib import Path

import pytest

from jformer.cli import config_of_flags
from jformer.config import Config, default_config, freeze, read_config, write_config
from jformer.config.data import DATASETS
from jformer.errors import UserError
from jformer.schema import flatten, thaw

CONFIG_FILES = sorted(path.stem for path in Path("configs").glob("*.py"))


OF_ONE_DATA_SET = ("table3", "parsing")
PARSING = {
    "data__name": "parsing",
    "data__directory": "x",
    "data__joint_vocabulary": False,
    "data__target_tokenizer": "words",
    "model__tying": "output",
    "decode__constraint": "trees",
}
MBR = {"decode__choose": "mbr", "decode__n_best": 2}
NEEDED_KEYS = {"files": ("train", "validation"), "hub": ("hub",), "parsing": ("directory",)}


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


def test_the_parsers_sizes_are_those_of_the_paper_and_one_for_two_cores():
    get_config = importlib.import_module("configs.parsing").get_config
    small, paper = (freeze(edit_directory(get_config(size))) for size in ("small", "paper"))
    assert (paper.model.num_layers, paper.model.d_model) == (4, 1024)
    decode = paper.decode
    assert (decode.beam_size, decode.length_penalty, decode.max_extra_length) == (21, 0.3, 300)
    assert small.model.d_model < 256
    assert small.decode.constraint == "trees"
    with pytest.raises(UserError, match="no size 'smal'; did you mean small"):
        get_config("smal")


def edit_directory(config):
    config.data.directory = "somewhere"
    return config


def test_small_corpora_have_small_vocabularies():
    sizes = {name: default_config(name).data.vocabulary_size for name in DATASETS}
    assert sizes["phrases"] < sizes["multi30k"] < sizes["wmt14"] == 37_000


def test_the_default_is_the_papers_base_model():
    flat = flatten(freeze(thaw(Config())))
    expected = {
        "model.num_layers": 6, "model.d_model": 512, "model.d_ff": 2048, "model.num_heads": 8,
        "model.dropout": 0.1, "train.label_smoothing": 0.1, "train.steps": 100_000,
        "train.batch_tokens": 25_000, "optimizer.beta1": 0.9, "optimizer.beta2": 0.98,
        "optimizer.epsilon": 1e-9, "optimizer.warmup_steps": 4000, "decode.beam_size": 4,
        "decode.length_penalty": 0.6, "decode.max_extra_length": 50,
        "train.average_checkpoints": 5, "data.vocabulary_size": 37_000,
    }  # fmt: skip
    assert {name: flat[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model__num_heads": 7},
            r"config\.model\.num_heads=7: .* d_model=512; the nearest .* is 8",
        ),
        ({"model__dropout": 1.0}, r"config\.model\.dropout=1\.0: must be < 1"),
        ({"model__d_model": 511}, r"config\.model\.d_model=511: must be even"),
        ({"train__steps": -5}, r"config\.train\.steps=-5: must be >= 1"),
        ({"decode__beam_size": 0}, r"config\.decode\.beam_size=0: must be >= 1"),
        (
            {"data__name": "phrase"},
            r"config\.data\.name=phrase: is unknown; did you mean phrases\?",
        ),
        ({"data__name": "files"}, r"config\.data\.train is empty: set config"),
        ({"data__name": "parsing"}, r"config\.data\.train is empty: set config\.data\.directory="),
        (
            {"data__name": "parsing", "data__directory": "x", "data__test": "y"},
            r"config\.data\.directory=x: trees are named by config\.data\.validation or test",
        ),
        ({"decode__constraint": "trees"}, r"constraint=trees: is not for config\.data\.name=phr"),
        (
            {
                "data__name": "parsing",
                "data__directory": "x",
                "data__tags": "XX",
                "decode__constraint": "trees",
            },
            r"constraint=trees: needs config\.data\.target_tokenizer=words",
        ),
        ({"data__tags": "keep"}, r"tags=keep: is only for config\.data\.name=parsing"),
        (
            {"data__target_tokenizer": "words"},
            r"target_tokenizer=words: is only for config\.data\.joint_vocabulary=False",
        ),
        ({"data__name": "hub"}, r"config\.data\.hub is empty: set config"),
        (
            {"data__directory": "x"},
            r"directory=x: is only for config\.data\.name=multi30k or iwslt14 or",
        ),
        (
            {"data__name": "wmt14", "data__test": "x"},
            r"test=x: is only for config\.data\.name=files or parsing$",
        ),
        ({"data__name": "wmt14", "data__directory": "x", "data__hub": "y"}, "leave one empty"),
        (
            {"data__weights": "1,0"},
            r"config\.data\.weights=1,0: must be numbers from 1 to 999999 as in 1,4",
        ),
        ({"data__target_language": ""}, r"config\.data\.target_language is empty: set it to"),
        ({"data__target_language": "en"}, r"language=en: is config\.data\.source_language, too"),
        ({"data__source_vocabulary": "x"}, r"is only for config\.data\.joint_vocabulary=False"),
        (PARSING | {"data__normalization": "lower"}, r"lower: changes the labels of trees; set it"),
        (
            PARSING | MBR | {"decode__constraint": "none"},
            r"choose=mbr: needs trees: config\.decode\.constraint=trees",
        ),
        (
            PARSING | {"train__best_by": "bleu", "train__bleu_every": 9},
            r"bleu: is not for .*parsing$",
        ),
        ({"train__best_by": "f1", "train__bleu_every": 9}, r"best_by=f1: is not for .*=phrases$"),
        (
            PARSING | {"decode__min_length": 3},
            r"min_length=3: is not for config\.decode\.constraint",
        ),
        (
            PARSING | {"decode__long_texts": "split"},
            r"split: is not for config\.decode\.constraint",
        ),
        (
            {"data__tokenizer": "unigram", "data__bpe_dropout": 0.1},
            r"bpe_dropout=0\.1: is only for config\.data\.tokenizer=byte_bpe or bpe$",
        ),
        ({"train__batch_tokens": 100}, r"config\.train\.batch_tokens=100: one pair may be as long"),
        ({"optimizer__epsilon": 0.0}, r"config\.optimizer\.epsilon=0\.0: must be > 0"),
        ({"model__positions": "rotery"}, r"positions=rotery: is unknown; did you mean rotary\?"),
        ({"model__positions": "rotary", "model__d_k": 5}, r"d_k=5: must be even, for rotary"),
        (
            {"model__out_projection": False, "model__d_v": 5},
            r"out_projection=False: 8 heads of d_v=5 are no d_model=512; set .*projection=True",
        ),
        ({"model__norm_epsilon": 0.0}, r"config\.model\.norm_epsilon=0\.0: must be > 0"),
        (
            {"model__positions": "learned", "model__max_positions": 300},
            r"config\.model\.max_positions=300: must be >= 306",
        ),
        (  # the lengths of rows are rounded up by at most 63
            {
                "model__positions": "learned",
                "model__max_positions": 318,
                "data__length_multiple": 64,
            },
            r"config\.model\.max_positions=318: must be >= 319",
        ),
        ({"data__joint_vocabulary": False}, r"cannot share a matrix; set config\.model\.tying"),
        ({"optimizer__learning_rate_factor": float("inf")}, r"factor=inf: must be a finite number"),
        (
            {"optimizer__weight_decay": 0.1},
            r"weight_decay=0\.1: is only for config\.optimizer\.name=adamw or muon$",
        ),
        (
            {"optimizer__learning_rate": 1e-3},
            r"rate=0\.001: is only for config\.optimizer\.schedule=inverse_sqrt or linear",
        ),
        (
            {"optimizer__schedule": "inverse_sqrt", "optimizer__end_learning_rate": 1e-5},
            r"end_learning_rate=1e-05: is only for config\.optimizer\.schedule=linear or cosine$",
        ),
        (
            {"optimizer__schedule": "cosine", "optimizer__end_learning_rate": 1.0},
            r"end_learning_rate=1\.0: must be <= config\.optimizer\.learning_rate=0\.0005",
        ),
        (
            {"optimizer__schedule": "linear", "train__steps": 4000},
            r"warmup_steps=4000: must be below 4000",
        ),
        ({"train__best_by": "bleu"}, r"best_by=bleu: is for a run with config\.train\.bleu_every"),
        ({"train__keep_checkpoints": 3}, r"keep_checkpoints=3: must be >= config\.train\.average"),
        ({"parallel__data": 0}, r"config\.parallel\.data=0: must be a number of devices, or -1"),
        ({"parallel__fsdp": -1}, r"config\.parallel\.fsdp=-1: .* set config\.parallel\.data=1"),
        ({"decode__n_best": 5}, r"n_best=5: must be <= config\.decode\.beam_size=4"),
        ({"decode__choose": "mbr"}, r"n_best=1: must be > 1 for config\.decode\.choose=mbr"),
        ({"decode__keep": "urls,number"}, r"keep=urls,number: the names are urls, tags, numbers;"),
        ({"decode__keep": "("}, r"keep=\(: is no regular expression: missing \), unterminated"),
        (
            {"decode__search": "sampling", "decode__keep": "numbers"},
            r"keep=numbers: is only for config\.decode\.search=beam",
        ),
        ({"decode__top_k": 3}, r"top_k=3: is only for config\.decode\.search=sampling"),
        (
            {"decode__search": "sampling", "decode__diversity": 0.5},
            r"diversity=0\.5: is only for config\.decode\.search=beam",
        ),
        (
            {"decode__min_length": 7, "decode__max_length": 7},
            r"min_length=7: must be below config\.decode\.max_length=7",
        ),
        (
            {"decode__alignment_layer": 7},
            r"alignment_layer=7: must be <= 6, the layers of the decoder",
        ),
        (
            {"model__positions": "learned", "decode__min_length": 512},
            r"max_positions=512: must be >= 513",
        ),
        (
            {"parallel__backend": "pmap", "parallel__model": 2},
            r"config\.parallel\.model=2: pmap has the whole state on each device",
        ),
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
        {"model__positions": "learned", "model__max_positions": 256 + 50},
        {"decode__min_length": 4, "decode__max_length": 5},
        {"decode__n_best": 4},
        {"decode__n_best": 2, "decode__choose": "mbr"},
        {"decode__keep": "tags,urls"},
        {"decode__keep": r"[A-Z]{2,}"},
        {"decode__alignment_layer": 6},
        {"optimizer__schedule": "linear", "optimizer__decay_steps": 4001},
        {"train__keep_checkpoints": 5},
        {
            "parallel__coordinator": "host:65535", "parallel__processes": 2,
            "parallel__process": 1,
        },
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_value_that_is_just_possible_is_taken(change):
    freeze(edited(**change))


def test_heads_need_not_divide_d_model_when_their_widths_are_set():
    model = freeze(edited(model__num_heads=7, model__d_k=5, model__d_v=3)).model
    assert (model.num_heads, model.key_width, model.value_width) == (7, 5, 3)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.model.dropuot=0.3", "did you mean model.dropout?"),
        ("--config.dropout=0.3", "did you mean model.dropout?"),
        (
            "--config.model=3",
            "is a section of the config; set a key of it, such as model.num_layers",
        ),
        ("--config.modle.dropout=0.3", "did you mean model.dropout?"),
        ("--config.decode.beam=4", "did you mean decode.beam_size?"),
        ("--config.optimizer.beta=4", "did you mean optimizer.beta"),
        ("--config.decode.=4", "; --help has them all"),
    ],
)
def test_an_unknown_key_on_the_command_line_is_named_with_the_nearest(argument, message):
    with pytest.raises(UserError) as caught:
        config_of_flags(["--config=tiny", argument])
    assert str(caught.value).startswith(argument)
    assert message in str(caught.value)


def test_a_config_file_cannot_add_a_key():
    config = default_config()
    with pytest.raises(AttributeError, match="dropuot"):
        config.model.dropuot = 0.3


def test_a_stored_config_with_an_unknown_key_or_type_is_refused():
    values = dataclasses.asdict(Config())
    with pytest.raises(UserError, match=r"config\.model\.depth is unknown"):
        freeze({**values, "model": {**values["model"], "depth": 3}})
    with pytest.raises(UserError, match=r"config\.train\.steps=many: must be int, not str"):
        freeze({**values, "train": {**values["train"], "steps": "many"}})
    with pytest.raises(UserError, match=r"config\.model=3: must hold keys and their values"):
        freeze({**values, "model": 3})
    with pytest.raises(UserError, match=r"config\.seed=True: must be int, not bool"):
        freeze({**values, "seed": True})


def test_a_written_config_reads_back_equal(tmp_path):
    config = freeze(edited(model__d_k=3, train__steps=7, name="other"))
    write_config(config, tmp_path / "config.json")
    assert read_config(tmp_path / "config.json") == config
    assert freeze(thaw(config)) == config


def test_a_damaged_stored_config_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json: is not JSON"):
        read_config(tmp_path / "config.json")


def test_a_key_of_a_stored_config_may_have_its_older_name(tmp_path):
    config = freeze(edited(train__r_drop_alpha=3.0))
    values = dataclasses.asdict(config)
    values["train"]["consistency"] = values["train"].pop("r_drop_alpha")
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert read_config(tmp_path / "config.json") == config
