"""Every row of the paper's Table 3: `configs/table3.py:ROW`; the first row is `base`.

Each row changes one aspect of the base model. For example, `Ddrop02` sets P_drop = 0.2, and `Dls02`
sets epsilon_ls = 0.2. If a row does not set the width of queries, keys or values, the width is
d_model / h. As in the paper, all rows train on WMT14, are scored on the development set
newstest2013, and do not average checkpoints. `experiments/table3.py` runs all rows.
"""

from jformer.config import UserError, default_config
from jformer.errors import nearest
from jformer.extras.paper import TABLE_3

ROWS = {row.name: row.changes for row in TABLE_3}


def get_config(row=""):
    if row not in ROWS:
        raise UserError(f"configs/table3.py: unknown row {row!r}{nearest(row, ROWS)}")
    config = default_config("wmt14")
    config.name = f"table3-{row}"
    config.train.average_checkpoints = 1
    config.train.scored = "validation"
    config.update_from_flattened_dict(ROWS[row])
    return config
