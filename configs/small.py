"""A small base model for ablations: a quarter of the paper's width and half of its layers.

`experiments/table3_small.py` varies it as Table 3 varies the paper's model. Eight heads of width 16
and 3 + 3 layers keep all sizes in the table integers. The model suits `multi30k`. A run takes about
ten minutes on one core (AMD EPYC).
"""

from jformer.config import default_config


def get_config(dataset="multi30k"):
    config = default_config(dataset)
    config.name = "small"
    config.model.num_layers = 3
    config.model.d_model = 128
    config.model.d_ff = 512
    config.data.vocabulary_size = 4000
    config.data.num_buckets = 4
    config.train.batch_tokens = 2048
    config.train.steps = 2400
    config.train.evaluate_every = 400
    config.train.checkpoint_every = 400
    config.train.average_checkpoints = 1
    config.train.scored = "validation"
    config.optimizer.warmup_steps = 500
    config.optimizer.schedule = "equation_3(factor=0.7)"
    return config
