"""Sentences of a small language, and what worse systems make of them."""

import random
import subprocess
import sys

WORDS = ["der", "die", "das", "Haus", "Hund", "und", "Ja,", "3,5", "km.", "rich-text", "well-to-do"]
WORDS += ["(ein)", "It's", "AT&T"]


def sentences(number: int, seed: int = 1, longest: int = 19) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, longest))) for _ in range(number)]


def worsened(lines: list[str], rate: float, seed: int = 2) -> list[str]:
    """Each word is another, or missing, at a rate."""
    rng = random.Random(seed)

    def changed(word: str) -> str:
        return word if rng.random() > rate else rng.choice(["", "", rng.choice(WORDS).upper()])

    return [" ".join(map(changed, line.split())) for line in lines]


def sacrebleu(folder, references, systems, *options) -> str:
    """What sacreBLEU's own command prints for files of these lines."""
    paths = []
    for number, lines in enumerate([*references, *systems]):
        paths.append(folder / f"lines{number}")
        paths[-1].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    cut = len(references)
    command = [sys.executable, "-m", "sacrebleu", *paths[:cut], "-i", *paths[cut:], *options]
    return subprocess.run(
        [*command, "-w", "6"], capture_output=True, text=True, encoding="utf-8", check=True
    ).stdout
