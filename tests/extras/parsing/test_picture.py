"""The picture of a tree, by the places of its texts and lines."""

import random
from collections import defaultdict
from xml.etree import ElementTree

from jformer.extras.parsing.picture import ADVANCE, tree_svg
from jformer.extras.parsing.trees import Tree, trees_in

SVG = "{http://www.w3.org/2000/svg}"


def random_tree(rng, depth):
    label = rng.choice(["S", "NP", "WHADVP"])
    if not depth or rng.random() < 0.2:
        return Tree(label, word=rng.choice(["a", "R&D", "internationalisation"]))
    children = [random_tree(rng, depth - 1) for _ in range(rng.randint(1, 4))]
    return Tree(label, tuple(children))


def labels(tree):
    return [tree.label, *(label for child in tree.children for label in labels(child))]


def test_all_labels_and_words_are_in_the_picture_and_none_covers_another():
    (tree,) = trees_in([str(random_tree(random.Random(1), 4))], "a tree")
    picture = ElementTree.fromstring(tree_svg(str(tree)))
    by_line, centers = defaultdict(list), set()
    for text in picture.iter(f"{SVG}text"):
        x, y, half = float(text.get("x")), float(text.get("y")), len(text.text) * ADVANCE / 2
        by_line[y].append((x - half, x + half, text.text))
        centers.add(x)
        assert 0 <= y <= float(picture.get("height"))
    for line in by_line.values():
        line.sort()
        ends = [0, *(end for _, end, _ in line)]
        assert all(begin >= end for (begin, _, _), end in zip(line, ends, strict=False))
        assert ends[-1] <= float(picture.get("width"))
    assert [text for _, _, text in by_line[max(by_line)]] == tree.words()
    shown = [text for line in by_line.values() for _, _, text in line]
    assert sorted(shown) == sorted(labels(tree) + tree.words())
    # A line to each constituent but the root, and to each word from its tag.
    lines = [*picture.iter(f"{SVG}line")]
    assert len(lines) == len(shown) - 1
    assert {float(line.get(x)) for line in lines for x in ("x1", "x2")} <= centers
