"""A sweep of the choices of `configs/multi30k.py`, scored on validation.

    jformer sweep experiments/multi30k.py --seeds=3 --config.data.directory=MULTI30K

The first point is the config as it is; each other one changes one choice, and what follows from it.
A point takes up to two hours of two cores a seed: with three seeds there are 27 runs.
"""

CONFIG = "configs/multi30k.py:multi30k"

CHANGES = [
    {},
    {"train.r_drop_alpha": 0.0},
    {"train.r_drop_alpha": 0.0, "train.steps": 44_000},  # about the same time
    {"optimizer.name": "adamw"},
    {"model.dropout": 0.1},
    {"optimizer.schedule": "inverse_sqrt"},
    {  # as many epochs, warm-up and averaging included
        "train.batch_tokens": 4096,
        "train.steps": 5500,
        "train.checkpoint_every": 125,
        "optimizer.warmup_steps": 375,
    },
    {"train.average_checkpoints": 1},
    {"data.vocabulary_size": 4000},
]


def sweep():
    for changes in CHANGES:
        yield {**changes, "train.scored": "validation"}
