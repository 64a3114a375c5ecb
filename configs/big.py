"""The paper's big model: d_model 1024, d_ff 4096, 16 heads, P_drop 0.3 (Table 3, last row).

It does not depart from the paper. Section 6.1 averages the last 20 checkpoints of a big model and
the last 5 of a base model.
"""

from jformer.config import default_config


def get_config(dataset="phrases"):
    config = default_config(dataset)
    config.name = "big"
    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.model.dropout = 0.3
    config.train.steps = 300_000
    config.train.average_checkpoints = 20
    return config
