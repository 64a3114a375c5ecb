"""English constituency parsing, Section 6.3, at a size that two CPU cores train in an hour.

    python -m jformer.main --config=configs/parsing.py --config.data.directory=FOLDER

`configs/parsing.py:paper` has the paper's own sizes: 4 layers, d_model 1024, beam 21, alpha 0.3,
outputs of at most 300 tokens more than the input.
"""

from jformer.config import default_config


def get_config(size="small"):
    config = default_config("parsing")
    config.name = "parsing"
    config.data.source_language = "words"
    config.data.target_language = "tree"
    config.data.joint_vocabulary = False
    config.data.target_tokenizer = "words"
    config.data.max_length = 300
    config.model.num_layers = 4
    config.data.tags = "keep"
    config.model.tying = "output"
    config.decode.beam_size = 21
    config.decode.length_penalty = 0.3
    config.decode.max_extra_length = 300
    config.decode.constraint = "trees"
    if size == "paper":
        config.name = "parsing_paper"
        config.data.vocabulary_size = 16_000
        config.model.d_model = 1024
        config.model.d_ff = 4096
        config.model.num_heads = 16
    else:
        config.data.vocabulary_size = 8_000
        config.model.d_model = 192
        config.model.d_ff = 384
        config.model.num_heads = 6
        config.train.batch_tokens = 4096
        config.train.steps = 6000
        config.train.evaluate_every = 500
        config.train.checkpoint_every = 250
        config.optimizer.warmup_steps = 800
        config.decode.beam_size = 4
    return config
