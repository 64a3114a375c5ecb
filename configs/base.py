"""The paper's base model: 6 + 6 layers, d_model 512, 8 heads (Table 3, first row).

`configs/base.py` trains on the embedded phrases, `configs/base.py:multi30k` and
`configs/base.py:files` on text files.
"""

from jformer.config import default_config


def get_config(dataset="phrases"):
    config = default_config(dataset)
    config.name = "base"
    if dataset == "phrases":
        # The corpus has a few thousand distinct words: 800 short steps learn it, and two CPU
        # cores take them in less than half an hour. The paper's 100,000 are for WMT.
        config.data.vocabulary_size = 2000
        config.train.steps = 800
        config.train.batch_tokens = 1536
        config.train.evaluate_every = 200
        config.train.checkpoint_every = 100
        config.train.log_every = 20
        config.train.average_checkpoints = 3
        config.optimizer.warmup_steps = 400
        config.optimizer.learning_rate_factor = 0.5
    return config
