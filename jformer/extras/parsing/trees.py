"""Constituency trees in Penn bracketing, and as the targets of a translation (Section 6.3).

A tree is linearised as by Vinyals et al. (2015): constituents as "(NP" and ")NP", and no words:
each stands as "XX", as its tag or as its number in the sentence. So a parser is a translator whose
source has the words.

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
EMPTY = "-NONE-"  # the tag of what is not written, as traces
DEEPEST = 200  # levels of a tree, of which each takes some of Python's stack
DEEPEST_OUTPUT = DEEPEST - 2  # constituents within each other; words and TOP are levels, too
PART = re.compile(r"[()]|[^\s()]+")
FUNCTION = re.compile(r"(?<=.)[-=].*")  # of NP-SBJ-1; "-LRB-" has none


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
    """Yield the trees in lines, each on one or many of them; those without words are left out.

    Raises `UserError` with the file's name and the line for brackets that are none of a tree.
    """
    stack: list[tuple[str, list[Tree], list[str]]] = []  # label, children and words of open ones
    opened = 0  # the line where the tree begins
    previous = ""
    for number, line in enumerate(lines, start=1):
        place = f"{name}:{number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{place}: not UTF-8 ({error.reason}); mend it") from error
        for part in PART.findall(text):
            if part == "(":
                opened = opened if stack else number
                stack.append(("", [], []))
                if len(stack) > DEEPEST:
                    raise UserError(f"{place}: a tree of more than {DEEPEST} levels")
            elif not stack:
                raise UserError(f"{place}: {part!r} is outside of all brackets")
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
    """Return a constituent, or the words with the tag of a pair of brackets, mostly one."""
    if words and children:
        raise UserError(
            f"{place}: ({label} has {words[0]!r} beside constituents; a word needs brackets with "
            f"its tag, as in (NN word)"
        )
    if not (words or children):
        raise UserError(f"{place}: ({label}) is empty; it needs a word or constituents")
    if words:
        return tuple(Tree(label, word=word) for word in words)
    return (Tree(label, tuple(children)),)


def normalised(tree: Tree) -> Tree | None:
    """Return the tree as EVALB compares it; None if no word is left.

    A root of one constituent is left out, and any other is labelled TOP.
    """
    kept = without_empty(tree)
    while kept and not kept.word and kept.label in ROOTS:
        if len(kept.children) > 1 or kept.children[0].word:
            return Tree(TOP, kept.children)
        kept = kept.children[0]
    return Tree(TOP, (kept,)) if kept and kept.word else kept


def without_empty(tree: Tree) -> Tree | None:
    """Return a tree without function tags, empty elements and constituents of these alone."""
    if tree.word:
        return None if tree.label == EMPTY else tree
    children = tuple(kept for child in tree.children if (kept := without_empty(child)))
    label = FUNCTION.sub("", tree.label)
    return Tree(label, children) if children else None


def linearise(tree: Tree, tags: str) -> str:
    """Return the tree as tokens with spaces between.

    A word is "XX", with `tags` "keep" its tag, with "number" its number, from 1.
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
    """Return a tree in Penn bracketing linearised, and a linearised one as it is.

    Raises `UserError` for brackets that are none of a tree, and for a tree of other words.
    """
    if not text.rstrip().endswith(")"):
        return text
    trees = [*trees_in([text.encode()], "target")]
    if [tree.words() for tree in trees] != [sentence.split()]:
        raise UserError(f"target {text!r:.100}: is no tree of the words {sentence!r:.100}")
    return linearise(trees[0], tags)


def tree_of(text: str, words: Sequence[str]) -> tuple[Tree, bool]:
    """Return the tree of a linearised output for `words`, and whether the output was one itself.

    Where it was none, constituents without words are left out, a closing bracket closes what is
    open within its constituent, or nothing if there is none, and words without a tag stand at the
    end. Several roots become one, labelled TOP, and no constituent is deeper than trees are read.
    """
    roots: list[Tree] = []
    stack: list[tuple[str, list[Tree]]] = [("", roots)]  # labels and children of what is open
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
    """Return sentences, their words with spaces between, and their linearised trees."""

    def rows() -> Iterator[Row]:
        for path in files:
            for tree in read_trees(path):
                yield " ".join(tree.words()), linearise(tree, tags)

    # Messages count trees and not lines: a tree may take several lines.
    name = f"trees of {files[0]}" + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    return Corpus(
        (name, name), tuple(files), rows, lambda: [tree for p in files for tree in read_trees(p)]
    )
