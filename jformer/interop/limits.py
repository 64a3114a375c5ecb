"""The check that a format of another program can hold a model."""

from collections.abc import Collection
from typing import Any

from jformer.config import ModelConfig


def check_model(config: ModelConfig, user: str, **held: Collection[Any]) -> None:
    """Raise `UserError` for the first key of `config.model` whose value is not in `held[key]`.

    `user` is the flag that asks for the format, such as --format=ctranslate2.
    """
    for name, values in held.items():
        if getattr(config, name) not in values:
            known = " or ".join(str(value) for value in values)
            raise config.wrong(name, f"{user} can hold {known} alone")


def check_attention(config: ModelConfig, user: str) -> None:
    """Raise `UserError` where attention is not Equation 1 with d_k = d_v = d_model / h."""
    check_model(
        config,
        user,
        attention=("dot_product",),
        scaled_attention=(True,),
        norm=("layer_norm",),
        d_k=(None, config.d_model // config.num_heads),
        d_v=(None, config.d_model // config.num_heads),
    )
