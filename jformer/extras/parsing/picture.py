"""The picture of a constituency tree, as SVG."""

from html import escape

from jformer.errors import UserError
from jformer.extras.parsing.trees import Tree, trees_in

FONT = 13  # pixels; the font is monospaced, so that widths are known
ADVANCE = 0.6 * FONT  # the width of a character
GAP = 14  # between neighbours
LEVEL = 40  # from a constituent to its children
COLORS = {"label": "#1a5fb4", "word": "#222222", "line": "#999999"}


def tree_svg(text: str) -> str:
    """Return an SVG of one tree in Penn bracketing, such as a parser's output.

    Raises `UserError` for text that is not one tree.
    """
    trees = [*trees_in([text.encode()], "tree")]
    if len(trees) != 1:
        raise UserError(f"a picture must have one tree, but {text[:60]!r} has {len(trees)}")
    parts: list[str] = []
    lowest = (depth(trees[0]) - 1) * LEVEL + 2 * FONT
    draw(trees[0], GAP, 2 * FONT, lowest, parts)
    width, height = round(width_of(trees[0]) + 2 * GAP), lowest + 2 * FONT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="{FONT}" '
        f'text-anchor="middle"><rect width="{width}" height="{height}" fill="white"/>'
        f"{''.join(parts)}</svg>\n"
    )


def depth(tree: Tree) -> int:
    """Return the number of levels, with one for the word below its tag."""
    return 2 if tree.word else 1 + max(depth(child) for child in tree.children)


def width_of(tree: Tree) -> float:
    """Return the width of a tree in pixels: of its label, or of its word or children."""
    inside = len(tree.word) * ADVANCE
    if tree.children:
        inside = sum(width_of(child) + GAP for child in tree.children) - GAP
    return max(len(tree.label) * ADVANCE, inside)


def draw(tree: Tree, left: float, y: float, lowest: float, parts: list[str]) -> float:
    """Add a tree to the right of `left`, with words at y = `lowest`; return its label's x."""
    x = left + width_of(tree) / 2
    parts.append(write(tree.label, x, y, "label"))
    if tree.word:
        parts.append(line(x, y, x, lowest) + write(tree.word, x, lowest, "word"))
        return x
    inside = sum(width_of(child) + GAP for child in tree.children) - GAP
    left = x - inside / 2
    for child in tree.children:
        center = draw(child, left, y + LEVEL, lowest, parts)
        parts.append(line(x, y, center, y + LEVEL))
        left += width_of(child) + GAP
    return x


def line(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return a line from below a label at (x, y) to above another."""
    ends = f'x1="{x:.1f}" y1="{y + 5:.1f}" x2="{to_x:.1f}" y2="{to_y - FONT:.1f}"'
    return f'<line {ends} stroke="{COLORS["line"]}"/>'


def write(text: str, x: float, y: float, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{COLORS[kind]}">{escape(text)}</text>'
