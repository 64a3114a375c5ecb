"""Constituency trees in Penn bracketing, and as the targets of a translation (Section 6.3).

A tree is linearised as in Vinyals et al. (2015): constituents become "(NP" and ")NP", and each word
becomes "XX", its tag or its number in the sentence. A parser is thus a translator whose source has
the words.

Trees are read as EVALB compares them: without empty elements, function tags and the root TOP.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from jformer.data.corpora import Corpus, Row, read_lines
from jformer.errors import UserError
from jformer.extras.parsing.words import UNKNOWN

ANY_TAG = "XX"
ROOTS = ("", "TOP", "ROOT", "S1")
TOP = "TOP"  # the label of a root with several children
EMPTY = "-NONE-"  # the tag of unwritten elements, such as traces
DEEPEST = 200  # levels of a tree; each uses some of Python's stack
DEEPEST_OUTPUT = DEEPEST - 2  # nested constituents; words and TOP are also levels
PART = re.compile(r"[()]|[^\s()]+")
FUNCTION = re.compile(r"(?<=.)[-=].*")  # the function tags of NP-SBJ-1, but not "-LRB-"


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


def read_trees(path: Path) -> Iterator[Tree]:
    """Yield the trees of a file."""
    return trees_in(read_lines(path), str(path))


def trees_in(lines: Iterable[bytes], name: str) -> Iterator[Tree]:
    """Yield the trees in lines, each on one or more lines; trees without words are skipped.

    Raises `UserError` with the file's name and the line if the brackets do not form a tree.
    """
    stack: list[tuple[str, list[Tree], list[str]]] = []  # labels, children, words of open brackets
    opened = 0  # the line where the tree begins
    previous = ""
    for number, line in enumerate(lines, start=1):
        place = f"{name}:{number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{place}: not UTF-8 ({error.reason}); fix the line") from error
        for part in PART.findall(text):
            if part == "(":
                opened = opened if stack else number
                stack.append(("", [], []))
                if len(stack) > DEEPEST:
                    raise UserError(f"{place}: the tree has more than {DEEPEST} levels")
            elif not stack:
                raise UserError(f"{place}: {part!r} is outside all brackets")
            elif part == ")":
                done = finished(*stack.pop(), place)
                if stack:
                    stack[-1][1].extend(done)
                elif tree := normalised(done[0] if len(done) == 1 else Tree("", done)):
                    yield tree
            elif previous == "(":
                stack[-1] = (part, [], [])
            else:
                stack[-1][2].append(part)
            previous = part
    if stack:
        raise UserError(f"{name}:{opened}: the tree that begins here lacks {len(stack)} ')'")


def finished(label: str, children: list[Tree], words: list[str], place: str) -> tuple[Tree, ...]:
    """Return a constituent, or the words (usually one) with the tag of a pair of brackets."""
    if words and children:
        raise UserError(
            f"{place}: ({label} has the word {words[0]!r} among constituents; put it into brackets "
            f"with its tag, as in (NN word)"
        )
    if not (words or children):
        raise UserError(f"{place}: ({label}) is empty; must have a word or constituents")
    if words:
        return tuple(Tree(label, word=word) for word in words)
    return (Tree(label, tuple(children)),)


def normalised(tree: Tree) -> Tree | None:
    """Return the tree as EVALB compares it; None if no word is left.

    A root of one constituent is removed, and any other root is labelled TOP.
    """
    kept = without_empty(tree)
    while kept and not kept.word and kept.label in ROOTS:
        if len(kept.children) > 1 or kept.children[0].word:
            return Tree(TOP, kept.children)
        kept = kept.children[0]
    return Tree(TOP, (kept,)) if kept and kept.word else kept


def without_empty(tree: Tree) -> Tree | None:
    """Return a tree without function tags, empty elements and constituents of only these."""
    if tree.word:
        return None if tree.label == EMPTY else tree
    children = tuple(kept for child in tree.children if (kept := without_empty(child)))
    label = FUNCTION.sub("", tree.label)
    return Tree(label, children) if children else None


def linearise(tree: Tree, tags: str) -> str:
    """Return the tree as tokens separated by spaces.

    A word becomes "XX"; with `tags` "keep" its tag, with "number" its number, counted from 1.
    """
    numbers = count(1)

    def tokens(part: Tree) -> Iterator[str]:
        if part.word:
            yield {"XX": ANY_TAG, "keep": part.label, "number": str(next(numbers))}[tags]
            return
        yield f"({part.label}"
        for child in part.children:
            yield from tokens(child)
        yield f"){part.label}"

    return " ".join(tokens(tree))


def escaped(sentence: str) -> str:
    """Return a sentence as treebanks have it, with -LRB- and -RRB- for round brackets."""
    return sentence.replace("(", "-LRB-").replace(")", "-RRB-")


def as_target(text: str, sentence: str, tags: str) -> str:
    """Linearise a tree in Penn bracketing; a linearised tree is returned unchanged.

    Raises `UserError` if the brackets do not form a tree, or if the tree has other words.
    """
    if not text.rstrip().endswith(")"):
        return text
    trees = [*trees_in([text.encode()], "target")]
    if [tree.words() for tree in trees] != [sentence.split()]:
        raise UserError(f"target {text!r:.100}: must be a tree of the words {sentence!r:.100}")
    return linearise(trees[0], tags)


def tree_of(text: str, words: Sequence[str]) -> tuple[Tree, bool]:
    """Return the tree of a linearised output for `words`, and whether the output needed no repair.

    Repair removes constituents without words. A closing bracket also closes open constituents
    within its own, and is ignored if its own is not open. Missing words are added at the end.
    Several roots get a common root TOP, and no constituent is deeper than `DEEPEST_OUTPUT`.
    """
    roots: list[Tree] = []
    stack: list[tuple[str, list[Tree]]] = [("", roots)]  # labels and children of open brackets
    left, well_formed = list(reversed(words)), True

    def close() -> bool:
        label, children = stack.pop()
        if children:
            stack[-1][1].append(Tree(label, tuple(children)))
        return bool(children)

    for token in text.split():
        if token.startswith("("):
            if len(stack) <= DEEPEST_OUTPUT:
                stack.append((token[1:], []))
            else:
                well_formed = False
        elif not token.startswith(")"):
            number = len(words) - len(left) + 1
            well_formed &= bool(left) and len(stack) > 1
            well_formed &= not token.isdecimal() or int(token) == number
            if left:
                tag = ANY_TAG if token.isdecimal() or token == UNKNOWN else token
                stack[-1][1].append(Tree(tag, word=left.pop()))
        elif any(label == token[1:] for label, _ in stack[1:]):
            well_formed &= stack[-1][0] == token[1:]
            while stack[-1][0] != token[1:]:
                close()
            well_formed &= close()
        else:
            well_formed = False
    well_formed &= len(stack) == 1 and not left
    while len(stack) > 1:
        close()
    roots += [Tree(ANY_TAG, word=word) for word in reversed(left)]
    if len(roots) == 1 and not roots[0].word:
        return roots[0], well_formed
    return Tree(TOP, tuple(roots)), False


def open_trees(files: list[Path], tags: str) -> Corpus:
    """Return sentences, with spaces between words, and their linearised trees."""

    def rows() -> Iterator[Row]:
        for path in files:
            for tree in read_trees(path):
                yield " ".join(tree.words()), linearise(tree, tags)

    # Messages count trees and not lines: a tree may take several lines.
    name = f"trees of {files[0]}" + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    return Corpus(
        (name, name), tuple(files), rows, lambda: [tree for p in files for tree in read_trees(p)]
    )
