"""Tatoeba en-de in an hour of two cores: 4 + 4 layers of width 192, small batches, cosine.

In pilots of an eighth of the hour's work or less, width 256 was far behind; 128 was ahead of 192,
which more training is expected to favour. The search was chosen on validation. experiments/LOG.md
has both.
"""

from jformer.config import default_config


def get_config(dataset="tatoeba"):
    config = default_config(dataset)
    config.name = "tatoeba"
    config.model.num_layers = 4
    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.num_heads = 4
    config.data.num_buckets = 6
    config.train.batch_tokens = 1024
    config.train.steps = 21_000
    config.train.evaluate_every = 2000
    config.train.checkpoint_every = 500
    config.train.average_checkpoints = 5
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 0.0014
    config.optimizer.warmup_steps = 1000
    config.decode.beam_size = 8
    config.decode.length_penalty = 1.0
    return config
