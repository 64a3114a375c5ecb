"""Named test sets: sacreBLEU's own download and layout, from a file in place of the network."""

import hashlib
import socket
import tarfile
from pathlib import Path

import pytest
import sacrebleu
from sacrebleu import DATASETS

from jformer.errors import UserError
from jformer.evaluation.scorer import open_test_set

SOURCES = ["A &amp; B", 'it is "so"', "the end"]
TARGETS = ["A &amp; B", 'es ist "so"', "das Ende"]
OTHERS = ["A und B", 'so ist\'s "halt"', "Ende"]
TEXT = "A & B"  # of the first lines


def sgml(lines: list[str]) -> str:
    segments = "".join(f'<seg id="{n}">{line}</seg>\n' for n, line in enumerate(lines, 1))
    return f'<doc docid="a" genre="news" origlang="en">\n{segments}</doc>\n'


def offer(monkeypatch, folder: Path, name: str, files: dict[str, str], url: str = "") -> Path:
    """Let sacreBLEU keep the set in `folder`, and fetch it from an archive of these files."""
    archive = folder / "archive.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
            tar.add(folder / path, path)
    kept, dataset = folder / "kept", DATASETS[name]
    monkeypatch.setattr(sacrebleu, "SACREBLEU_DIR", str(kept))
    monkeypatch.setattr(dataset, "_outdir", str(kept / name))
    monkeypatch.setattr(dataset, "_rawdir", str(kept / name / "raw"))
    monkeypatch.setattr(dataset, "data", [url or archive.as_uri()])
    monkeypatch.setattr(dataset, "md5", [hashlib.md5(archive.read_bytes()).hexdigest()])
    monkeypatch.setenv("no_proxy", "*")
    return kept / name


def wmt14(sources: list[str], targets: list[str]) -> dict[str, str]:
    stem = "test-full/newstest2014-deen-"
    return {f"{stem}src.en.sgm": sgml(sources), f"{stem}ref.de.sgm": sgml(targets)}


def test_a_set_is_fetched_once_and_its_escapes_are_text(monkeypatch, tmp_path):
    offer(monkeypatch, tmp_path, "wmt14/full", wmt14(SOURCES, TARGETS))
    expected = [[TEXT, *SOURCES[1:]], [TEXT, *TARGETS[1:]]]
    assert open_test_set("wmt14/full", "en", "de") == expected
    (tmp_path / "archive.tgz").unlink()
    assert open_test_set("wmt14/full", "en", "de") == expected


def test_a_set_has_as_many_streams_as_translators(monkeypatch, tmp_path):
    sides = {"2020-ende-src.en": SOURCES, "2020-ende-ref.de": TARGETS, "B2020-ende-ref.de": OTHERS}
    files = {f"sgm/newstest{side}.sgm": sgml(lines) for side, lines in sides.items()}
    offer(monkeypatch, tmp_path, "wmt20/tworefs", files)
    _, *references = open_test_set("wmt20/tworefs", "en", "de")
    assert references == [[TEXT, *TARGETS[1:]], OTHERS]


@pytest.mark.parametrize(("name", "pair"), [("wmt14/ful", "en-de"), ("multi30k/2016", "de-en")])
def test_an_unknown_name_or_language_pair_is_one_line(name, pair):
    with pytest.raises(UserError, match=rf"^{name}, {pair}: .*sacrebleu --list") as caught:
        open_test_set(name, *pair.split("-"))
    assert "\n" not in str(caught.value)


def test_no_network_is_one_line_with_the_folder_to_copy(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x.tgz"
    kept = offer(monkeypatch, tmp_path, "wmt14/full", {}, url)  # nobody listens there any more
    with pytest.raises(UserError, match=rf"^wmt14/full, en-de: .*refused.* {kept}") as caught:
        open_test_set("wmt14/full", "en", "de")
    assert "\n" not in str(caught.value)
