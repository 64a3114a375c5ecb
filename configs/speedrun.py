"""Multi30k en-de to 35 BLEU in minutes: 3 + 3 layers of width 128.

    python -m experiments.benchmarks.time_to_bleu --config=speedrun --train=PREFIX \\
        --validation=PREFIX

This command measures the time on lowercased text. The config saves time as follows:

- Muon and rotary positions reduce the number of steps. Two options reduce it further: a learning
  rate for embeddings that is twice as high, and rotary positions in cross-attention.
- Batches are small. The learning rate is high and decays to zero, which requires norms before the
  sub-layers.
- Packed rows have a single shape, so the step compiles once. All pairs fit into a row.
- Checkpoints are rare, because each takes over half a second. The last one is as good as an
  average.

experiments/notes.md lists what was tried.
"""

from jformer.config import default_config


def get_config(dataset="multi30k"):
    config = default_config(dataset)
    config.name = "speedrun"
    config.model.num_layers = 3
    config.model.norm_position = "pre"
    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.model.positions = "rotary(cross_attention=True)"
    config.model.dropout = 0.0
    config.data.vocabulary_size = 4000
    config.data.batching = "packed"
    config.data.max_length = 64
    config.train.batch_tokens = 1024
    config.train.steps = 880
    config.train.evaluate_every = 880
    config.train.checkpoint_every = 210
    config.train.average_checkpoints = 1
    config.optimizer.name = "muon(weight_decay=0.3, adam_factor=2.0)"
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 0.01
    config.optimizer.warmup_steps = 100
    config.decode.beam_size = 8
    config.decode.length_penalty = 1.0
    return config
