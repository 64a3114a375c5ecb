"""Benchmark the time to train a translator that reaches a given BLEU.

    python -m experiments.benchmarks.time_to_bleu --train=PREFIX --validation=PREFIX
        [--languages=en,de] [--config=speedrun] [--bar=35] [--minutes=60]
        [--contenders NAME ...] [--joeynmt=PYTHON] [--peers=KEY=VALUE,...] [--rounds=1]
        [--platform=cpu|gpu] [--json=FILE]

The text is PREFIX.en and PREFIX.de, lowercased. A contender is a command that trains on this text,
starts with empty caches, and writes a checkpoint every `train.checkpoint_every` steps. The clock
runs from the start of the process until a checkpoint exists, so sub-words, compilation and saving
count.

After training, with the clock stopped, checkpoints translate the validation text. A bisection finds
the first checkpoint that reaches the bar (lowercase BLEU on Moses tokens); it assumes that BLEU
only rises. Each checkpoint is averaged with the checkpoints before it, as many as
`train.average_checkpoints` says.

The contenders are:

- `jformer`: the command line with the config
- `marian`, `marian bf16`: Hugging Face's model in a PyTorch loop
- `joeynmt`: JoeyNMT in its own environment, with the Python that `--joeynmt` names

The peers use the config's keys, such as its sizes, batch size, weight decay and beam size, with the
changes that `--peers` makes. They always differ from jformer in these points:

- Both use AdamW, sinusoids and one pair per row.
- In Marian, norms follow the sub-layers. Its search divides by a power of the length
  (`decode.length_penalty`), without the constant 5.
- In JoeyNMT, the learning rate decays as the inverse square root of the step. Weight decay includes
  biases and norms. Dropout also applies inside attention and the feed-forward network.
"""

import argparse
import bisect
import dataclasses
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.benchmarks import turns
from experiments.benchmarks.racers import MAKERS, Contender
from jformer.data.corpora import decode_lines, open_corpus, read_lines
from jformer.errors import UserError
from jformer.evaluation.scores import score

POLL = 0.2  # seconds between checks for a new checkpoint


@dataclasses.dataclass
class Run:
    minutes: dict[int, float]  # of each checkpoint, by step
    bleu: dict[int, float]  # of the checkpoints that the bisection scored, by step
    error: str = ""

    def record(self, bar: float) -> float | None:
        """Return the minutes to the first checkpoint that reaches the bar, or None."""
        reached = [step for step, bleu in self.bleu.items() if bleu >= bar]
        return self.minutes[min(reached)] if reached else None

    def curve(self) -> str:
        """Return the minutes and BLEU of each scored checkpoint."""
        scored = sorted(self.bleu.items())
        return " ".join(f"{self.minutes[step]:.1f}:{bleu:.1f}" for step, bleu in scored)


def main() -> None:
    parser = turns.make_parser(__doc__, rounds=1, contenders=[*MAKERS])
    parser.add_argument("--platform", choices=turns.PLATFORMS, default="cpu")
    parser.add_argument("--train", required=True, help="prefix of the training files")
    parser.add_argument("--validation", required=True, help="prefix of the validation files")
    parser.add_argument("--languages", default="en,de")
    parser.add_argument("--config", default="speedrun", help="config name, without a data set")
    parser.add_argument("--bar", type=float, default=35.0, help="BLEU to reach")
    parser.add_argument("--minutes", type=float, default=60, help="time limit of a contender")
    parser.add_argument("--joeynmt", default="python", help="Python of an environment with JoeyNMT")
    parser.add_argument(
        "--peers", default="", help="config changes for the peers: train.steps=3000,..."
    )
    options = parser.parse_args()
    turns.prepare_environment(options.platform)
    runs: dict[str, list[Run]] = {name: [] for name in options.contenders}
    with tempfile.TemporaryDirectory() as scratch:
        references = write_texts(Path(scratch), options)
        for number in range(options.rounds):
            for name in turns.in_order(options.contenders, number):
                folder = Path(scratch, f"{name.replace(' ', '_')}{number}")
                folder.mkdir()
                run = race(MAKERS[name](folder, options), folder, references, options)
                print(f"{name}: {run.error or run.curve()}", file=sys.stderr)
                runs[name].append(run)
    title = f"Minutes to {options.bar:g} BLEU, {options.config}, {options.platform}"
    turns.publish(title, table(runs, options.bar), runs, options)


def write_texts(folder: Path, options: argparse.Namespace) -> list[str]:
    """Write train.* and validation.* in lower case; return the target lines of validation."""
    languages = options.languages.split(",")
    for name, prefix in (("train", options.train), ("validation", options.validation)):
        for language, path in zip(languages, open_corpus(prefix, *languages).files, strict=True):
            lines = [line.lower() for line in decode_lines(read_lines(path), str(path))]
            write_lines(folder / f"{name}.{language}", lines)
            if name == "validation":
                write_lines(folder / f"one_pair.{language}", lines[:1])
    return lines


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def race(
    contender: Contender, folder: Path, references: list[str], options: argparse.Namespace
) -> Run:
    """Train and time each checkpoint; then find the first one that reaches the bar."""
    run = Run({}, {})
    log = folder / "log"
    with log.open("w") as file:
        began = time.monotonic()
        process = subprocess.Popen(
            contender.train, env=contender.environment, stdout=file, stderr=file
        )
        ended, minutes = False, 0.0
        while not ended and minutes < options.minutes:
            time.sleep(POLL)
            ended, minutes = process.poll() is not None, (time.monotonic() - began) / 60
            for step in contender.steps():
                run.minutes.setdefault(step, minutes)
        process.terminate()
        process.wait()
    if (ended and process.returncode) or not run.minutes:
        run.error = last_line(log) or f"exit status {process.returncode}"
        return run

    def reaches(step: int) -> bool:
        run.bleu[step] = bleu_of(contender, step, folder, references, options)
        return run.bleu[step] >= options.bar

    try:
        bisect.bisect_left(sorted(run.minutes), True, key=reaches)
    except UserError as error:
        run.error = str(error)
    return run


def bleu_of(
    contender: Contender,
    step: int,
    folder: Path,
    references: list[str],
    options: argparse.Namespace,
) -> float:
    """Translate with the checkpoints up to `step`, and score.

    Raises `UserError` if the translation fails or has the wrong number of lines.
    """
    source_language, target_language = options.languages.split(",")
    log, output = folder / "log", folder / f"output{step}"
    source = folder.parent / f"validation.{source_language}"
    steps = ",".join(map(str, contender.averaged(step)))
    command = contender.translate(str(source), steps, str(output))
    with log.open("w") as file:
        environment = contender.environment
        if subprocess.run(command, env=environment, stdout=file, stderr=file).returncode:
            raise UserError(last_line(log))
    outputs = output.read_text(encoding="utf-8").split("\n")[:-1]
    return score(outputs, [references], target_language)["bleu_moses_lowercase"]


def last_line(log: Path) -> str:
    """Return the last line of a log, the error message of a failed process."""
    return log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]


def table(runs: dict[str, list[Run]], bar: float) -> str:
    rows = []
    for name, each in runs.items():
        records = [record for run in each if (record := run.record(bar)) is not None]
        best = max((bleu for run in each for bleu in run.bleu.values()), default=0.0)
        minutes = turns.spread(records) if len(records) == len(each) else "not reached"
        errors = "; ".join(run.error for run in each if run.error)
        rows.append([name, minutes, f"{best:.2f}", errors or each[0].curve()])
    return turns.markdown(["", "minutes", "best BLEU", "minutes:BLEU of the first round"], rows)


if __name__ == "__main__":
    main()
