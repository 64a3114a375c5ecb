"""A sweep over the paper's Table 3 at full size: rows (A) to (E) and big, on WMT14 en-de.

    jformer sweep experiments/table3.py --submit=slurm:gpus_per_node=8,timeout_min=1440

The 20 runs train for 100,000 steps (big: 300,000) with 25,000 source and 25,000 target tokens each.
They are scored on newstest2013, as in the paper.
"""

from configs.table3 import ROWS

CONFIG = "configs/table3.py:base"


def sweep():
    yield from ROWS.values()
