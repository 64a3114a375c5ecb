"""A sweep over the choices in `configs/multi30k.py`, scored on validation.

    jformer sweep experiments/multi30k.py --seeds=3 --config.data.directory=MULTI30K

The first point is the unchanged config. Each other point changes one choice and the keys that
depend on it. Each seed of a point takes up to two hours on two cores. Three seeds give 27 runs.
"""

CONFIG = "configs/multi30k.py:multi30k"

CHANGES = [
    {},
    {"train.r_drop_alpha": 0.0},
    {"train.r_drop_alpha": 0.0, "train.steps": 44_000},  # takes about as long
    {"optimizer.name": "adamw"},
    {"model.dropout": 0.1},
    {"optimizer.schedule": "inverse_sqrt"},
    {  # the same epochs of training, warm-up and averaging
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
