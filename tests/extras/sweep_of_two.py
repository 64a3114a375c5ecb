"""A sweep of seconds: two points on real files; the flags of `small_flags` make them small."""

CONFIG = "configs/tiny.py:files"


def sweep():
    yield {}
    yield {"model.dropout": 0.4}
