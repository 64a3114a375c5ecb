"""A folder for what is made of text once and read many times: vocabularies and token ids.

An entry is a folder, named by a hash of all that its content depends on: the bytes of the files,
the vocabulary, the settings. It is written under another name and renamed when it is whole, under
a lock: a kill leaves no half entry, and of two runs at once the second waits for the first.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from jformer.config import DataConfig, UserError
from jformer.data.corpora import Corpus

log = logging.getLogger(__name__)

VERSION = 1  # of the format: another one makes new entries


def cache_folder(data: DataConfig) -> Path:
    if data.cache:
        return Path(data.cache)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jformer"
    except RuntimeError as error:
        raise UserError(
            "config.data.cache is empty, and this user has no home directory for a cache; "
            "set --config.data.cache=FOLDER"
        ) from error


def content_hashes(corpora: list[Corpus]) -> list[tuple[str, str]]:
    """Each file, or place of text in memory, with a hash of every byte of it.

    A file that changed in any way is another corpus.
    """

    def of_file(path: Path) -> str:
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error

    files = [path for corpus in corpora for path in corpus.files]
    with ThreadPoolExecutor(2) as pool:
        hashes = list(zip(map(str, files), pool.map(of_file, files), strict=True))
    for corpus in corpora:
        if corpus.split is not None:
            text = json.dumps([corpus.split.sources, corpus.split.targets])
            hashes.append((corpus.places[0], hashlib.sha256(text.encode()).hexdigest()))
    return hashes


def content_hash(corpora: list[Corpus]) -> str:
    """The hashes of all text, for what is made of it."""
    return " ".join(content for _, content in content_hashes(corpora))


def entry(data: DataConfig, kind: str, depends_on: Any, build: Callable[[Path], None]) -> Path:
    """The folder of an entry, built if it is not there."""
    key = hashlib.sha256(json.dumps([VERSION, kind, depends_on]).encode()).hexdigest()[:24]
    folder = cache_folder(data)
    final, partial = folder / f"{kind}-{key}", folder / f"{kind}-{key}.partial"
    if final.is_dir():
        return final
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / f"{kind}-{key}.lock"):
            if not final.is_dir():
                shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
                partial.mkdir()
                build(partial)
                partial.rename(final)
    except OSError as error:
        raise UserError(
            f"config.data.cache={folder}: cannot be written ({error.strerror}); "
            f"set --config.data.cache=FOLDER"
        ) from error
    return final


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    waiting = FileLock(path)
    try:
        waiting.acquire(timeout=0)
    except Timeout:
        log.info("waiting for another run that prepares the same data (%s)", path)
        waiting.acquire()
    try:
        yield
    finally:
        waiting.release()
