"""The disk cache of vocabularies and token ids.

An entry is a folder, named by a hash of everything its content depends on: the bytes of the files,
the vocabulary, the settings. It is written under a temporary name and renamed when complete, under
a lock: a killed run leaves no partial entry, and of two concurrent runs the second waits. The
checksums of an entry's files are verified whenever it is read.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, FileLock, Timeout

from jformer.checksums import SUMS, first_damage, write_sums
from jformer.config import DataConfig
from jformer.data.corpora import Corpus
from jformer.errors import UserError
from jformer.files import sha256_of

log = logging.getLogger(__name__)

VERSION = 4  # of the entry format and of what is read from a file; changing it makes new entries


def cache_folder(data: DataConfig) -> Path:
    if data.cache:
        return Path(data.cache)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jformer"
    except RuntimeError as error:
        raise UserError(
            "config.data.cache is empty, and this user has no home directory for a cache; "
            "set config.data.cache=FOLDER"
        ) from error


def content_hashes(corpora: list[Corpus]) -> list[tuple[str, str]]:
    """Return `(name, hash of all bytes)` of each file, and of each corpus in memory.

    A file that changed in any way counts as another corpus.
    """

    def of_file(path: Path) -> str:
        try:
            return sha256_of(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error

    files = [path for corpus in corpora for path in corpus.files]
    with ThreadPoolExecutor(2) as pool:
        hashes = list(zip(map(str, files), pool.map(of_file, files), strict=True))
    in_memory = [corpus for corpus in corpora if not corpus.files]
    return hashes + [(corpus.names[0], hash_of_rows(corpus)) for corpus in in_memory]


def content_hash(corpora: list[Corpus]) -> str:
    """Return the hashes of all text in one string, for use in the keys of cache entries."""
    return " ".join(content for _, content in content_hashes(corpora))


def hash_of_rows(corpus: Corpus) -> str:
    """Return the SHA-256 of text in memory: phrases, or a small data set of the hub."""
    digest = hashlib.sha256()
    for row in corpus.rows():
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def entry(data: DataConfig, kind: str, depends_on: Any, build: Callable[[Path], None]) -> Path:
    """Return the folder of an entry, built if it is missing or any of its files is damaged."""
    key = hashlib.sha256(json.dumps([VERSION, kind, depends_on]).encode()).hexdigest()[:24]
    folder = cache_folder(data)
    final, partial = folder / f"{kind}-{key}", folder / f"{kind}-{key}.partial"
    if not damage_of(final):
        return final
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with acquire(folder / f"{kind}-{key}.lock"):
            damage = damage_of(final)
            if not damage:  # built by another run in the meantime
                return final
            if os.path.lexists(final):
                log.warning(f"{final}: damaged ({damage}); it is built again")
                remove(final)
            remove(partial)  # left by a run that was killed
            partial.mkdir()
            build(partial)
            seal(partial)
            partial.rename(final)
            sync(folder)
    except OSError as error:
        raise UserError(
            f"config.data.cache={folder}: cannot be written ({error.strerror}); "
            f"set config.data.cache=FOLDER"
        ) from error
    return final


def damage_of(folder: Path) -> str:
    """Describe the first damaged file of an entry; empty if there is none."""
    return first_damage(folder) if (folder / SUMS).exists() else f"{SUMS} is missing"


def seal(folder: Path) -> None:
    """Write the checksums of all files, and flush all to the disk.

    Otherwise a power cut could leave an entry with its final name but without its content.
    """
    write_sums(folder)
    for path in folder.iterdir():
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def acquire(path: Path) -> AcquireReturnProxy:
    """Return the context in which this process alone holds a lock."""
    lock = FileLock(path)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        log.info("waiting for another run that prepares the same data (%s)", path)
        return lock.acquire()
