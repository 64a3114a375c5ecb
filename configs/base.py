"""The paper's base model: 6 + 6 layers, d_model 512, 8 heads (Table 3, first row).

`configs/base.py` trains on the embedded phrases. `configs/base.py:DATASET` trains on any other data
set, such as wmt14, with the paper's values.
"""

from jformer.config import default_config


def get_config(dataset="phrases"):
    config = default_config(dataset)
    config.name = "base"
    if dataset == "phrases":
        # The paper's 100,000 steps of 25,000 tokens are for WMT. This corpus needs far fewer
        # tokens, in many small batches at a lower rate: half an hour on two CPU cores.
        config.data.num_buckets = 4
        config.train.steps = 1400
        config.train.batch_tokens = 512
        config.train.log_every = 50
        config.train.evaluate_every = 400
        config.train.checkpoint_every = 100
        config.train.average_checkpoints = 3
        config.optimizer.warmup_steps = 400
        config.optimizer.schedule = "equation_3(factor=0.15)"
    return config
