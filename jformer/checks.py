"""Values of several keys that cannot work together, each told in one line: `UserError`.

Bounds of a single key stand beside it, in config.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jformer.keys import UserError, check_values

if TYPE_CHECKING:
    from jformer.config import (
        DataConfig,
        DecodeConfig,
        ModelConfig,
        OptimizerConfig,
        ParallelConfig,
        TrainConfig,
    )

MOST_PARAMETERS = 10**12  # as one trillion, of the largest models there are


def check_training(train: TrainConfig, optimizer: OptimizerConfig) -> None:
    """Raise `UserError` for a key that another one leaves without use."""
    decaying = optimizer.schedule in ("linear", "cosine")
    other = (optimizer.schedule != "equation_3", "another config.optimizer.schedule")
    known = {
        "weight_decay": (optimizer.name == "adamw", "config.optimizer.name=adamw"),
        "learning_rate": other,
        "start_learning_rate": other,
        "end_learning_rate": (decaying, "config.optimizer.schedule=linear or cosine"),
        "decay_steps": (decaying, "config.optimizer.schedule=linear or cosine"),
    }  # fmt: skip
    for name, (used, by) in known.items():
        value = getattr(optimizer, name)
        if not used and value != getattr(type(optimizer), name):
            raise UserError(f"config.optimizer.{name}={value}: is for {by}")
    for name in ("start_learning_rate", "end_learning_rate"):
        if getattr(optimizer, name) > optimizer.learning_rate:
            highest = f"config.optimizer.learning_rate={optimizer.learning_rate}"
            value = getattr(optimizer, name)
            raise UserError(f"config.optimizer.{name}={value}: must be <= {highest}")
    end = optimizer.decay_steps or train.steps
    if decaying and end <= optimizer.warmup_steps:
        raise UserError(
            f"config.optimizer.warmup_steps={optimizer.warmup_steps}: must be below {end}, the "
            f"update of the lowest rate (decay_steps, or train.steps)"
        )
    if train.best_by == "bleu" and not train.bleu_every:
        raise UserError("config.train.best_by=bleu: is for a run with config.train.bleu_every")
    if train.keep_checkpoints and train.keep_checkpoints < train.average_checkpoints:
        least = f"config.train.average_checkpoints={train.average_checkpoints}"
        raise UserError(
            f"config.train.keep_checkpoints={train.keep_checkpoints}: must be >= {least}"
        )


def check_parallel(parallel: ParallelConfig, model: ModelConfig) -> None:
    """Raise `UserError` for devices that no program can be laid out on."""
    sizes = {name: getattr(parallel, name) for name in ("data", "fsdp", "model")}
    for name, size in sizes.items():
        if size == 0:
            raise UserError(f"config.parallel.{name}=0: must be a number of devices, or -1")
    if len(rest := [name for name, size in sizes.items() if size == -1]) > 1:
        raise UserError(
            f"config.parallel.{rest[1]}=-1: only one axis can be the rest, and "
            f"config.parallel.{rest[0]} is -1, too; set config.parallel.{rest[0]}=1"
        )
    if parallel.backend == "pmap" and (parallel.fsdp, parallel.model) != (1, 1):
        name = "fsdp" if parallel.fsdp != 1 else "model"
        raise UserError(
            f"config.parallel.{name}={sizes[name]}: pmap has the whole state on each device; set "
            f"config.parallel.backend=jit"
        )
    by_hand = parallel.coordinator not in ("", "auto")
    port = re.fullmatch(r".+:(\d{1,5})", parallel.coordinator)
    if by_hand and not (port and 0 < int(port[1]) < 2**16):
        asked = f"config.parallel.coordinator={parallel.coordinator}"
        raise UserError(f"{asked}: must be HOST:PORT, or auto")
    for name in ("processes", "process"):
        value, needed = getattr(parallel, name), "must be set with" if by_hand else "is only for"
        if by_hand != (value is not None):
            raise UserError(
                f"config.parallel.{name}={value}: {needed} config.parallel.coordinator=HOST:PORT"
            )
    if by_hand and parallel.process >= parallel.processes:  # type: ignore[operator]
        raise UserError(
            f"config.parallel.process={parallel.process}: must be below "
            f"config.parallel.processes={parallel.processes}"
        )


def check_decode(decode: DecodeConfig, decoder_layers: int) -> None:
    """Raise `UserError` for keys of one way to search that are set for the other."""
    sampling = decode.search == "sampling"
    unused = ("diversity",) if sampling else ("temperature", "top_k", "top_p", "seed")
    for name in unused:
        value = getattr(decode, name)
        if value != getattr(type(decode), name):
            way = "beam" if sampling else "sampling"
            raise UserError(f"config.decode.{name}={value}: is for config.decode.search={way}")
    if not sampling and decode.n_best > decode.beam_size:
        raise UserError(
            f"config.decode.n_best={decode.n_best}: must be <= "
            f"config.decode.beam_size={decode.beam_size}"
        )
    if decode.max_length is not None and decode.min_length >= decode.max_length:
        raise UserError(
            f"config.decode.min_length={decode.min_length}: must be below "
            f"config.decode.max_length={decode.max_length}"
        )
    if (decode.alignment_layer or 1) > decoder_layers:
        raise UserError(
            f"config.decode.alignment_layer={decode.alignment_layer}: must be <= "
            f"{decoder_layers}, the layers of the decoder"
        )


def check_data(data: DataConfig, datasets: tuple[str, ...]) -> None:
    """Raise `UserError` for a key that the data set needs and lacks, or does not know."""
    named = tuple(name for name in datasets if name not in ("phrases", "hub", "files"))
    known = {
        "directory": named,
        "hub": ("hub", *named),
        "validation": ("files",),
        "test": ("files",),
    }
    needed = {"files": ("train", "validation"), "hub": ("hub",)}
    for name in needed.get(data.name, ()):
        if not getattr(data, name):
            raise UserError(f"config.data.{name} is empty: set --config.data.{name}=PATH")
    for name, others in known.items():
        if getattr(data, name) and data.name not in others:
            raise UserError(
                f"config.data.{name}={getattr(data, name)}: data.name={data.name} has no use for "
                f"it; it is for {', '.join(others)}"
            )
    if data.directory and data.hub:
        raise UserError(
            f"config.data.hub={data.hub}: config.data.directory={data.directory} is set too, and "
            f"the text can come from one of them; leave one empty"
        )
    if not (data.source_language and data.target_language):
        which = "target" if data.source_language else "source"
        raise UserError(f"config.data.{which}_language is empty: set it to a language as in de")
    if data.source_language == data.target_language:
        raise UserError(
            f"config.data.target_language={data.target_language}: is config.data.source_language, "
            f"too; the two sides must differ in name"
        )
    if not re.fullmatch(r"([1-9]\d{0,5}(,[1-9]\d{0,5})*)?", data.weights):
        raise UserError(
            f"config.data.weights={data.weights}: must be numbers from 1 to 999999 as in 1,4"
        )
    if data.source_vocabulary and data.joint_vocabulary:
        raise UserError(
            f"config.data.source_vocabulary={data.source_vocabulary}: the source has the joint "
            f"vocabulary; set config.data.joint_vocabulary=False"
        )
    if data.bpe_dropout and not data.tokenizer.endswith("bpe"):
        raise UserError(
            f"config.data.bpe_dropout={data.bpe_dropout}: data.tokenizer={data.tokenizer} has no "
            f"merges to drop; set it to bpe or byte_bpe"
        )


def check_model(model: ModelConfig) -> None:
    """Raise `UserError` for the first value that cannot work."""
    check_values(model, "config.model.")
    if model.d_model % 2:
        raise UserError(f"config.model.d_model={model.d_model}: must be even (sines and cosines)")
    if model.d_model % model.num_heads and None in (model.d_k, model.d_v):
        divisors = [h for h in range(1, model.d_model + 1) if model.d_model % h == 0]
        close = min(divisors, key=lambda h: abs(h - model.num_heads))
        raise UserError(
            f"config.model.num_heads={model.num_heads}: does not divide d_model={model.d_model}; "
            f"the nearest that does is {close}, or set model.d_k and model.d_v"
        )
    if model.positions == "rotary" and model.key_width % 2:
        raise UserError(f"config.model.d_k={model.key_width}: must be even, for rotary positions")
    attention = 2 * model.d_model * model.num_heads * (model.key_width + model.value_width)
    layers = model.num_layers + model.decoder_layers
    inner = 2 * model.d_model * model.d_ff
    count = attention * (layers + model.decoder_layers) + inner * layers
    if count > MOST_PARAMETERS:
        raise UserError(
            f"config.model: would have {count:,} parameters beside embeddings, and "
            f"{MOST_PARAMETERS:,} is the most; lower d_model, d_ff, num_heads or num_layers"
        )
