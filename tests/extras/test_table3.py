"""Table 3 as configs: the numbers of parameters of all its rows."""

import re
import shlex
from pathlib import Path

import pytest

from configs import base
from configs.table3 import ROWS, get_config
from jformer.cli import config_of_flags
from jformer.config import freeze
from jformer.extras.cost import parameters
from jformer.model.transformer import Transformer
from jformer.run import parameter_shapes
from jformer.schema import flatten

pytestmark = pytest.mark.process

# The table itself: N, d_model, d_ff, h, d_k, d_v, P_drop, epsilon_ls, steps in thousands; then the
# millions of parameters, where it prints them, and ours with 37,000 entries.
TABLE = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, 0.1, 100, 65, 63_045_632),
    "A1": (6, 512, 2048, 1, 512, 512, 0.1, 0.1, 100, None, 63_045_632),
    "A4": (6, 512, 2048, 4, 128, 128, 0.1, 0.1, 100, None, 63_045_632),
    "A16": (6, 512, 2048, 16, 32, 32, 0.1, 0.1, 100, None, 63_045_632),
    "A32": (6, 512, 2048, 32, 16, 16, 0.1, 0.1, 100, None, 63_045_632),
    "B16": (6, 512, 2048, 8, 16, 64, 0.1, 0.1, 100, 58, 55_967_744),
    "B32": (6, 512, 2048, 8, 32, 64, 0.1, 0.1, 100, 60, 58_327_040),
    "CN2": (2, 512, 2048, 8, 64, 64, 0.1, 0.1, 100, 36, 33_644_544),
    "CN4": (4, 512, 2048, 8, 64, 64, 0.1, 0.1, 100, 50, 48_345_088),
    "CN8": (8, 512, 2048, 8, 64, 64, 0.1, 0.1, 100, 80, 77_746_176),
    "Cd256": (6, 256, 2048, 8, 32, 32, 0.1, 0.1, 100, 28, 26_816_512),
    "Cd1024": (6, 1024, 2048, 8, 128, 128, 0.1, 0.1, 100, 168, 163_815_424),
    "Cff1024": (6, 512, 1024, 8, 64, 64, 0.1, 0.1, 100, 53, 50_450_432),
    "Cff4096": (6, 512, 4096, 8, 64, 64, 0.1, 0.1, 100, 90, 88_236_032),
    "Ddrop00": (6, 512, 2048, 8, 64, 64, 0.0, 0.1, 100, None, 63_045_632),
    "Ddrop02": (6, 512, 2048, 8, 64, 64, 0.2, 0.1, 100, None, 63_045_632),
    "Dls00": (6, 512, 2048, 8, 64, 64, 0.1, 0.0, 100, None, 63_045_632),
    "Dls02": (6, 512, 2048, 8, 64, 64, 0.1, 0.2, 100, None, 63_045_632),
    "E": (6, 512, 2048, 8, 64, 64, 0.1, 0.1, 100, None, 63_307_776),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, 0.1, 300, 213, 214_171_648),
}


def count(row, vocabulary_size):
    config = get_config(row)
    params = parameter_shapes(Transformer(freeze(config).model, vocabulary_size))
    return sum(parameters(params).values())


@pytest.mark.parametrize("row", TABLE)
def test_every_row_has_the_papers_number_of_parameters(row):
    *_, millions, exact = TABLE[row]
    assert count(row, 37_000) == exact
    if millions:
        assert round(count(row, 36_000 if row == "big" else 41_100) / 1e6) == millions


def test_the_vocabularies_that_fit_the_paper_are_those_of_the_map():
    """41,004 to 41,208 entries fit all rows but big, and 35,368 to 36,344 fit big."""
    printed = {row: values[-2] for row, values in TABLE.items() if values[-2]}

    def fits(rows, vocabulary_size):
        more = vocabulary_size - 37_000
        counts = {
            row: TABLE[row][-1] + more * TABLE[row][1] for row in rows
        }  # a row of d_model each
        return all(round(counts[row] / 1e6) == printed[row] for row in rows)

    others = [row for row in printed if row != "big"]
    assert [fits(others, v) for v in (41_003, 41_004, 41_208, 41_209)] == [False, True, True, False]
    assert [fits(["big"], v) for v in (35_367, 35_368, 36_344, 36_345)] == [
        False, True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_a_row_is_what_the_table_says(row):
    assert set(ROWS) == set(TABLE)
    config = freeze(get_config(row))
    model, train = config.model, config.train
    *settings, _, _ = TABLE[row]
    assert settings == [
        model.num_layers, model.d_model, model.d_ff, model.num_heads, model.key_width,
        model.value_width, model.dropout, train.label_smoothing, train.steps / 1000,
    ]  # fmt: skip
    assert model.positions == ("learned" if row == "E" else "sinusoidal")
    assert train.average_checkpoints == 1  # the table is of single models


def test_the_base_model_of_tensor2tensor_is_a_line_of_flags():
    """Pre-norm, sinusoids in halves, two dropouts more, other optimizer settings."""
    text = Path("docs/differences.md").read_text()
    command = re.search(r"--config=configs/base\.py.*?(?=\n```)", text, re.S)[0]
    words = shlex.split(command.replace("\\\n", " "))
    config = config_of_flags([word for word in words if not word.startswith("--workdir=")])
    flat = flatten(config)
    differing = {
        key: flat[key]
        for key, value in flatten(freeze(base.get_config())).items()
        if flat[key] != value
    }
    assert differing == {
        "model.norm_position": "pre", "model.positions": "halves", "model.attention_dropout": 0.1,
        "model.activation_dropout": 0.1, "optimizer.name": "adam(beta2=0.997)",
        "optimizer.warmup_steps": 8000, "optimizer.schedule": "equation_3(factor=2.0)",
        "train.loss": "cross_entropy_over_others(padding=True)", "model.initializer": "xavier",
    }  # fmt: skip
