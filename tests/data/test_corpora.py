"""Files as they come: real bytes, real faults, one clear line each."""

import gzip
import io
import random
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jformer.data.corpora import (
    Report,
    Split,
    in_memory,
    open_corpus,
    read,
    read_text,
    texts,
    without_ends,
)
from jformer.errors import UserError

BOM = b"\xef\xbb\xbf"


def write(directory, files):
    """The files `{name: bytes}`, and the prefix of those that are called x.LANGUAGE."""
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return str(directory / "x")


def read_all(name, policy="error", whole=False):
    """`(line, source, target)` of each pair and what was decided, with the files' bare names."""
    report = Report()
    pairs = list(read(open_corpus(name, "en", "de"), policy, report, whole))
    for entry in report.decisions.values():
        entry["first"] = [place.rpartition("/")[2] for place in entry["first"]]
    return pairs, report.decisions


def refusal(name, *arguments):
    with pytest.raises(UserError) as caught:
        read_all(name, *arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(name, "x")


# Lines


@pytest.mark.parametrize("odd", [*"\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1e\x00\r", "\r\r"])
def test_only_a_line_feed_ends_a_line(tmp_path, odd):
    prefix = write(tmp_path, {"x.en": f"a{odd}b\nsecond\n".encode(), "x.de": b"eins\nzwei\n"})
    assert read_all(prefix) == ([(1, f"a{odd}b", "eins"), (2, "second", "zwei")], {})


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_have_as_many_lines_as_line_feeds_and_a_rest(content):
    lines = read_text(without_ends(io.BytesIO(content)), "standard input", "replace")
    assert len(lines) == content.count(b"\n") + (content[-1:] not in (b"", b"\n"))
    assert not any("\n" in line for line in lines)


def test_a_last_line_may_lack_its_line_feed(tmp_path):
    prefix = write(tmp_path, {"x.en": b"one\ntwo", "x.de": b"eins\nzwei\n"})
    assert read_all(prefix)[0] == [(1, "one", "eins"), (2, "two", "zwei")]


def test_empty_and_blank_lines_keep_their_place(tmp_path):
    prefix = write(tmp_path, {"x.en": b"\none\n \n\n", "x.de": b"\neins\n\t\nzwei\n"})
    pairs = [(1, "", ""), (2, "one", "eins"), (3, " ", "\t"), (4, "", "zwei")]
    assert read_all(prefix) == (pairs, {})


def test_one_carriage_return_is_taken_from_the_end_of_a_line_and_counted(tmp_path):
    prefix = write(tmp_path, {"x.en": b"a\rb\r\nc\r\r\nd\r", "x.de": b"1\n2\r\n3\n"})
    pairs, decisions = read_all(prefix)
    assert pairs == [(1, "a\rb", "1"), (2, "c\r", "2"), (3, "d", "3")]
    assert decisions == {"carriage_return": {"count": 4, "first": ["x.en:1", "x.en:2", "x.de:2"]}}


def test_a_byte_order_mark_is_taken_from_the_beginning_of_a_file_alone(tmp_path):
    prefix = write(tmp_path, {"x.en": BOM + b"a\n" + BOM + b"b\n", "x.de": BOM + b"1\n2" + BOM})
    pairs, decisions = read_all(prefix)
    assert pairs == [(1, "a", "1"), (2, "\ufeffb", "2\ufeff")]
    assert decisions == {"byte_order_mark": {"count": 2, "first": ["x.en:1", "x.de:1"]}}


def test_a_corpus_read_twice_gives_the_same_pairs(tmp_path):
    write(tmp_path, {"x.en": b"a\nb\n", "x.de": b"1\n2\n", "x.tsv": b"de\ten\n1\ta\n2\tb\n"})
    for name in ("x", "x.tsv"):
        corpus = open_corpus(str(tmp_path / name), "en", "de")
        first, second = ([pair[1:] for pair in read(corpus, "error", Report())] for _ in range(2))
        assert first == second == [("a", "1"), ("b", "2")]


def test_text_at_hand_is_a_corpus_as_well():
    corpus = in_memory("made", Split(["a", "b"], ["1", "2"]))
    assert list(read(corpus, "error", Report())) == [(1, "a", "1"), (2, "b", "2")]
    assert corpus.files == ()


# Two files


@pytest.mark.parametrize("packed", ["en", "de"])
def test_plain_and_gzip_files_read_alike(tmp_path, packed):
    content = {"en": b"one\ntwo\n", "de": "eins\nzwölf".encode()}
    content[packed + ".gz"] = gzip.compress(content.pop(packed))
    prefix = write(tmp_path, {f"x.{ending}": text for ending, text in content.items()})
    assert read_all(prefix)[0] == [(1, "one", "eins"), (2, "two", "zwölf")]


def test_a_plain_file_goes_before_a_packed_one_of_the_same_name(tmp_path):
    prefix = write(tmp_path, {"x.en": b"a", "x.en.gz": gzip.compress(b"b"), "x.de": b"1"})
    assert read_all(prefix)[0] == [(1, "a", "1")]


@pytest.mark.parametrize(
    ("source", "target", "counts"),
    [
        (b"a\nb\nc", b"1\n", (3, 1)),
        (b"a\n", b"1\n2\n3\n4\n", (1, 4)),
        (b"a\nb\n", b"1\n2\n\n", (2, 3)),
        (b"", b"1\n2\n", (0, 2)),
        (b"a\n", b"", (1, 0)),
    ],
)
def test_files_that_differ_in_lines_are_refused_with_both_counts(tmp_path, source, target, counts):
    message = refusal(write(tmp_path, {"x.en": source, "x.de": target}))
    assert re.match(rf"x\.en\b.*\b{counts[0]}\b.*x\.de\b.*\b{counts[1]}\b", message)


def test_empty_files_hold_no_pair(tmp_path):
    assert read_all(write(tmp_path, {"x.en": b"", "x.de": b""})) == ([], {})


def test_a_missing_file_is_named_with_its_packed_name(tmp_path):
    message = refusal(write(tmp_path, {"x.en": b"a\n"}))
    assert re.match(r"x\.de: .*x\.de\.gz\b", message)


@pytest.mark.parametrize("name", ["x.en", "x.en.gz", "x.tsv", "x.parquet"])
def test_a_directory_in_place_of_a_file_is_named(tmp_path, name):
    (tmp_path / name).mkdir()
    asked = name if name.endswith(("tsv", "parquet")) else "x"
    with pytest.raises(UserError, match=rf"/{re.escape(name)}: "):
        open_corpus(str(tmp_path / asked), "en", "de")


def test_a_name_too_long_for_a_file_is_no_such_file(tmp_path):
    name = str(tmp_path / ("x" * 300))
    assert refusal(name).startswith("x.en: ")


def packed_text():
    """Many kilobytes that gzip cannot make small, so that a good part precedes any fault."""
    letters = random.Random(0)
    return "".join(f"{letters.getrandbits(64):x}\n" for _ in range(9000)).encode()


def truncated(packed):
    return packed[: len(packed) // 2]


def flipped(packed):
    """One bit of the checksum at the end."""
    return packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:]


@pytest.mark.parametrize(
    "damage",
    [truncated, flipped, lambda packed: b"not gzip\n", lambda packed: packed + b"more"],
    ids=["truncated", "a bit flipped", "plain text", "more behind it"],
)
@pytest.mark.parametrize("name", ["x.de.gz", "x.tsv.gz"])
def test_a_damaged_gzip_file_is_named(tmp_path, damage, name):
    prefix = write(tmp_path, {"x.en": packed_text(), name: damage(gzip.compress(packed_text()))})
    asked = prefix + ".tsv.gz" if "tsv" in name else prefix
    with pytest.raises(UserError, match=rf"/{name}: .*gzip"):
        list(read(open_corpus(asked, "en", "de"), "skip", Report()))


@pytest.mark.skipif(sys.platform != "linux", reason="a file that nobody can read")
def test_a_file_that_cannot_be_read_is_named_with_the_reason():
    with pytest.raises(UserError, match=r"/proc/self/mem: .*Input/output error"):
        list(texts(Path("/proc/self/mem")))


# Bytes that are not UTF-8

BAD = {"x.en": b"a\nb\xffc\nd\ne\n", "x.de": b"1\n2\n\xc3\n4\n"}


def test_bytes_that_are_not_utf8_are_an_error_with_their_place(tmp_path):
    message = refusal(write(tmp_path, BAD))
    assert re.match(r"x\.en:2: .*UTF-8.*0xff\b.*position 1\b", message)


def test_bytes_that_are_not_utf8_can_be_replaced_and_are_counted_by_line(tmp_path):
    pairs, decisions = read_all(write(tmp_path, BAD), "replace")
    expected = [(1, "a", "1"), (2, "b\ufffdc", "2"), (3, "d", "\ufffd"), (4, "e", "4")]
    assert pairs == expected
    assert decisions == {"replaced": {"count": 2, "first": ["x.en:2", "x.de:3"]}}


def test_pairs_with_bytes_that_are_not_utf8_can_be_skipped_and_are_counted(tmp_path):
    pairs, decisions = read_all(write(tmp_path, BAD), "skip")
    assert pairs == [(1, "a", "1"), (4, "e", "4")]
    assert decisions == {"not_utf8": {"count": 2, "first": ["x.en:2", "x.de:3"]}}


def test_a_pair_whose_sides_are_both_bad_is_one_skipped_pair(tmp_path):
    prefix = write(tmp_path, {"x.en": b"\xff\na\n", "x.de": b"\xfe\r\n1\n"})
    pairs, decisions = read_all(prefix, "skip")
    assert pairs == [(2, "a", "1")]
    assert decisions == {"not_utf8": {"count": 1, "first": ["x.en:1"]}}


def test_whole_text_loses_no_pair_to_the_policy_skip(tmp_path):
    prefix = write(tmp_path, BAD)
    assert refusal(prefix, "skip", True).startswith("x.en:2: ")
    assert len(read_all(prefix, "replace", True)[0]) == 4


@pytest.mark.parametrize("bad", [b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"a\xe2\x82"])
def test_surrogates_overlong_forms_and_cut_characters_are_not_utf8(tmp_path, bad):
    prefix = write(tmp_path, {"x.en": bad + b"\n", "x.de": b"1\n"})
    assert re.match(r"x\.en:1: .*UTF-8", refusal(prefix))


def test_the_first_places_of_many_are_kept_and_all_are_counted(tmp_path):
    prefix = write(tmp_path, {"x.en": b"a\r\n" * 1234, "x.de": b"1\n" * 1234})
    report = Report()
    list(read(open_corpus(prefix, "en", "de"), "error", report))
    (line,) = report.lines()
    assert line.startswith("1,234 ")
    assert re.findall(rf"{prefix}\.en:(\d+)", line) == ["1", "2", "3"]


def test_a_report_tells_pairs_left_out_from_text_that_was_changed():
    report = Report()
    assert len(report.lines()) == 1  # that there is nothing to report
    for reason in ("byte_order_mark", "truncated", "replaced", "too_long", "empty", "too_long"):
        report.add(reason, "x.en:1")
    assert report.skipped() == {"empty": 1, "too_long": 2}
    assert len(report.lines()) == 5


# Text of one language


def test_a_line_of_text_that_is_not_utf8_is_named_with_its_place():
    with pytest.raises(UserError, match=r"^standard input:2: .*UTF-8.*0xff\b.*position 0\b"):
        read_text([b"a", b"\xff"], "standard input", "error")


def test_in_text_of_one_language_a_bad_line_is_replaced_but_never_skipped():
    assert read_text([BOM + b"a\r", b"b\xff", b""], "input", "replace") == ["a", "b\ufffd", ""]
    with pytest.raises(UserError, match="input:2: "):
        read_text([b"a", b"\xff"], "input", "skip")


# Tab-separated


def test_without_names_the_first_column_is_the_source(tmp_path):
    write(tmp_path, {"x.tsv": b"on\tauf\nen\tde\n"})
    assert read_all(str(tmp_path / "x.tsv")) == ([(1, "on", "auf"), (2, "en", "de")], {})


@pytest.mark.parametrize("header", [b"id\tde\tfr\n", b"en\tfr\n"])
def test_a_first_line_that_names_one_of_the_languages_is_refused(tmp_path, header):
    """It would be a pair, and so would all other columns than those that were meant."""
    write(tmp_path, {"x.tsv": header + b"1\t17\ta\n"})
    with pytest.raises(UserError, match=r"x\.tsv: .*\ben\b.*\bde\b"):
        read_all(str(tmp_path / "x.tsv"))


@pytest.mark.parametrize("header", [b"de\tid\ten\n", b" de \tid\ten\r\n", BOM + b"de\tid\ten\n"])
def test_a_first_line_that_names_both_languages_chooses_the_columns(tmp_path, header):
    write(tmp_path, {"x.tsv": header + b"1\t17\ta\n2\t18\tb\r\n"})
    pairs, decisions = read_all(str(tmp_path / "x.tsv"))
    assert pairs == [(2, "a", "1"), (3, "b", "2")]
    assert decisions["markup"] == {"count": 1, "first": ["x.tsv:1"]}
    assert decisions["carriage_return"]["first"] == ["x.tsv:3"]


def test_further_columns_are_left_alone(tmp_path):
    write(tmp_path, {"x.tsv": b"a\t1\t\xff\nb\t2\tCC-BY\n"})
    assert read_all(str(tmp_path / "x.tsv")) == ([(1, "a", "1"), (2, "b", "2")], {})


def test_a_tab_inside_a_sentence_is_noticed_also_behind_a_header(tmp_path):
    write(tmp_path, {"x.tsv": b"en\tid\tde\na\t17\t1\nb\tb\t18\t2\nc\t19\t3\n"})
    assert refusal(str(tmp_path / "x.tsv")).startswith("x:3: ")
    pairs, decisions = read_all(str(tmp_path / "x.tsv"), "skip")
    assert pairs == [(2, "a", "1"), (4, "c", "3")]
    assert decisions["columns"] == {"count": 1, "first": ["x.tsv:3"]}


def test_packed_columns_read_as_plain_ones(tmp_path):
    write(tmp_path, {"x.tsv.gz": gzip.compress("a\u2028b\t1\n\t\n".encode())})
    assert read_all(str(tmp_path / "x.tsv.gz"))[0] == [(1, "a\u2028b", "1"), (2, "", "")]


COLUMNS = b"en\tde\na\t1\nb\n\nc\t3\n"


@pytest.mark.parametrize(("policy", "whole"), [("error", False), ("replace", True), ("skip", True)])
def test_a_line_that_is_not_two_columns_is_an_error_with_its_place(tmp_path, policy, whole):
    write(tmp_path, {"x.tsv": COLUMNS})
    message = refusal(str(tmp_path / "x.tsv"), policy, whole)
    assert message.startswith("x:3: ")


@pytest.mark.parametrize("policy", ["replace", "skip"])
def test_lines_that_are_not_two_columns_can_be_skipped_and_are_counted(tmp_path, policy):
    write(tmp_path, {"x.tsv": COLUMNS})
    pairs, decisions = read_all(str(tmp_path / "x.tsv"), policy)
    assert pairs == [(2, "a", "1"), (5, "c", "3")]
    assert decisions["columns"] == {"count": 2, "first": ["x.tsv:3", "x.tsv:4"]}


def test_an_empty_file_of_columns_holds_no_pair(tmp_path):
    write(tmp_path, {"x.tsv": b""})
    assert read_all(str(tmp_path / "x.tsv")) == ([], {})


def test_bytes_that_are_not_utf8_in_a_column_are_named_with_their_line(tmp_path):
    write(tmp_path, {"x.tsv": b"en\tde\na\t1\nb\t\xff\n"})
    assert re.match(r"x:3: .*UTF-8.*0xff\b.*position 0\b", refusal(str(tmp_path / "x.tsv")))


# Parquet


@pytest.fixture(scope="session")
def pa():
    pytest.importorskip("pyarrow.parquet", reason="for Parquet files, of the extra hub")
    return sys.modules["pyarrow"]


def write_table(pa, directory, columns, **options):
    path = directory / "x.parquet"
    pa.parquet.write_table(pa.table(columns), path, **options)
    return str(path)


def test_columns_of_parquet_are_found_by_the_names_of_the_languages(pa, tmp_path):
    columns = {"id": [7, 8], "de": ["1", "2"], "en": ["a\nb", "c"]}
    pairs = [(1, "a\nb", "1"), (2, "c", "2")]
    assert read_all(write_table(pa, tmp_path, columns)) == (pairs, {})


def test_a_column_translation_of_parquet_holds_the_languages(pa, tmp_path):
    rows = [{"de": "1", "en": "a", "fr": "un"}, {"de": "2", "en": "b", "fr": None}]
    path = write_table(pa, tmp_path, {"id": [7, 8], "translation": rows})
    assert read_all(path)[0] == [(1, "a", "1"), (2, "b", "2")]


def test_what_parquet_has_no_value_for_is_an_empty_text(pa, tmp_path):
    rows = [{"de": None, "en": "a"}, None, {"de": "3", "en": None}]
    nested = read_all(write_table(pa, tmp_path, {"translation": rows}))
    assert nested == ([(1, "a", ""), (2, "", ""), (3, "", "3")], {})
    flat = read_all(write_table(pa, tmp_path, {"en": ["a", None], "de": [None, None]}))
    assert flat == ([(1, "a", ""), (2, "", "")], {})


def test_parquet_of_many_row_groups_and_batches_is_read_in_order(pa, tmp_path):
    numbers = [str(i) for i in range(1, 70_001)]
    path = write_table(pa, tmp_path, {"en": numbers, "de": numbers}, row_group_size=997)
    assert read_all(path)[0] == [(int(n), n, n) for n in numbers]


def test_text_of_parquet_that_is_not_utf8_goes_the_way_of_all_lines(pa, tmp_path):
    bad = pa.array([b"a", b"b\xff"], pa.binary()).view(pa.string())
    path = write_table(pa, tmp_path, {"en": bad, "de": ["1", "2"]})
    assert re.match(r"x:2: .*UTF-8.*0xff\b.*position 1\b", refusal(path))
    assert read_all(path, "replace")[0] == [(1, "a", "1"), (2, "b\ufffd", "2")]
    assert read_all(path, "skip")[1] == {"not_utf8": {"count": 1, "first": ["x.parquet:2"]}}


@pytest.mark.parametrize(
    "columns",
    [
        {"en": ["a"], "fr": ["un"]},
        {"translation": [{"en": "a", "fr": "un"}]},
        {"translation": ["a"]},
    ],
)
def test_parquet_without_a_column_for_each_language_is_refused_with_its_columns(
    pa, tmp_path, columns
):
    message = refusal(write_table(pa, tmp_path, columns))
    assert re.match(r"x: .*\['.*\['en', 'de'\]", message)


def test_parquet_with_numbers_for_text_is_refused_when_it_is_opened(pa, tmp_path):
    path = write_table(pa, tmp_path, {"en": ["a"], "de": [1]})
    with pytest.raises(UserError, match=r"Parquet.*int64"):
        open_corpus(path, "en", "de")


def test_parquet_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    write(tmp_path, {"x.parquet": b"PAR1"})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refusal(str(tmp_path / "x.parquet")).endswith("pip install pyarrow")


@pytest.mark.parametrize("kept", [0, 9, 4000])
def test_a_file_that_is_no_parquet_is_refused(pa, tmp_path, kept):
    path = write_table(pa, tmp_path, {"en": ["a"] * 999, "de": [str(i) for i in range(999)]})
    (tmp_path / "x.parquet").write_bytes((tmp_path / "x.parquet").read_bytes()[:kept])
    assert re.match("x: .*Parquet", refusal(path))


def test_parquet_with_damaged_pages_is_refused_when_it_is_read(pa, tmp_path):
    path = write_table(pa, tmp_path, {name: [str(i) for i in range(999)] for name in ("en", "de")})
    content = bytearray((tmp_path / "x.parquet").read_bytes())
    content[4:3000] = b"Z" * 2996
    (tmp_path / "x.parquet").write_bytes(content)
    assert re.match("x: .*Parquet", refusal(path))


# Markup

SGML = """<srcset setid="x"><doc docid="1">
<hl>
<seg id="1"> R&amp;D &lt;b&gt; </seg>
</hl><p>
<seg id="2">two
  lines&#10;of &#8222;text&#x201C;</seg><SEG>a</SEG><segment>no</segment><seg id="4"></seg>
</p></doc></srcset>
"""


@pytest.mark.parametrize("suffix", ["sgm", "xml", "sgm.gz"])
def test_segments_of_sgml_and_xml_are_the_lines(tmp_path, suffix):
    content = SGML.encode()
    content = gzip.compress(content) if suffix.endswith("gz") else content
    prefix = write(tmp_path, {f"x.en.{suffix}": content, "x.de": b"1\n2\n3\n4\n"})
    segments = ["R&D <b>", "two lines of „text“", "a", ""]
    assert [source for _, source, _ in read_all(prefix)[0]] == segments


def test_a_segment_that_is_not_utf8_is_named_by_its_number(tmp_path):
    content = b"<seg>a</seg>\n\n<seg>&amp; \xff</seg>"
    prefix = write(tmp_path, {"x.en.sgm": content, "x.de": b"1\n2\n"})
    assert re.match(r"x\.en\.sgm:2: .*UTF-8.*0xff\b.*position 6\b", refusal(prefix))
    assert read_all(prefix, "replace")[0][1][1] == "&amp; \ufffd"


TALKS = {
    "en": b"<url>http://a</url>\n<title>A & B</title>\na\n<b>\nb\n</doc>\n",
    "de": b"<url>http://a</url>\n <title>A und B</title>\n1\n<b>\n<url> im Text\n</doc>\n",
}


def test_markup_on_both_sides_of_tagged_talks_is_no_pair(tmp_path):
    prefix = tmp_path / "train.tags.en-de"
    write(tmp_path, {f"{prefix.name}.{language}": text for language, text in TALKS.items()})
    pairs, decisions = read_all(str(prefix))
    assert pairs == [(3, "a", "1"), (4, "<b>", "<b>"), (5, "b", "<url> im Text")]
    places = [f"{prefix.name}.en:{line}" for line in (1, 2, 6)]
    assert decisions == {"markup": {"count": 3, "first": places}}


def test_markup_in_any_other_file_is_text(tmp_path):
    prefix = write(tmp_path, {f"x.{language}": text for language, text in TALKS.items()})
    assert len(read_all(prefix)[0]) == 6


def test_tagged_talks_in_sgml_are_read_like_others(tmp_path):
    prefix = tmp_path / "train.tags.en-de"
    content = b"<seg>a</seg><seg>&lt;url></seg>"
    write(tmp_path, {f"{prefix.name}.en.xml": content, f"{prefix.name}.de.xml": content})
    assert read_all(str(prefix))[0] == [(1, "a", "a")]


# Data sets
