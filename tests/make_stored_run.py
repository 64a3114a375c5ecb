"""Makes the run that later versions must still open: `python tests/make_stored_run.py DIR`.

DIR must not exist. tests/stored_run/ is what it once made; it is made again only where a change of
its format is meant to be refused, and the test then says in which words.
"""

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

import jformer
from jformer.extras.interop.run_directory import forget_folder
from jformer.main import main

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SENTENCES = ["1 2", "4 0 7", "9 9 3"]
# The files are named from DIR, so that a run of a copy is the same run.
FLAGS = [
    f"--config={Path(__file__).parents[1].absolute()}/configs/tiny.py:files", "--workdir=run",
    "--config.name=stored", "--config.data.train=train",
    "--config.data.validation=validation", "--config.data.test=test",
    "--config.data.vocabulary_size=288", "--config.data.max_length=24",
    "--config.data.num_buckets=1", "--config.data.cache=cache",
    "--config.model.num_layers=1", "--config.model.d_model=12", "--config.model.d_ff=24",
    "--config.model.num_heads=2", "--config.model.dropout=0.0", "--config.model.dtype=float32",
    "--config.optimizer.warmup_steps=300", "--config.optimizer.schedule=equation_3",
    "--config.train.batch_tokens=256", "--config.train.log_every=1000",
    "--config.train.evaluate_every=3000", "--config.train.checkpoint_every=3000",
    "--config.train.average_checkpoints=1", "--config.decode.max_extra_length=5",
]  # fmt: skip
STEPS = 3000


def write_corpus() -> None:
    """Digits, and the words for them: three files of pairs."""
    train = [number for number in range(1000) if number % 7]
    splits = {"train": train, "validation": range(0, 1000, 70), "test": range(7, 1000, 70)}
    for name, numbers in splits.items():
        texts = {"en": [" ".join(str(number)) for number in numbers]}
        texts["de"] = [
            " ".join(WORDS[int(digit)] for digit in text.split()) for text in texts["en"]
        ]
        for language, lines in texts.items():
            Path(f"{name}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.chdir(folder)
    write_corpus()
    with contextlib.redirect_stdout(io.StringIO()):  # the scores stand in results.json too
        status = main(["jformer", *FLAGS, f"--config.train.steps={STEPS}"])
    if status:
        raise SystemExit(status)
    translations = jformer.load("run").translate(SENTENCES)
    Path("expected.json").write_text(json.dumps(translations, indent=2) + "\n", encoding="utf-8")
    # The best checkpoint is another copy, and what is left is of this machine.
    for name in ("cache", "run/best", "run/tensorboard"):
        shutil.rmtree(name)
    Path("run/lock").unlink(missing_ok=True)
    forget_folder(Path(f"run/checkpoints/{STEPS}"))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
