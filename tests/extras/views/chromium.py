"""Pages in a headless Chromium."""

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")


def open_page(path: Path, *flags: str) -> tuple[str, str]:
    """Return the document as its scripts have left it, and what Chromium has logged."""
    assert CHROMIUM
    ended = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            "--virtual-time-budget=5000", *flags, "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=60,  # a dialog would wait for ever
    )  # fmt: skip
    return ended.stdout, ended.stderr
