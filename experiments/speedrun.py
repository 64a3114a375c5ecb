"""A search around `configs/speedrun.py` scored on validation.

    jformer sweep experiments/speedrun.py --seeds=2 --jobs=2 \\
        --config.data.directory=MULTI30K --config.decode.beam_size=2 \\
        "--config.data.tokenizer=byte_bpe(normalization='lower')" --config.train.scored=validation

If a change makes a step slower or faster, the point has fewer or more steps, so that all points
take the same time. Two seeds take an hour on two cores.
"""

CONFIG = "configs/speedrun.py:multi30k"


def muon(weight_decay: float = 0.3, adam_factor: float = 2.0) -> str:
    """Return an optimizer value for the config; the defaults are the config's own."""
    return f"muon(weight_decay={weight_decay}, adam_factor={adam_factor})"


CHANGES = [
    {},
    {"optimizer.name": muon(weight_decay=0.2)},
    {"optimizer.learning_rate": 0.008, "optimizer.name": muon(adam_factor=3.0)},
    {"optimizer.learning_rate": 0.013, "optimizer.name": muon(adam_factor=1.5)},
    {"model.activation": "gelu", "train.steps": 805},
    {"model.d_ff": 384, "train.steps": 780},
    {"model.out_projection": False, "train.steps": 930},
    {"data.vocabulary_size": 5000, "train.steps": 800},
    {
        "train.batch_tokens": 768,
        "train.steps": 1080,
        "optimizer.learning_rate": 0.0085,
        "optimizer.warmup_steps": 120,
    },
    {
        "train.batch_tokens": 1536,
        "train.steps": 600,
        "optimizer.learning_rate": 0.012,
        "optimizer.warmup_steps": 80,
    },
]


def sweep():
    yield from CHANGES
