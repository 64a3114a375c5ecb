"""JoeyNMT's job in `time_to_bleu`: SentencePiece, then JoeyNMT's own commands.

    PYTHON experiments/benchmarks/joeynmt_job.py train FOLDER
    PYTHON experiments/benchmarks/joeynmt_job.py translate FOLDER INPUT STEP,... OUTPUT

PYTHON must be the interpreter of an environment with JoeyNMT. JoeyNMT needs older libraries than
jformer, so this script imports nothing from jformer. It reads FOLDER/settings.json, which
`time_to_bleu` writes, and writes the sub-words, JoeyNMT's config and its checkpoints to FOLDER.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import sentencepiece
import torch

NEVER = 10**9
SHORT_OUTPUT = 10  # limits outputs in JoeyNMT's own validation, to save time
JOEYNMT = [sys.executable, "-m", "joeynmt"]


def main() -> None:
    command, folder, *files = sys.argv[1:]
    folder = Path(folder)
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    config = folder / f"{command}.yaml"
    if command == "train":
        learn_subwords(folder, settings)
        write_config(config, folder, settings, max_output_length=SHORT_OUTPUT)
        # Replace this process, so that a signal that ends the job also ends the training.
        os.execv(sys.executable, [*JOEYNMT, "train", str(config), "--skip-test"])
    else:
        source, steps, output = files
        write_config(config, folder, settings, load_model=str(mean(folder, steps.split(","))))
        # Redirect stdout, because --output-path fails in version 2.3.0.
        with open(source) as lines, open(output, "w") as outputs:
            program = [*JOEYNMT, "translate", config]
            sys.exit(subprocess.run(program, stdin=lines, stdout=outputs).returncode)


def mean(folder: Path, steps: list[str]) -> Path:
    """Average the parameters of checkpoints, and write them as a new checkpoint."""
    paths = [folder / "model" / f"{step}.ckpt" for step in steps]
    states = [torch.load(path, map_location="cpu")["model_state"] for path in paths]
    means = {name: sum(state[name] for state in states) / len(states) for name in states[0]}
    path = folder / "mean.ckpt"
    torch.save({"model_state": means}, path)
    return path


def learn_subwords(folder: Path, settings: dict) -> None:
    """Learn one vocabulary for both languages, and write it in JoeyNMT's format."""
    languages = settings["languages"]
    sentencepiece.SentencePieceTrainer.train(
        input=[f"{settings['train']}.{language}" for language in languages],
        model_prefix=str(folder / "subwords"),
        vocab_size=settings["vocabulary_size"],
        model_type="bpe",
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    lines = (folder / "subwords.vocab").read_text(encoding="utf-8").splitlines()
    pieces = [line.split("\t")[0] for line in lines[3:]]  # the first three are special tokens
    (folder / "pieces.txt").write_text("".join(f"{p}\n" for p in pieces), encoding="utf-8")


def write_config(path: Path, folder: Path, settings: dict, **testing: Any) -> None:
    """Write a JoeyNMT config as JSON, which is valid YAML."""
    config = {
        "name": "time_to_bleu",
        "model_dir": str(folder / "model"),
        "use_cuda": settings["device"] == "cuda",
        "random_seed": settings["seed"],
        "data": data_section(folder, settings),
        "model": model_section(settings),
        "training": training_section(settings),
        "testing": {
            "batch_size": settings["batch_size"],
            "beam_size": settings["beam_size"],
            "beam_alpha": settings["length_penalty"],
            "max_output_length": settings["max_length"],
            "eval_metrics": [],
            **testing,
        },
    }
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def data_section(folder: Path, settings: dict) -> dict:
    def side(language: str) -> dict:
        return {
            "lang": language,
            "level": "bpe",
            "max_length": settings["max_length"],
            "voc_file": str(folder / "pieces.txt"),
            "tokenizer_type": "sentencepiece",
            "tokenizer_cfg": {"model_file": str(folder / "subwords.model")},
        }

    source, target = settings["languages"]
    return {
        "train": settings["train"],
        "dev": settings["one_pair"],
        "dataset_type": "plain",
        "src": side(source),
        "trg": side(target),
    }


def model_section(settings: dict) -> dict:
    def stack(layers: int) -> dict:
        return {
            "type": "transformer",
            "num_layers": layers,
            "num_heads": settings["num_heads"],
            "embeddings": {"embedding_dim": settings["d_model"], "scale": True},
            "hidden_size": settings["d_model"],
            "ff_size": settings["d_ff"],
            "dropout": settings["dropout"],
            "layer_norm": settings["norm_position"],
        }

    return {
        "initializer": "xavier_uniform",
        "bias_initializer": "zeros",
        "embed_initializer": "xavier_uniform",
        "tied_embeddings": True,
        "tied_softmax": True,
        "encoder": stack(settings["num_layers"]),
        "decoder": stack(settings["decoder_layers"]),
    }


def training_section(settings: dict) -> dict:
    every = settings["checkpoint_every"]
    return {
        "optimizer": "adamw",
        "adam_betas": [settings["beta1"], settings["beta2"]],
        "weight_decay": settings["weight_decay"],
        "normalization": "tokens",
        "scheduling": "warmupinversesquareroot",
        "learning_rate": settings["learning_rate"],
        "learning_rate_min": 0.0,
        "learning_rate_warmup": settings["warmup_steps"],
        "label_smoothing": settings["label_smoothing"],
        "batch_size": settings["batch_tokens"],
        "batch_type": "token",
        "epochs": NEVER,
        "updates": settings["steps"],
        "logging_freq": every,
        "validation_freq": every,
        "keep_best_ckpts": -1,  # all
        "early_stopping_metric": "loss",
        "print_valid_sents": [],
    }


if __name__ == "__main__":
    main()
