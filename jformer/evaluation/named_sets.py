"""sacreBLEU's named test sets, such as `wmt14/full`, `iwslt17/tst2015` and `multi30k/2016`.

sacreBLEU downloads a set once and keeps it in $SACREBLEU, or ~/.sacrebleu. Its `wmt14` lacks 266 of
the 3,003 sentences of newstest2014 from English to German, which `wmt14/full` contains.
"""

import difflib
import logging
import os
import socket
from pathlib import Path

import sacrebleu
from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

from jformer.data.corpora import decode_lines, read_lines, unescape
from jformer.errors import UserError

SECONDS = 30  # without a byte, until a download fails; sacreBLEU itself would wait for ever


def open_test_set(
    name: str, source_language: str, target_language: str
) -> tuple[list[str], list[list[str]]]:
    """Return the sources, and the references as streams: one list per translator."""
    pair = f"{source_language}-{target_language}"
    check_name(name, pair)
    sources, *references = (read(name, Path(path)) for path in fetch(name, pair))
    for stream in references:
        if len(stream) != len(sources):
            raise UserError(
                f"{name}: has {len(sources)} sources and {len(stream)} references; a download or "
                f"a copy was cut short: delete {folder(name)} and fetch it again"
            )
    return sources, references


def check_name(name: str, pair: str) -> None:
    """Raise `UserError` for a test set or a language pair that sacreBLEU does not have."""
    if name not in (names := sacrebleu.get_available_testsets()):
        close = difflib.get_close_matches(name, names, n=3)
        near = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UserError(f"{name}: no test set of sacreBLEU{near} (`sacrebleu --list` has them all)")
    if pair not in (pairs := sacrebleu.get_langpairs_for_testset(name)):
        raise UserError(f"{name}: not from and to {pair}; it has {', '.join(sorted(pairs))}")


def fetch(name: str, pair: str) -> list[str]:
    """Return the paths of the sources and of each reference; missing files are downloaded."""
    told: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        told.append(record.getMessage())
        return False  # the record is not logged

    logger, timeout = logging.getLogger("sacrebleu"), socket.getdefaulttimeout()
    logger.addFilter(keep)
    socket.setdefaulttimeout(SECONDS)
    try:
        return [sacrebleu.get_source_file(name, pair), *sacrebleu.get_reference_files(name, pair)]
    # Network, archive and parser raise errors of any type; or sacreBLEU logs the reason and exits.
    except (Exception, SystemExit) as error:
        reason = " ".join(" ".join(told or [f"{type(error).__name__}: {error}"]).split())
        raise UserError(
            f"{name}: cannot be fetched by sacreBLEU ({reason}); run `sacrebleu -t {name} "
            f"-l {pair} --echo src` where there is a network and copy the folder ~/.sacrebleu/"
            f"{name} to {folder(name)}; delete that first if it is damaged"
        ) from error
    finally:
        socket.setdefaulttimeout(timeout)
        logger.removeFilter(keep)


def folder(name: str) -> str:
    return os.path.join(sacrebleu.SACREBLEU_DIR, name)


def read(name: str, path: Path) -> list[str]:
    """Return the lines of a file; the escapes that sacreBLEU leaves in SGML text are resolved."""
    escaped = isinstance(sacrebleu.DATASETS[name], FakeSGMLDataset)
    lines = read_lines(path)
    return decode_lines(map(unescape, lines) if escaped else lines, str(path), "error")
