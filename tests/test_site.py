"""The documentation as a site: built whole, with its links and its references."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from jformer.config import Config
from jformer.main import COMMANDS
from jformer.schema import flatten

pytestmark = pytest.mark.docs
pytest.importorskip("zensical", reason="needs the extra docs")

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """The ids, the links and the assets of a page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.assets = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids.add(values.get("id"))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if LOADED.get(tag) in values:
            self.assets.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "docs.site.build", folder]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "No issues found" in built.stdout + built.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site):
    return {path.name: Page(path) for path in site.glob("*.html")}


def test_every_internal_link_and_anchor_leads_somewhere(site, pages):
    checked = 0
    for name, page in pages.items():
        for link in (*page.links, *page.assets):
            parts = urlsplit(link)
            if parts.scheme or name == "404.html":  # which is served under any address
                continue
            target = unquote(parts.path) or name
            assert (site / target).exists(), f"{name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{name}: {link}"
            checked += 1
    assert checked > 500


def test_every_link_to_github_is_of_a_file_that_is_there(pages):
    files = set()
    for page in pages.values():
        for link in page.links:
            if match := re.fullmatch(r".*jformer/jformer/(?:blob|tree)/main/([^#]*)(#.*)?", link):
                files.add(match[1])
    assert len(files) > 5
    assert [file for file in files if not Path(file).exists()] == []


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for name, page in pages.items():
        assert [asset for asset in page.assets if re.match(r"(\w+:)?//", asset)] == [], name
    for path in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", path.read_text()), path


def test_every_key_and_every_command_is_in_the_reference(pages):
    assert flatten(Config()).keys() <= pages["config.html"].ids
    assert COMMANDS.keys() <= pages["command_line.html"].ids
