"""The check that a format of another program can hold a model."""

from collections.abc import Collection
from typing import Any

from jformer.components import name_of
from jformer.config import ModelConfig


def check_model(config: ModelConfig, user: str, **held: Collection[Any]) -> None:
    """Raise `UserError` for the first key of `config.model` whose value is not in `held[key]`.

    `user` is the flag that asks for the format, such as --format=ctranslate2.
    """
    for name, values in held.items():
        value = getattr(config, name)
        # The options of a norm and of positions are written with the weights.
        if (name_of(value) if name in ("norm", "positions") else value) not in values:
            known = " or ".join(str(value) for value in values)
            raise config.wrong(name, f"{user} can hold {known} alone")


def check_common(config: ModelConfig, user: str) -> None:
    """Raise `UserError` for what neither Marian nor CTranslate2 has a place for."""
    ends_in_norm = "on" if config.norm_position == "pre" else "off"
    check_model(
        config,
        user,
        attention=("dot_product",),
        out_projection=(True,),
        zero_padding=(False,),
        final_norm=("auto", ends_in_norm),
        norm=("layer_norm",),
        d_k=(None, config.d_model // config.num_heads),
        d_v=(None, config.d_model // config.num_heads),
    )
