"""The picture of a constituency tree, as SVG."""

from html import escape

from jformer.extras.parsing.trees import Tree, trees_in

FONT = 13  # pixels; the font is monospaced, so that widths are known
ADVANCE = 0.6 * FONT  # the width of a character
GAP = 14  # between neighbours
LEVEL = 40  # from a constituent to its children


def tree_svg(text: str) -> str:
    """Return an SVG of one tree in Penn bracketing, such as a parser's output."""
    (tree,) = trees_in([text], "tree")
    lowest = (depth(tree) - 1) * LEVEL + 2 * FONT
    parts, _ = draw(tree, GAP, 2 * FONT, lowest)
    width, height = round(width_of(tree) + 2 * GAP), lowest + 2 * FONT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="{FONT}" '
        f'text-anchor="middle"><rect width="{width}" height="{height}" fill="white"/>'
        f"{parts}</svg>\n"
    )


def depth(tree: Tree) -> int:
    """Return the number of levels, with one for the word below its tag."""
    return 2 if tree.word else 1 + max(map(depth, tree.children))


def width_of(tree: Tree) -> float:
    """Return the width of a tree in pixels: of its label, or of its word or children."""
    inside = sum(width_of(child) + GAP for child in tree.children) - GAP
    return max(len(tree.label) * ADVANCE, len(tree.word) * ADVANCE, inside)


def draw(tree: Tree, left: float, y: float, lowest: float) -> tuple[str, float]:
    """Return the SVG of a tree to the right of `left`, with words at y = `lowest`, and its x."""
    x = left + width_of(tree) / 2
    parts = write(tree.label, x, y, "#1a5fb4")
    if tree.word:
        return parts + line(x, y, x, lowest) + write(tree.word, x, lowest, "#222222"), x
    left = x - (sum(width_of(child) + GAP for child in tree.children) - GAP) / 2
    for child in tree.children:
        drawn, center = draw(child, left, y + LEVEL, lowest)
        parts += drawn + line(x, y, center, y + LEVEL)
        left += width_of(child) + GAP
    return parts, x


def line(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return a line from below a label at (x, y) to above another."""
    ends = f'x1="{x:.1f}" y1="{y + 5:.1f}" x2="{to_x:.1f}" y2="{to_y - FONT:.1f}"'
    return f'<line {ends} stroke="#999999"/>'


def write(text: str, x: float, y: float, color: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}">{escape(text)}</text>'
