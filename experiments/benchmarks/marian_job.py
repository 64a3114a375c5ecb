"""Marian's job in `time_to_bleu`: Hugging Face's model in a plain PyTorch loop.

    python -m experiments.benchmarks.marian_job train FOLDER cpu|cuda float32|bfloat16
    python -m experiments.benchmarks.marian_job translate FOLDER cpu|cuda float32|bfloat16 \\
        INPUT STEP,... OUTPUT

The job reads the sizes, the schedule and the text files from FOLDER/config.json, the config of
jformer's run, and writes its checkpoints to FOLDER. `translate` averages the checkpoints of the
given steps and translates the file INPUT.
"""

import functools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import MarianMTModel

from experiments.benchmarks import bpe, peers, pytorch_data
from jformer.components import arguments, name_of
from jformer.config import PAD, Config, read_config


def main() -> None:
    command, folder, device, dtype, *files = sys.argv[1:]
    config = read_config(Path(folder, "config.json"))
    if command == "train":
        train(config, Path(folder), device, dtype)
    else:
        source, steps, output = files
        checkpoints = [Path(folder, "checkpoints", step) for step in steps.split(",")]
        translate(config, checkpoints, device, dtype, source, Path(output))


def train(config: Config, folder: Path, device: str, dtype: str) -> None:
    torch.manual_seed(config.seed)
    tokenizer, loader = prepare(config, device)
    model = peers.marian_model(config, tokenizer.get_vocab_size(), config.longest)
    model = model.to(device).train()
    optimizer = optimizer_of(config, model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(config, step + 1))
    for step, batch in zip(range(1, config.train.steps + 1), endless(loader), strict=False):
        loss = loss_of(model, batch, device, dtype, config.train.label_smoothing)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % config.train.checkpoint_every == 0 or step == config.train.steps:
            save(folder, step, model, tokenizer, optimizer)


def optimizer_of(config: Config, model: Any) -> torch.optim.Optimizer:
    """Return AdamW with a learning rate of 1. Weight decay applies to matrices only."""
    adam = {"weight_decay": 0.0, **arguments("optimizer", config.optimizer.name)}
    vectors = {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}
    matrices = {"params": [p for p in model.parameters() if p.ndim >= 2]}
    return torch.optim.AdamW(
        [matrices, vectors], lr=1.0, betas=(adam["beta1"], adam["beta2"]),
        eps=adam["epsilon"], weight_decay=adam["weight_decay"], fused=True,
    )  # fmt: skip


def save(folder: Path, step: int, model: Any, tokenizer: Tokenizer, optimizer: Any) -> None:
    """Write a checkpoint, and rename it to its final name when it is complete."""
    partial = folder / "partial"
    model.save_pretrained(partial)
    tokenizer.save(str(partial / "tokenizer.json"))
    torch.save(optimizer.state_dict(), partial / "optimizer.pt")
    (folder / "checkpoints").mkdir(exist_ok=True)
    partial.rename(folder / "checkpoints" / str(step))


def prepare(config: Config, device: str) -> tuple[Tokenizer, DataLoader]:
    """Return the tokenizer and a loader of the training batches."""
    data, gpu = config.data, device == "cuda"
    languages = data.source_language, data.target_language
    texts = [read_lines(f"{data.train}.{language}") for language in languages]
    tokenizer = bpe.train_tokenizer([*texts[0], *texts[1]], data.vocabulary_size)
    ids = [pytorch_data.encode(tokenizer, side) for side in texts]
    pairs = pytorch_data.no_longer_than(data.max_length, *ids)
    tokens = config.train.batch_tokens
    return tokenizer, pytorch_data.make_loader(pairs, tokens, workers=gpu, pin_memory=gpu)


def read_lines(name: str) -> list[str]:
    return Path(name).read_text(encoding="utf-8").removesuffix("\n").split("\n")


def rate(config: Config, step: int) -> float:
    """Return the learning rate: Equation 3 (Section 5.3), or warm-up and decay to 0."""
    optimizer = config.optimizer
    warmup, peak = optimizer.warmup_steps, optimizer.learning_rate
    schedule, options = name_of(optimizer.schedule), arguments("schedule", optimizer.schedule)
    if schedule == "equation_3":
        factor = options["factor"] * config.model.d_model**-0.5
        return factor * min(step**-0.5, step * warmup**-1.5)
    if schedule not in ("linear", "cosine") or any(options.values()):
        raise SystemExit(f"marian: unsupported optimizer.schedule={optimizer.schedule}")
    if step < warmup:
        return peak * step / warmup
    done = (step - warmup) / (config.train.steps - warmup)
    if schedule == "linear":
        return peak * (1 - done)
    return peak * (1 + math.cos(math.pi * done)) / 2


def endless(loader: DataLoader) -> Iterator[tuple[torch.Tensor, ...]]:
    while True:
        yield from loader


def loss_of(model: Any, batch: tuple, device: str, dtype: str, smoothing: float) -> torch.Tensor:
    source, target, labels = (ids.to(device, non_blocking=True) for ids in batch)
    with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
        logits = model(
            input_ids=source,
            attention_mask=source != PAD,
            decoder_input_ids=target,
            use_cache=False,
        ).logits
        return functional.cross_entropy(
            logits.flatten(0, 1),
            labels.flatten().long(),
            ignore_index=PAD,
            label_smoothing=smoothing,
        )


def translate(
    config: Config, checkpoints: list[Path], device: str, dtype: str, source: str, output: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoints[0] / "tokenizer.json"))
    model = mean_of(checkpoints).to(device).eval()
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(read_lines(source))]
    decode = config.decode
    with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
        outputs = peers.generate(
            model,
            ids,
            decode.batch_size,
            decode.beam_size,
            decode.length_penalty,
            decode.max_extra_length,
            arguments("search", decode.search)["early_stopping"],
        )
    texts = tokenizer.decode_batch(outputs)
    output.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def mean_of(checkpoints: list[Path]) -> MarianMTModel:
    """Return a model with the averaged parameters of the checkpoints."""
    load = functools.partial(MarianMTModel.from_pretrained, attn_implementation="sdpa")
    model, *others = map(load, checkpoints)
    parameters = [dict(other.named_parameters()) for other in others]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for other in parameters:
                parameter += other[name]
            parameter /= len(checkpoints)
    return model


if __name__ == "__main__":
    main()
