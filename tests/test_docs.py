"""The map of the paper names files, symbols and tests that exist."""

import re
from pathlib import Path

import pytest

MAP = Path("docs/paper_map.md").read_text()
TESTS = {path: path.read_text() for path in Path("tests").rglob("test_*.py")}


def test_every_test_that_the_map_names_exists():
    names = set(re.findall(r"`(test_\w+)`", MAP))
    assert len(names) > 40
    for name in names:
        assert any(f"def {name}(" in text for text in TESTS.values()), name


def test_every_file_that_the_map_names_exists():
    files = set(re.findall(r"`([\w/]+\.(?:py|md))\b", MAP))
    assert len(files) > 20
    for file in files:
        assert any(Path(root, file).is_file() for root in (".", "jformer", "tests")), file


@pytest.mark.parametrize("row", re.findall(r"^\| .*`\w[\w/]*\.py` (?:`\w+`,? ?)+.*$", MAP, re.M))
def test_every_symbol_beside_a_file_stands_in_it(row):
    for file, symbols in re.findall(r"`(\w[\w/]*\.py)` ((?:`[\w.]+`,? ?)+)", row):
        [path] = [p for root in ("jformer", "tests", ".") if (p := Path(root, file)).is_file()]
        for symbol in re.findall(r"`([\w]+)`", symbols):
            defined = rf"(def|class) {symbol}\b|^{symbol}\b.* ="
            assert re.search(defined, path.read_text(), re.MULTILINE), f"{symbol} in {file}"


def test_all_forty_rows_and_their_tests_are_there():
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", MAP, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 41))
    for number, tests in rows:
        assert re.search(r"`test_\w+`|`[\w/]+\.py`|numpy twin", tests), number
