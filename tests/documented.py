"""What README, docs/*.md and docstrings have in code: blocks, command lines, code within a line.

A block of `sh` or `python` is to be pasted, `text` is a synopsis of commands or a file with a
title, and `output` is all else: what a program prints, or a list.
"""

import ast
import gzip
import re
import shlex
import shutil
import textwrap
from pathlib import Path
from typing import NamedTuple

from tests.conftest import number_words, write_split

PAGES = [Path("README.md"), Path("CONTRIBUTING.md"), *sorted(Path("docs").glob("*.md"))]
RECORDS = [
    Path("experiments/README.md"),
    Path("experiments/notes.md"),
    *sorted(Path("experiments/records").glob("*/*.md")),
    *sorted(Path("experiments/models").glob("*/README.md")),
]
MODULES = [*sorted(Path("configs").glob("*.py")), *sorted(Path("experiments").rglob("*.py"))]
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]*)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = (
    r"(?:srun )?(?:python -m (?:jformer\.main|experiments(?:\.\w+)+|docs\.\w+\.\w+)|jformer)(?= |$)"
)
OTHER_PROGRAMS = {
    "cd", "curl", "diff", "echo", "gcloud", "git", "lint-imports", "mkdir", "mypy",
    "pip", "pytest", "ruff", "tar", "tensorboard", "zcat",
}  # fmt: skip
# Names in capitals in a command line, and their values in the folder of `lay_out`.
NAMED = {
    "DIR": "runs/tiny-phrases-en-de",
    "RUN": "runs/tiny-phrases-en-de",
    "PREFIX": "corpus",
    "FILE": "written.svg",
    "FOLDER": "exported",
    "GB": "1",
    "TEXT": "one",
    "MULTI30K": "multi30k",
    **dict.fromkeys(("PATTERN", "PYTHON", "VALUE", "INPUT", "STEP", "OUTPUT"), "one"),
    **dict.fromkeys(("NAME", "SIZE"), "one"),
}
NAMED_ON = {"docs/parsing.md": {"DIR": "runs/parser", "RUN": "runs/second", "FOLDER": "treebank"}}
TREE = "(S (NP (DT the) (NN {})) (VP (VBZ sees) (NP (DT a) (NN {}))) (. .))"


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
    """The commands of a block of shell as bash reads them, each as one line without its comment.

    A line that is not continued by a backslash is a command of its own.
    """
    lines = [re.sub(r"\s#\s.*", "", line) for line in text.replace("\\\n", " ").splitlines()]
    lines = [re.sub(r"^[A-Z_]+=\w+ ", "", line) for line in lines]  # of the environment
    return [part.strip() for line in lines for part in line.split("&&") if part.strip()]


def inline(page: Path) -> list[str]:
    """All code that stands within lines of text."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def synopses(text: str) -> list[str]:
    """The command lines of a synopsis: with all that stands in brackets, without what follows."""
    lines = [re.split(r"\s{2,}(?=[(a-z])", line)[0] for line in text.splitlines()]
    return [re.sub(r"[\[\]]|(?<=\w)\|\w+", "", line).replace("...", "") for line in lines]


def docstring_commands(module: Path) -> list[str]:
    """The command lines in a module's docstring, as it prints them."""
    doc = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    found = []
    for paragraph in doc.split("\n\n"):
        text = textwrap.dedent(paragraph)
        if not paragraph.startswith("    ") or not re.match(PROGRAMS, text):
            continue
        if "[" in text:  # a synopsis, which nobody pastes: an indented line continues
            text = re.sub(r"\\?\n +", " ", text)
        found += [line for part in commands(text) for line in synopses(part)]
    return found


def shell_commands(source: Path) -> list[str]:
    """All commands in the blocks of a page, or in the docstring of a module."""
    if source.suffix == ".py":
        return docstring_commands(source)
    found = []
    for block in blocks(source):
        if block.language == "sh":
            found += commands(block.text)
        elif block.language == "text" and not block.title:
            found += synopses(block.text.replace("\\\n", " "))
    return found


def all_commands() -> list[tuple[Path, str]]:
    """Every command line of our programs, wherever it stands."""
    found = []
    for source in (*PAGES, *RECORDS, *MODULES):
        lines = shell_commands(source)
        lines += inline(source) if source.suffix == ".md" else []
        lines = [re.sub(r".*?\| ", "", line) for line in lines]  # what is piped into a command
        found += [(source, line) for line in lines if re.match(PROGRAMS, line)]
    return found


def words(command: str, page: str = "") -> list[str]:
    """The arguments of a command line, with names of `lay_out` for those in capitals."""
    command = re.sub(PROGRAMS, "", re.sub(r"\s[<>]\s*\S+", "", command), count=1)
    values = {**NAMED, **NAMED_ON.get(page, {})}
    return [
        re.sub(r"(?<![A-Z\w])[A-Z][A-Z\d]+(?=$|,)", lambda name: values[name[0]], word)
        for word in shlex.split(command)
    ]


def as_pasted(command: str, page: str) -> str:
    """A line of bash, with names of `lay_out` for those in capitals."""
    for name, value in {**NAMED, **NAMED_ON.get(page, {})}.items():
        command = re.sub(rf"\b{name}\b", value, command)
    return command


def lay_out(folder: Path) -> None:
    """Put into a folder what the commands of the documentation find there."""
    for name in ("configs", "experiments"):
        (folder / name).symlink_to(Path(name).absolute())
    for page in PAGES:
        for block in blocks(page):
            if block.title:
                (folder / block.title).write_text(block.text, encoding="utf-8")
    write_split(folder / "corpus", number_words(100, 160))
    shutil.copy(folder / "corpus.en", folder / "in")
    (folder / "runs").mkdir()
    lay_out_trees(folder)


def lay_out_trees(folder: Path) -> None:
    """Two corpora of a treebank, and the files that docs/parsing.md names."""
    nouns = ("cat", "dog", "bird", "fox", "owl")
    trees = [f"{TREE.format(first, second)}\n" for first in nouns for second in nouns]
    few = "".join(trees[:4])
    (folder / "treebank").mkdir()
    for corpus in ("gum", "craft"):
        zipped = folder / "treebank" / f"{corpus}.train.mrg.gz"
        zipped.write_bytes(gzip.compress("".join(trees * 4).encode()))
        for split in ("dev", "test"):
            (folder / "treebank" / f"{corpus}.{split}.mrg").write_text(few)
    for section in ("02", "10", "20", "22", "23"):
        (folder / "wsj" / section).mkdir(parents=True)
        (folder / "wsj" / section / "wsj_0001.mrg").write_text(few)
    (folder / "test.mrg").write_text(few)
    for name in ("words.txt", "more.txt"):
        (folder / name).write_text("the cat sees a dog .\n")
