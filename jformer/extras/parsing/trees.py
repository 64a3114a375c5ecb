"""Treebanks in Penn bracketing, and their trees as the targets of a translation (Section 6.3).

A tree is linearised as in Vinyals et al. (2015): constituents become "(NP" and ")NP", and each word
becomes "XX", its tag or its number in the sentence. A parser is thus a translator whose source has
the words.

Trees are read as EVALB compares them: without empty elements, function tags and the root TOP.
"""

import dataclasses
import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

from jformer.config import Config
from jformer.data.corpora import Corpus, Row, decode_lines, read_lines
from jformer.errors import UserError
from jformer.extras.parsing.words import UNKNOWN

ANY_TAG = "XX"
ROOTS = ("", "TOP", "ROOT", "S1")
TOP = "TOP"  # the label of a root with several children
EMPTY = "-NONE-"  # the tag of unwritten elements, such as traces
MAX_DEPTH = 198  # nested constituents of an output; each uses some of Python's stack
PART = re.compile(r"\(\s*[^\s()]*|\)|[^\s()]+")  # a bracket with its label, or a word
FUNCTION = re.compile(r"(?<=.)[-=].*")  # the function tags of NP-SBJ-1, but not "-LRB-"
SPLITS = {"train": "train", "dev": "validation", "test": "test"}  # by their names in file names
FILE_NAME = re.compile(r"(?:(.+)\.)?(train|dev|test)\.mrg(?:\.gz)?")


@dataclasses.dataclass(frozen=True)
class Tree:
    """A constituent with its children, or a word, whose `label` is its tag."""

    label: str
    children: tuple["Tree", ...] = ()
    word: str = ""  # empty for a constituent

    def leaves(self) -> list["Tree"]:
        return [self] if self.word else [leaf for each in self.children for leaf in each.leaves()]

    def words(self) -> list[str]:
        return [leaf.word for leaf in self.leaves()]

    def __str__(self) -> str:
        """Return the tree in Penn bracketing."""
        inside = self.word or " ".join(map(str, self.children))
        return f"({self.label} {inside})"


def open_treebank(
    config: Config, with_train: bool, *, tags: Literal["XX", "keep", "number"] = "XX"
) -> dict[str, list[Corpus]]:
    """Return the corpora of train, validation and each test set, by the name of a split.

    A folder has files such as gum.train.mrg, gum.dev.mrg and gum.test.mrg.gz, the test set
    "gum.test". `tags` selects the token of a word in a linearised tree: XX, its tag (keep), or its
    number (number).
    """
    data = config.data
    if data.directory:
        splits: dict[str, list[Corpus]] = {}
        for path in sorted(Path(data.directory).glob("*")):
            if match := FILE_NAME.fullmatch(path.name):
                corpus, split = match.groups()
                name = f"{corpus}.test" if corpus and split == "test" else SPLITS[split]
                splits.setdefault(name, []).append(open_trees(str(path), tags))
    else:  # `open_corpora` adds data.train
        patterns = {"validation": data.validation, "test": data.test}
        splits = {split: [open_trees(files, tags)] for split, files in patterns.items() if files}
    if "validation" not in splits:
        reason = "must have files NAME.train.mrg and NAME.dev.mrg; or set config.data.validation"
        raise data.wrong("directory", reason)
    return splits


def open_trees(pattern: str, tags: str) -> Corpus:
    """Return the sentences and linearised trees of a file, or of a pattern as wsj/0[2-9]/*.mrg."""
    files = sorted(map(Path, glob.glob(pattern)))
    if not files:
        raise UserError(f"{pattern}: no file matches")

    def gold() -> Iterator[Tree]:
        for file in files:
            yield from trees_in(decode_lines(read_lines(file), str(file)), str(file))

    def rows() -> Iterator[Row]:
        return ((" ".join(tree.words()), linearise(tree, tags)) for tree in gold())

    # Messages count trees and not lines: a tree may take several lines.
    name = f"trees of {pattern}"
    return Corpus((name, name), tuple(files), rows, lambda: list(gold()))


