"""Every row of the paper's Table 3: `configs/table3.py:ROW`; the first row is `base`.

Each row changes one aspect of the base model. For example, `Ddrop02` sets P_drop = 0.2, and `Dls02`
sets epsilon_ls = 0.2. If a row does not set the width of queries, keys or values, the width is
d_model / h. As in the paper, all rows train on WMT14, are scored on the development set
newstest2013, and do not average checkpoints. `experiments/table3.py` runs all rows.
"""

from jformer.config import default_config
from jformer.errors import UserError, nearest

BIG = {
    "model.d_model": 1024,
    "model.d_ff": 4096,
    "model.num_heads": 16,
    "model.dropout": 0.3,
    "train.steps": 300_000,
}
ROWS = {
    "base": {},
    "A1": {"model.num_heads": 1},
    "A4": {"model.num_heads": 4},
    "A16": {"model.num_heads": 16},
    "A32": {"model.num_heads": 32},
    "B16": {"model.d_k": 16},
    "B32": {"model.d_k": 32},
    "CN2": {"model.num_layers": 2},
    "CN4": {"model.num_layers": 4},
    "CN8": {"model.num_layers": 8},
    "Cd256": {"model.d_model": 256},
    "Cd1024": {"model.d_model": 1024},
    "Cff1024": {"model.d_ff": 1024},
    "Cff4096": {"model.d_ff": 4096},
    "Ddrop00": {"model.dropout": 0.0},
    "Ddrop02": {"model.dropout": 0.2},
    "Dls00": {"train.label_smoothing": 0.0},
    "Dls02": {"train.label_smoothing": 0.2},
    "E": {"model.positions": "learned"},
    "big": BIG,
}


def get_config(row=""):
    if row not in ROWS:
        raise UserError(f"configs/table3.py: unknown row {row!r}{nearest(row, ROWS)}")
    config = default_config("wmt14")
    config.name = f"table3-{row}"
    config.train.average_checkpoints = 1
    config.train.scored = "validation"
    config.update_from_flattened_dict(ROWS[row])
    return config
