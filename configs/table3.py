"""Every row of the paper's Table 3: `configs/table3.py:ROW`; `base` is its first.

Each row is the base model with one thing changed (`Ddrop02` is P_drop = 0.2, `Dls02` epsilon_ls);
a width of queries, keys or values that a row does not set follows as d_model / h. As in the paper
it is trained on WMT14 and scored on the development set, newstest2013, and no checkpoints are
averaged. `experiments/table3.py` runs them all.
"""

from jformer.config import UserError, default_config
from jformer.errors import nearest
from jformer.extras.paper import TABLE_3

ROWS = {row.name: row.changes for row in TABLE_3}


def get_config(row=""):
    if row not in ROWS:
        raise UserError(f"Table 3 has no row {row!r}{nearest(row, ROWS)}")
    config = default_config("wmt14")
    config.name = f"table3-{row}"
    config.train.average_checkpoints = 1
    config.train.scored = "validation"
    config.update_from_flattened_dict(ROWS[row])
    return config
