"""Multi30k en-de to 35 BLEU in minutes: 3 + 3 layers of width 128.

    python -m experiments.benchmarks.time_to_bleu --config=speedrun --train=PREFIX \\
        --validation=PREFIX

times it, with the text in lower case. Muon and rotary positions learn in fewer steps, and fewer
still where embeddings move twice as fast and cross-attention sees distances, too. Batches are
small, and the rate is high and falls to nothing, for which norms stand before the sub-layers.
Packed rows have one shape, which compiles once, and all pairs fit. Checkpoints are few, as each
takes over half a second, and the last one is as good as a mean. experiments/notes.md has what
was tried.
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
