"""A sweep of the paper's Table 3 around a small base model, in about two hours on two cores.

    jformer sweep experiments/table3_small.py --jobs=2 --config.data.directory=MULTI30K

Sizes start from `configs/small.py` and change by the paper's ratios. Dropout and label smoothing
have the paper's values. As in the paper, single checkpoints are scored on the development set.
"""

CONFIG = "configs/small.py:multi30k"


def sweep():
    yield {}
    for num_heads in (1, 4, 16, 32):  # (A): at constant computation
        yield {"model.num_heads": num_heads}
    for d_k in (4, 8):  # (B): the values keep their width
        yield {"model.d_k": d_k}
    for num_layers in (1, 2, 4):  # (C)
        yield {"model.num_layers": num_layers}
    for d_model in (64, 256):
        yield {"model.d_model": d_model}
    for d_ff in (256, 1024):
        yield {"model.d_ff": d_ff}
    for dropout in (0.0, 0.2):  # (D)
        yield {"model.dropout": dropout}
    for label_smoothing in (0.0, 0.2):
        yield {"train.label_smoothing": label_smoothing}
    yield {"model.positions": "learned"}  # (E)
