"""A run with random weights, for the formats of other programs."""

import dataclasses
from pathlib import Path

import numpy as np

from jformer.config import BOS, EOS, PAD, DecodeConfig, ModelConfig
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.model.transformer import Transformer
from jformer.run import Run
from tests.conftest import random_params, small_config

LETTERS = [f"{a}{b} {c}" for a, b, c in zip("adbecfdg", "xyzxyzxy", "mnopqrst", strict=True)]
TEXTS = [" ".join(np.random.default_rng(n).choice(LETTERS, 1 + n % 5)) for n in range(23)]
# Sizes that differ for different axes, and an odd number of heads.
SMALL = {"num_layers": 2, "num_decoder_layers": 3, "d_model": 42, "d_ff": 31, "num_heads": 3}


def random_run(
    joint: bool = True, decode: dict | None = None, kind: str = "byte_bpe", **model
) -> Run:
    config = dataclasses.replace(
        small_config(),
        data=dataclasses.replace(small_config().data, joint_vocabulary=joint),
        model=ModelConfig(**{**SMALL, "dtype": "float32", **model}),
        decode=DecodeConfig(
            **{
                "beam_size": 1, "max_extra_length": 7, "length_penalty_beta": 0.0,
                "search": "beam(early_stopping=True)", **(decode or {}),
            }
        ),
    )  # fmt: skip
    vocabulary = Vocabulary.train(TEXTS, 283, kind)
    source = vocabulary if joint else Vocabulary.train(["xy", "xy"], 261)
    vocabularies = Vocabularies(source, vocabulary)
    network = Transformer(config.model, vocabulary.size, source.size)
    # Sharper than an untrained model's near ties, which rounding would decide.
    params = random_params(network, deviation=0.5)
    # Unlikely, as in a trained model: CTranslate2 has probabilities among the allowed tokens alone.
    for name in {"embedding", "output"} & {*params}:
        params[name] = params[name].at[:EOS].set(0.0)
    if config.model.output_bias:
        params["output_bias"] = params["output_bias"].at[:EOS].set(-30.0)
    return Run(Path("run"), "average", config, vocabularies, network, params, (7,))


def logits_here_and_in_transformers(run, model, rows):
    """Logits (B, T, V) of random ids by an imported run, and by the model whose rows it has."""
    import torch

    rng = np.random.default_rng(1)
    source_BS, target_BT = (rng.integers(3, len(rows), (3, L)).astype(np.int32) for L in (7, 11))
    source_BS[:, -1], source_BS[0, 4:] = EOS, PAD
    target_BT[:, 0] = BOS
    logits_BTV = np.array(run.model.apply({"params": run.params}, source_BS, target_BT))
    with torch.no_grad():
        expected_BTV = model(
            input_ids=torch.tensor(rows[source_BS]),
            attention_mask=torch.tensor(source_BS != PAD),
            decoder_input_ids=torch.tensor(rows[target_BT]),
        ).logits.numpy()[..., rows]
    return logits_BTV, expected_BTV
