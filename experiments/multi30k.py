"""A sweep of how `configs/multi30k.py` departs from a plain small Transformer.

    jformer sweep experiments/multi30k.py --seeds=3 --config.data.directory=MULTI30K

Each point leaves one departure out and is scored on validation: two hours of two cores a seed.
"""

CONFIG = "configs/multi30k.py:multi30k"

WITHOUT = [
    {},
    {"train.r_drop_alpha": 0.0},
    {"train.r_drop_alpha": 0.0, "train.steps": 44_000},  # about the same time
    {"optimizer.weight_decay": 0.0},
    {"model.dropout": 0.1},
    {"optimizer.schedule": "inverse_sqrt"},
    {"train.batch_tokens": 4096, "train.steps": 5500},  # as many epochs
    {"train.average_checkpoints": 1},
    {"data.vocabulary_size": 4000},
]


def sweep():
    for changes in WITHOUT:
        yield {**changes, "train.scored": "validation"}
