"""The model of The Annotated Transformer as its authors train it: Multi30k, German to English.

Its departures from the paper are keys: norms before the sub-layers and at the end of each stack, by
the sample's deviation; biases in attention and of the logits; three matrices of words; dropout of
attention weights and inside the feed-forward network; smoothing over all entries but padding.

Their optimizer moves once in ten batches of 32 pairs, while their schedule counts each batch:
10,000 steps of theirs are 1,000 here, at 1 / sqrt(10) of the rate. What stays different: sub-words
and not words by spaCy, sources without "<s>", embeddings that begin normal and not by Xavier, and
a batch whose losses are divided by the number of all its tokens.
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
    config.train.batch_tokens = 320 * 72  # they pad every text to 72 tokens
    config.train.steps = 725  # eight epochs
    config.train.log_every = 25
    config.train.evaluate_every = 91
    config.train.checkpoint_every = 91
    config.train.average_checkpoints = 1
    config.optimizer.warmup_steps = 300
    config.optimizer.schedule = f"equation_3(factor={10**-0.5})"
    config.decode.beam_size = 1
    return config
