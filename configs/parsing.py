"""English constituency parsing, Section 6.3: `configs/parsing.py:small` or `:paper`.

    python -m jformer.main --config=configs/parsing.py --config.data.directory=FOLDER

`small`, the default, trains in about two hours on one CPU core. It departs from the paper as
follows:

- It has 6 + 4 layers of width 192, and norms precede the sub-layers.
- The learning rate decays to zero.
- The output refers to words by their numbers, so the decoder knows which word comes next.
- Classes replace all but the most frequent words. Word dropout trains these classes.

docs/parsing.md has the results. `paper` has the 4 layers, d_model 1024, beam size 21 and alpha 0.3
of Section 6.3. Its vocabulary has 16,000 tokens, as in the paper's WSJ-only runs.
"""

from jformer.config import default_config
from jformer.errors import UserError, nearest

SIZES = ("small", "paper")


def get_config(size="small"):
    if size not in SIZES:
        raise UserError(f"configs/parsing.py: unknown size {size!r}{nearest(size, SIZES)}")
    config = default_config("parsing")
    config.name = "parsing"
    config.data.source_language = "words"
    config.data.target_language = "tree"
    config.data.joint_vocabulary = False
    config.data.target_tokenizer = "words"
    config.data.scorer = "trees"
    config.data.vocabulary_size = 16_000
    config.data.max_length = 300
    config.train.metrics = "f1"
    config.model.tying = "output"
    config.decode.constraint = "trees"
    config.decode.length_penalty = 0.3
    config.decode.max_extra_length = 300
    if size == "paper":
        config.model.num_layers = 4
        config.model.d_model = 1024
        config.model.d_ff = 4096
        config.model.num_heads = 16
        config.decode.beam_size = 21
        return config
    config.data.name = "parsing(tags='number')"
    config.data.tokenizer = "word_classes"
    config.data.vocabulary_size = 7000
    config.data.augment = "word_dropout(p=0.15)"
    config.model.num_layers = 6
    config.model.num_decoder_layers = 4
    config.model.norm_position = "pre"
    config.model.d_model = 192
    config.model.d_ff = 384
    config.model.num_heads = 6
    config.model.dropout = 0.2
    config.train.batch_tokens = 2048
    config.train.steps = 14_000
    config.train.evaluate_every = 2000
    config.train.checkpoint_every = 500
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 0.002
    config.optimizer.warmup_steps = 800
    return config
