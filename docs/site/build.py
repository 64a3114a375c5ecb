"""Build the documentation site, without network access (extra `docs`).

    python -m docs.site.build [FOLDER]        FOLDER/site/index.html; by default in build/docs

The pages are docs/*.md and a few other files of the project. `reference.py` generates the content
that replaces markers such as `<!-- config keys -->`. Links to other files of the project point to
GitHub.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from docs.site.reference import MARKERS
from jformer.cli import exit_status
from jformer.errors import RunError, UserError, import_extra

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SETTINGS = "zensical.toml"
REPOSITORY = "https://github.com/jformer/jformer"
PAGES = {path.name: path for path in sorted((ROOT / "docs").glob("*.md"))} | {
    "records.md": ROOT / "experiments/README.md",
    "notes.md": ROOT / "experiments/notes.md",
    "changelog.md": ROOT / "CHANGELOG.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
}
NAMES = {path: name for name, path in PAGES.items()}
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
FILE = re.compile(r"(?<!\[)`([\w/]+/\w+\.py)`")  # a file name outside of a link
UNSEARCHED = ("changelog.md",)  # it has every word of the guides
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def address(target: str, source: Path) -> str:
    """Return the address in the site for a relative link of the file `source`."""
    path = Path(os.path.normpath(source.parent / target))
    if not path.exists():
        raise RunError(f"{source.relative_to(ROOT)}: broken link to {target}; correct the path")
    if path in NAMES:
        return NAMES[path]
    if path.parent == ROOT / "docs/pictures":
        return f"pictures/{path.name}"
    kind = "tree" if path.is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{path.relative_to(ROOT)}"


def with_links(text: str, source: Path) -> str:
    """Return the text of the file `source` with its links rewritten for the site."""
    parts = FENCE.split(text)  # odd parts are code blocks, whose links stay unchanged
    for n in range(0, len(parts), 2):
        parts[n] = LINK.sub(lambda link: address(link[1], source) + (link[2] or ""), parts[n])
        parts[n] = FILE.sub(lambda name: file_link(name[1]), parts[n])
    return "".join(parts)


def file_link(name: str) -> str:
    """Return a link to the file on GitHub if it is in the project, and its name otherwise."""
    for folder in ("", "jformer/", "tests/"):
        if (ROOT / folder / name).is_file():
            return f"[`{name}`]({REPOSITORY}/blob/main/{folder}{name})"
    return f"`{name}`"


def page(source: Path) -> str:
    text = with_links(source.read_text(encoding="utf-8"), source)
    for marker, content in MARKERS.items():
        if (mark := f"<!-- {marker} -->") in text:
            text = text.replace(mark, with_links(content(), ROOT / "README.md"))
    if NAMES[source] in UNSEARCHED:
        text = f"---\nsearch:\n  exclude: true\n---\n{text}"
    return text


def build(folder: Path) -> int:
    """Write FOLDER/pages and the site FOLDER/site; replace earlier versions."""
    import_extra("zensical", "the site", "-e '.[docs]'")
    if folder.exists() and any(folder.iterdir()) and not (folder / SETTINGS).exists():
        raise UserError(f"{folder}: must be empty or an earlier site; choose another folder")
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs/pictures", pages / "pictures")
    shutil.copytree(HERE / "assets", pages / "assets")
    for name, source in PAGES.items():
        (pages / name).write_text(page(source), encoding="utf-8")
    shutil.copy(HERE / SETTINGS, folder)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    status = subprocess.run(command, cwd=folder).returncode
    if status == 0:
        print(folder / "site/index.html")
    return status


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/docs"))
    options = parser.parse_args()
    sys.exit(exit_status("docs.site.build", lambda: build(options.folder), debug=False))