def trees_in(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """Yield the trees in lines, each on one or more lines; trees without words are skipped.

    Raises `UserError` with the file's name and the line if the brackets do not form a tree.
    """
    # Open brackets: line, label, and constituents or words.
    stack: list[tuple[int, str, list[Any]]] = []
    for number, line in enumerate(lines, start=1):
        for part in PART.findall(line):
            if part[0] == "(":
                stack.append((number, part[1:].strip(), []))
            elif not stack:
                raise UserError(f"{name}:{number}: {part!r} is outside all brackets")
            elif part != ")":
                stack[-1][-1].append(part)
            else:
                done = closed(*stack.pop(), name)
                if stack:
                    stack[-1][-1].extend(done)
                elif done:
                    yield with_one_root(done)
    if stack:
        raise UserError(f"{name}:{stack[0][0]}: the tree that begins here lacks {len(stack)} ')'")


def closed(line: int, label: str, parts: list[Any], name: str) -> list[Tree]:
    """Return a constituent, or the words (usually one) with the tag of a pair of brackets."""
    words = [part for part in parts if isinstance(part, str)]
    if words and len(words) < len(parts):
        raise UserError(f"{name}:{line}: ({label} has {words[0]!r} without a tag, as in (NN word)")
    if words:
        return [Tree(label, word=word) for word in words if label != EMPTY]
    return [Tree(FUNCTION.sub("", label), tuple(parts))] if parts else []


def with_one_root(parts: Sequence[Tree]) -> Tree:
    """Return a tree without roots of one constituent; TOP is the root of several, or of a word."""
    while len(parts) == 1 and parts[0].label in ROOTS and not parts[0].word:
        parts = parts[0].children
    return parts[0] if len(parts) == 1 and not parts[0].word else Tree(TOP, tuple(parts))


def linearise(tree: Tree, tags: str) -> str:
    """Return the tree as tokens separated by spaces.

    A word becomes "XX"; with `tags` "keep" its tag, with "number" its number, counted from 1.
    """
    numbers = count(1)

    def tokens(part: Tree) -> list[str]:
        if part.word:
            return [{"XX": ANY_TAG, "keep": part.label, "number": str(next(numbers))}[tags]]
        inside = [token for child in part.children for token in tokens(child)]
        return [f"({part.label}", *inside, f"){part.label}"]

    return " ".join(tokens(tree))


def tree_of(text: str, words: Sequence[str]) -> tuple[Tree, bool]:
    """Return the tree of a linearised output for `words`, and whether the output needed no repair.

    Repair removes constituents without words. A closing bracket also closes open constituents
    within its own, and is ignored if its own is not open. Missing words are added at the end.
    Several roots get a common root TOP, and no constituent is deeper than `MAX_DEPTH`.
    """
    stack: list[tuple[str, list[Tree]]] = [("", [])]  # labels and children of open brackets
    left, tokens = list(reversed(words)), text.split()

    def close() -> str:
        label, children = stack.pop()
        if children:
            stack[-1][1].append(Tree(label, tuple(children)))
        return label

    for token in tokens:
        if token.startswith("("):
            if len(stack) <= MAX_DEPTH:
                stack.append((token[1:], []))
        elif token.startswith(")"):
            if any(label == token[1:] for label, _ in stack[1:]):
                while close() != token[1:]:
                    pass
        elif left:
            tag = ANY_TAG if token.isdecimal() or token == UNKNOWN else token
            stack[-1][1].append(Tree(tag, word=left.pop()))
    while len(stack) > 1:
        close()
    tree = with_one_root([*stack[0][1], *(Tree(ANY_TAG, word=word) for word in reversed(left))])
    tagged, numbered = (linearise(tree, tags).split() for tags in ("keep", "number"))
    well_formed = len(tokens) == len(tagged) and all(
        token in (tag, number) or (token, tag) == (UNKNOWN, ANY_TAG)
        for token, tag, number in zip(tokens, tagged, numbered, strict=True)
    )
    return tree, well_formed
