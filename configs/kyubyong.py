"""Kyubyong Park's Transformer in TensorFlow (github.com/Kyubyong/transformer, 2019).

Config keys express most of its departures from the paper:

- The query, key and value projections have biases. The output projection W^O is omitted.
- The embedding of padding stays zero.
- The epsilon of LayerNorm and Adam is 1e-8. Adam uses TensorFlow's default beta2.
- Dropout applies to embeddings and attention weights, but not to sub-layer outputs.
- The learning rate peaks at 0.0003.
- Decoding is greedy.

The original trains on IWSLT 2016, German to English, for 20 epochs of batches of 128 pairs, with a
shared vocabulary of 32,000 SentencePiece entries.

These differences remain: IWSLT 2017, because the hub has it; byte-level BPE instead of
SentencePiece; batches of similar lengths with about as many tokens; embeddings initialized from a
normal distribution instead of Xavier. The original ignores its `--smoothing` flag and uses 0.1.
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
