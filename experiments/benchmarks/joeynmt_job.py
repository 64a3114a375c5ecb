"""JoeyNMT's job in `time_to_bleu`: SentencePiece, then JoeyNMT's own commands.

    PYTHON experiments/benchmarks/joeynmt_job.py train FOLDER SIZE FILE FILE
    PYTHON experiments/benchmarks/joeynmt_job.py translate FOLDER INPUT STEP,... OUTPUT

PYTHON must be the interpreter of an environment with JoeyNMT. JoeyNMT needs older libraries than
jformer, so this script imports nothing from jformer. `train` learns SIZE sub-words of two files and
trains with FOLDER/train.yaml. `translate` averages checkpoints and uses FOLDER/translate.yaml.
"""

import os
import subprocess
import sys
from pathlib import Path

import sentencepiece
import torch

JOEYNMT = [sys.executable, "-m", "joeynmt"]


def main() -> None:
    command, name, *arguments = sys.argv[1:]
    folder = Path(name)
    config = str(folder / f"{command}.yaml")
    if command == "train":
        size, *files = arguments
        learn_subwords(folder, int(size), files)
        # Replace this process, so that a signal that ends the job also ends the training.
        os.execv(sys.executable, [*JOEYNMT, "train", config, "--skip-test"])
    else:
        source, steps, output = arguments
        average(folder, steps.split(","))
        # Redirect stdout, because --output-path fails in version 2.3.0.
        with open(source) as lines, open(output, "w") as outputs:
            program = [*JOEYNMT, "translate", config]
            sys.exit(subprocess.run(program, stdin=lines, stdout=outputs).returncode)


def learn_subwords(folder: Path, size: int, files: list[str]) -> None:
    """Learn one vocabulary for both languages, and write it in JoeyNMT's format."""
    sentencepiece.SentencePieceTrainer.train(
        input=files,
        model_prefix=str(folder / "subwords"),
        vocab_size=size,
        model_type="bpe",
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    lines = (folder / "subwords.vocab").read_text(encoding="utf-8").splitlines()
    pieces = [line.split("\t")[0] for line in lines[3:]]  # the first three are special tokens
    (folder / "pieces.txt").write_text("".join(f"{p}\n" for p in pieces), encoding="utf-8")


def average(folder: Path, steps: list[str]) -> None:
    """Write FOLDER/mean.ckpt with the averaged parameters of checkpoints."""
    paths = [folder / "model" / f"{step}.ckpt" for step in steps]
    states = [torch.load(path, map_location="cpu")["model_state"] for path in paths]
    means = {name: sum(state[name] for state in states) / len(states) for name in states[0]}
    torch.save({"model_state": means}, folder / "mean.ckpt")


if __name__ == "__main__":
    main()
