"""Kyubyong Park's Transformer in TensorFlow (github.com/Kyubyong/transformer, 2019).

Its departures from the paper are keys: biases in the projections of queries, keys and values, and
no projection W^O of the joined heads; an embedding of padding that stays zero; an epsilon of 1e-8;
dropout of embeddings and attention weights, and none of sub-layers; Adam as TensorFlow has it; a
rate that rises to 0.0003; greedy search. It is trained on IWSLT 2016 from German to English, in
batches of 128 pairs for 20 epochs, on one vocabulary of 32,000 SentencePiece entries.

What stays different: IWSLT 2017, which the hub has; byte-level BPE instead of SentencePiece's;
batches of about as many tokens, by length; embeddings that begin normal and not by Xavier. Its
`--smoothing` is never read there; it is 0.1.
"""

from jformer.config import default_config


def get_config(dataset="iwslt17"):
    config = default_config(dataset)
    config.name = "kyubyong"
    config.data.source_language = "de"
    config.data.target_language = "en"
    config.data.vocabulary_size = 32_000
    config.data.max_length = 100
    config.model.attention_bias = True
    config.model.out_projection = False
    config.model.zero_padding = True
    config.model.norm = "layer_norm(epsilon=1e-8)"
    config.model.dropout = 0.3
    config.model.residual_dropout = False
    config.model.attention_dropout = 0.3
    config.model.initializer = "xavier"
    config.train.batch_tokens = 128 * 25
    config.train.steps = 30_000  # about 20 epochs
    config.train.average_checkpoints = 1
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.learning_rate = 3e-4
    config.optimizer.name = "adam(beta2=0.999, epsilon=1e-8)"
    config.decode.beam_size = 1
    config.decode.max_length = 100
    return config
