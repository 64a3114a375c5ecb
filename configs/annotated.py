"""The model of The Annotated Transformer, with its recipe for Multi30k, German to English.

Config keys express most of its departures from the paper:

- Norms precede the sub-layers and end each stack. They divide by the sample standard deviation.
- The attention projections and the output layer have biases.
- The source embeddings, the target embeddings and the output weights are three matrices.
- Dropout also applies to attention weights and inside the feed-forward network.
- Label smoothing covers all vocabulary entries except padding.

Its optimizer updates once per ten batches of 32 pairs, but its schedule counts every batch. So
10,000 of its steps correspond to 1,000 steps here, at 1 / sqrt(10) of the rate.

These differences remain: sub-words instead of spaCy words, sources without "<s>", embeddings
initialized from a normal distribution instead of Xavier, and a loss that is averaged over all
tokens of the larger batch.
"""

from jformer.config import default_config


def get_config(dataset="multi30k"):
    config = default_config(dataset)
    config.name = "annotated"
    config.data.source_language = "de"
    config.data.target_language = "en"
    config.data.joint_vocabulary = False
    config.data.max_length = 72
    config.model.norm_position = "pre"
    config.model.norm = "sample_layer_norm"
    config.model.attention_bias = True
    config.model.output_bias = True
    config.model.tying = "none"
    config.model.attention_dropout = 0.1
    config.model.activation_dropout = 0.1
    config.model.initializer = "xavier"
    config.train.loss = "cross_entropy_over_others"
    config.train.batch_tokens = 320 * 72  # the original pads every text to 72 tokens
    config.train.steps = 725  # eight epochs
    config.train.log_every = 25
    config.train.evaluate_every = 91
    config.train.checkpoint_every = 91
    config.train.average_checkpoints = 1
    config.optimizer.warmup_steps = 300
    config.optimizer.schedule = f"equation_3(factor={10**-0.5})"
    config.decode.beam_size = 1
    return config
