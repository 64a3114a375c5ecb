"""The tables of results agree with the records that they link to."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

TABLES = [Path("README.md"), Path("experiments/README.md")]
LINK = re.compile(r"\[[^\]]*\]\(([^)]*)\)")
FIGURE = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
RECORDS = Path("experiments/records")


def rows(page):
    """The rows that link to a record: their text without links and code, and the record's text."""
    for line in page.read_text(encoding="utf-8").splitlines():
        for target in LINK.findall(line):
            record = (page.parent / target).resolve()
            if line.startswith("|") and record.parent.parent == RECORDS.resolve():
                yield re.sub(r"`[^`]*`", "", LINK.sub("", line)), record.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", TABLES, ids=str)
def test_every_figure_of_a_row_is_in_the_record_that_it_links_to(page):
    found = list(rows(page))
    assert found
    for row, record in found:
        assert {*FIGURE.findall(row)} <= {*FIGURE.findall(record)}, row


def test_every_record_is_in_the_table_and_has_forty_lines_at_most():
    page = Path("experiments/README.md").read_text(encoding="utf-8")
    for record in RECORDS.glob("*/README.md"):
        assert f"({record.relative_to('experiments')})" in page
        assert len(record.read_text(encoding="utf-8").splitlines()) <= 40, record
