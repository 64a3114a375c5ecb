"""The documentation as a site: built whole, its links, its references, and in a real browser."""

import functools
import http.server
import re
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from jformer.config import Config
from jformer.main import COMMANDS
from jformer.schema import flatten

pytestmark = pytest.mark.docs
pytest.importorskip("zensical", reason="needs the extra docs")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
# Opens the search, types, and leaves in the page what is found.
SEARCH = """<script>
const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
addEventListener("load", async () => {
  document.querySelector(".md-search__button").click();
  await wait(2);
  const roots = [...document.querySelectorAll("*")].map((element) => element.shadowRoot);
  const input = roots.find((root) => root?.querySelector("input")).querySelector("input");
  input.value = "label_smoothing";
  input.dispatchEvent(new Event("input", { bubbles: true }));
  await wait(3);
  document.body.append(...input.getRootNode().querySelectorAll("a"));
});
</script>"""


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


def test_every_page_has_its_place_in_the_navigation(pages):
    named = set(re.findall(r'"(\w+)\.md"', Path("docs/site/zensical.toml").read_text()))
    assert {path.stem for path in Path("docs").glob("*.md")} < named
    assert pages.keys() == {f"{name}.html" for name in (*named, "404")}


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


@pytest.fixture
def address(site):
    """The site on a server."""
    handler = functools.partial(QuietHandler, directory=site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def browse(address):
    """Return the page as a browser without network has it in the end, and what its console has."""
    ended = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--virtual-time-budget=10000", "--dump-dom", address,
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ended.stdout, [line for line in ended.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
@pytest.mark.parametrize("name", ["index.html", "config.html"])
def test_a_browser_without_network_has_no_complaint(address, name):
    shown, console = browse(f"{address}/{name}")
    assert console == []
    assert 'class="js' in shown or "js " in shown[:200]


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_a_site_that_is_opened_from_its_folder_can_be_searched(site):
    page = site / "search.html"
    page.write_text((site / "index.html").read_text(encoding="utf-8") + SEARCH, encoding="utf-8")
    shown, console = browse(page.as_uri())
    assert console == []
    assert re.search(r'href="[^"]*config\.html\?h=', shown)


def test_a_file_that_is_named_in_code_is_a_link(site):
    text = (site / "paper_map.html").read_text()
    for path in ("jformer/model/layers.py", "tests/model/test_parts.py", "configs/base.py"):
        assert f'href="https://github.com/jformer/jformer/blob/main/{path}"' in text


def test_a_folder_with_other_files_is_not_built_into(tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "own.txt").write_text("kept")
    command = [sys.executable, "-m", "docs.site.build", tmp_path]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 2
    assert str(tmp_path) in built.stderr
    assert (tmp_path / "pages" / "own.txt").read_text() == "kept"
