"""What README and docs/*.md have in code: blocks, command lines, and code within a line."""

import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.conftest import number_words, write_split

PAGES = [Path("README.md"), Path("CONTRIBUTING.md"), *sorted(Path("docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]*)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = (
    r"(?:srun )?(?:python -m (?:jformer\.main|experiments\.\w+|docs\.\w+\.\w+)|jformer)(?= |$)"
)
# What stands in capitals in a command line, and what it is in the folder of `lay_out`.
NAMED = {
    "DIR": "runs/tiny-phrases-en-de",
    "RUN": "runs/tiny-phrases-en-de",
    "PREFIX": "corpus",
    "FILE": "written.svg",
    "FOLDER": "exported",
    "GB": "1",
    "TEXT": "one",
    "ID": "1",
    "MULTI30K": "multi30k",
}


class Block(NamedTuple):
    place: str  # page:line
    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(f"{page}:{text.count(chr(10), 0, m.start()) + 1}", m[1], m[2] or "", m[3])
        for m in FENCE.finditer(text)
    ]


def commands(text: str) -> list[str]:
    """The commands of a block of shell, each as one line without its comment."""
    lines = [re.sub(r"\s#\s.*", "", line) for line in text.replace("\\\n", " ").splitlines()]
    return [part.strip() for line in lines for part in line.split("&&") if part.strip()]


def inline(page: Path) -> list[str]:
    """All code that stands within lines of text."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def synopses(page: Path) -> list[str]:
    """The command lines of text blocks: with all that stands in brackets, without what follows."""
    lines = "".join(block.text for block in blocks(page) if block.language == "text").splitlines()
    lines = [re.split(r"\s{2,}(?=[a-z])", line)[0] for line in lines if re.match(PROGRAMS, line)]
    return [re.sub(r"[\[\]]|(?<=\w)\|\w+", "", line).replace("...", "") for line in lines]


def all_commands() -> list[tuple[Path, str]]:
    """Every command line of our programs, wherever it stands."""
    found = []
    for page in PAGES:
        shell = [block.text for block in blocks(page) if block.language == "sh"]
        lines = [line for text in shell for line in commands(text)]
        lines += [*inline(page), *synopses(page)]
        lines = [re.sub(r".*?\| ", "", line) for line in lines]  # what is piped into a command
        found += [(page, line) for line in lines if re.match(PROGRAMS, line)]
    return found


def words(command: str) -> list[str]:
    """The arguments of a command line, with names of `lay_out` for those in capitals."""
    command = re.sub(PROGRAMS, "", re.sub(r"\s[<>]\s*\S+", "", command), count=1)
    return [
        re.sub(r"(?<![A-Z\w])[A-Z][A-Z\d]+(?=$|,)", lambda name: NAMED[name[0]], word)
        for word in shlex.split(command)
    ]


def lay_out(folder: Path) -> None:
    """Put into a folder what the commands of the documentation find there."""
    for name in ("configs", "experiments"):
        (folder / name).symlink_to(Path(name).absolute())
    for page in PAGES:
        for block in blocks(page):
            if block.title:
                (folder / block.title).write_text(block.text, encoding="utf-8")
    write_split(folder / "corpus", number_words(100, 400))
    shutil.copy(folder / "corpus.en", folder / "in")
    (folder / "runs").mkdir()
