"""Marian's job in `time_to_bleu`: Hugging Face's model in a plain PyTorch loop.

    python -m experiments.benchmarks.marian_job train FOLDER cpu|cuda float32|bfloat16
    python -m experiments.benchmarks.marian_job translate FOLDER cpu|cuda float32|bfloat16 \\
        INPUT STEP,... OUTPUT

The job reads the sizes and the text files from FOLDER/config.json, the config of jformer's run,
and the learning rate of each step from FOLDER/rates.json. It writes its checkpoints to FOLDER.
`translate` averages the checkpoints of the given steps and translates the file INPUT.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import MarianMTModel

from experiments.benchmarks import peers, pytorch_data, turns
from jformer.components import arguments
from jformer.config import Config, read_config
from jformer.data.vocabulary import Vocabulary

VOCABULARY = "vocabulary.json"


def main() -> None:
    command, name, device, dtype, *files = sys.argv[1:]
    folder, bf16 = Path(name), dtype == "bfloat16"
    config = read_config(folder / "config.json")
    if command == "train":
        train(config, folder, device, bf16)
    else:
        source, steps, output = files
        checkpoints = [folder / "checkpoints" / step for step in steps.split(",")]
        vocabulary = Vocabulary.load(checkpoints[0] / VOCABULARY)
        ids = vocabulary.encode(turns.read_lines(source))
        model = mean_of(checkpoints).to(device).eval()
        outputs = peers.generate(model, ids, config.decode, bf16)
        texts = [vocabulary.decode(output) for output in outputs]
        Path(output).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def train(config: Config, folder: Path, device: str, bf16: bool) -> None:
    torch.manual_seed(config.seed)
    vocabulary, loader = prepare(config, device)
    model = peers.Marian(config, config.longest).to(device).train()
    optimizer = optimizer_of(config, model)
    rates = json.loads((folder / "rates.json").read_text())
    for step, (rate, batch) in enumerate(zip(rates, endless(loader), strict=False), start=1):
        for group in optimizer.param_groups:
            group["lr"] = rate
        texts = [ids.to(device, non_blocking=True) for ids in batch]
        peers.loss_of(model, texts, config.train.label_smoothing, bf16).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % config.train.checkpoint_every == 0 or step == config.train.steps:
            save(folder, step, model.model, vocabulary, optimizer)


def optimizer_of(config: Config, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return AdamW. Weight decay applies to matrices only."""
    adam = {"weight_decay": 0.0, **arguments("optimizer", config.optimizer.name)}
    vectors = {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}
    matrices = {"params": [p for p in model.parameters() if p.ndim >= 2]}
    return torch.optim.AdamW(
        [matrices, vectors],
        betas=(adam["beta1"], adam["beta2"]),
        eps=adam["epsilon"],
        weight_decay=adam["weight_decay"],
        fused=True,
    )


def save(folder: Path, step: int, model: Any, vocabulary: Vocabulary, optimizer: Any) -> None:
    """Write a checkpoint, and rename it to its final name when it is complete."""
    partial = folder / "partial"
    model.save_pretrained(partial)
    vocabulary.save(partial / VOCABULARY)
    torch.save(optimizer.state_dict(), partial / "optimizer.pt")
    (folder / "checkpoints").mkdir(exist_ok=True)
    partial.rename(folder / "checkpoints" / str(step))


def prepare(config: Config, device: str) -> tuple[Vocabulary, DataLoader]:
    """Return the vocabulary and a loader of the training batches."""
    data, gpu = config.data, device == "cuda"
    languages = data.source_language, data.target_language
    texts = [turns.read_lines(f"{data.train}.{language}") for language in languages]
    both = [*texts[0], *texts[1]]
    vocabulary = Vocabulary.train(both, data.vocabulary_size, data.tokenizer)
    ids = [pytorch_data.encode(vocabulary, side) for side in texts]
    pairs = pytorch_data.no_longer_than(data.max_length, *ids)
    tokens = config.train.batch_tokens
    return vocabulary, pytorch_data.make_loader(pairs, tokens, workers=gpu, pin_memory=gpu)


def endless(loader: DataLoader) -> Iterator[tuple[torch.Tensor, ...]]:
    while True:
        yield from loader


def mean_of(checkpoints: list[Path]) -> MarianMTModel:
    """Return a model with the averaged parameters of the checkpoints."""
    models = [
        MarianMTModel.from_pretrained(path, attn_implementation="sdpa") for path in checkpoints
    ]
    parameters = zip(*(model.parameters() for model in models), strict=True)
    with torch.no_grad():
        for mean, *others in parameters:
            mean.copy_(sum(others, start=mean) / len(models))
    return models[0]


if __name__ == "__main__":
    main()
