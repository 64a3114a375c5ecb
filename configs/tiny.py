"""The paper's model at a size that trains in minutes on two CPU cores: width 128, 4 heads.

`configs/tiny.py` has 2 + 2 layers and learns the embedded phrases. `configs/tiny.py:DATASET` has
4 + 4 layers for any other data set. It suits small ones such as multi30k and tatoeba.
"""

from jformer.config import default_config


def get_config(dataset="phrases"):
    config = default_config(dataset)
    config.name = "tiny"
    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.num_heads = 4
    if dataset == "phrases":
        # Many small batches, because the score depends on the number of updates.
        # Few batch shapes, because each takes seconds to compile in a run of minutes.
        config.model.num_layers = 2
        config.data.num_buckets = 4
        config.train.batch_tokens = 1024
        config.train.steps = 1800
        config.train.evaluate_every = 1000
        config.train.checkpoint_every = 100
        config.optimizer.warmup_steps = 500
    else:
        # A small vocabulary, because the softmax dominates the cost of a model of this width.
        config.model.num_layers = 4
        config.data.vocabulary_size = 4000
        config.train.batch_tokens = 2048
        config.train.steps = 4000
        config.train.evaluate_every = 1000
        config.train.checkpoint_every = 100
        config.optimizer.warmup_steps = 500
        config.optimizer.schedule = "equation_3(factor=0.7)"
    return config
