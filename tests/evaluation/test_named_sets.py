"""Named test sets: sacreBLEU's own download and layout, from a file in place of the network."""

import hashlib
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import sacrebleu
from sacrebleu import DATASETS

from jformer.errors import UserError
from jformer.evaluation import named_sets
from jformer.evaluation.named_sets import open_test_set

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


def test_a_set_is_fetched_and_its_escapes_are_text(monkeypatch, tmp_path):
    offer(monkeypatch, tmp_path, "wmt14/full", wmt14(SOURCES, TARGETS))
    sources, references = open_test_set("wmt14/full", "en", "de")
    assert sources == [TEXT, *SOURCES[1:]]
    assert references == [[TEXT, *TARGETS[1:]]]


def test_a_set_has_as_many_streams_as_translators(monkeypatch, tmp_path):
    sides = {"2020-ende-src.en": SOURCES, "2020-ende-ref.de": TARGETS, "B2020-ende-ref.de": OTHERS}
    files = {f"sgm/newstest{side}.sgm": sgml(lines) for side, lines in sides.items()}
    offer(monkeypatch, tmp_path, "wmt20/tworefs", files)
    _, references = open_test_set("wmt20/tworefs", "en", "de")
    assert references == [[TEXT, *TARGETS[1:]], OTHERS]


def test_plain_text_stays_as_it_is(monkeypatch, tmp_path):
    sides = {"test_2016_flickr.en": SOURCES, "test_2016_flickr.de": TARGETS}
    files = {path: "".join(line + "\n" for line in lines) for path, lines in sides.items()}
    offer(monkeypatch, tmp_path, "multi30k/2016", files)
    assert open_test_set("multi30k/2016", "en", "de") == (SOURCES, [TARGETS])


def test_a_set_is_fetched_once(monkeypatch, tmp_path):
    offer(monkeypatch, tmp_path, "wmt14/full", wmt14(SOURCES, TARGETS))
    first = open_test_set("wmt14/full", "en", "de")
    (tmp_path / "archive.tgz").unlink()
    assert open_test_set("wmt14/full", "en", "de") == first


def test_a_folder_brought_by_hand_is_found_by_a_variable_of_the_environment(tmp_path):
    # A copy of what sacreBLEU leaves after its own download, read by a program of its own.
    for field in ("src", "ref", "docid", "genre", "origlang"):
        path = tmp_path / "wmt14" / "full" / f"wmt14_full.en-de.{field}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{field} 1\n{field} 2\n", encoding="utf-8")
    program = (
        "from jformer.evaluation.named_sets import open_test_set;"
        "print(open_test_set('wmt14/full', 'en', 'de'))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "SACREBLEU": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert output.stdout == "(['src 1', 'src 2'], [['ref 1', 'ref 2']])\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wmt14/ful", "wmt14/ful: .*wmt14/full"),
        ("qqqq", "qqqq: .*sacrebleu --list"),
    ],
)
def test_an_unknown_name_is_refused_with_those_near_it(name, message):
    with pytest.raises(UserError, match=message):
        open_test_set(name, "en", "de")


def test_a_pair_that_a_set_lacks_is_refused_with_those_it_has():
    with pytest.raises(UserError, match=r"de-en.*en-cs.*en-de.*en-fr"):
        open_test_set("multi30k/2016", "de", "en")


def assert_refused(caplog, pattern: str) -> None:
    with pytest.raises(UserError, match=pattern) as caught:
        open_test_set("wmt14/full", "en", "de")
    assert "\n" not in str(caught.value)
    assert not caplog.records  # what sacreBLEU had to say is in the line


def test_no_network_is_told_in_one_line_with_the_way_out(monkeypatch, tmp_path, caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x.tgz"
    kept = offer(monkeypatch, tmp_path, "wmt14/full", {}, url)  # nobody listens there any more
    command = "run `sacrebleu -t wmt14/full -l en-de --echo src`"
    assert_refused(caplog, rf"^wmt14/full: .*refused.*{command}.* {kept}")


def test_a_network_that_does_not_answer_is_given_up(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(named_sets, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x.tgz"
        offer(monkeypatch, tmp_path, "wmt14/full", {}, url)
        assert_refused(caplog, "timed out")
    assert socket.getdefaulttimeout() is None


def test_a_damaged_download_is_told_in_one_line(monkeypatch, tmp_path, caplog):
    offer(monkeypatch, tmp_path, "wmt14/full", wmt14(SOURCES, TARGETS))
    monkeypatch.setattr(DATASETS["wmt14/full"], "md5", ["0" * 32])
    assert_refused(caplog, "^wmt14/full: .*MD5")  # sacreBLEU's own word
    assert_refused(caplog, "^wmt14/full: .*No such file")  # the system's, at the next call


def test_sides_of_different_length_are_refused(monkeypatch, tmp_path):
    kept = offer(monkeypatch, tmp_path, "wmt14/full", wmt14(SOURCES, TARGETS[1:]))
    with pytest.raises(UserError, match=rf"3\b.*2\b.*{kept}"):
        open_test_set("wmt14/full", "en", "de")
