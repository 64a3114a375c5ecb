"""Files as they come: real bytes, real faults, one clear line each."""

import gzip
import json
import re
import sys

import pytest

from jformer.data.corpora import Report, open_corpus, read
from jformer.errors import UserError
from jformer.main import main
from tests.conftest import number_words, small_flags, write_split

BOM = b"\xef\xbb\xbf"


@pytest.fixture
def write(tmp_path):
    """A function that writes `{name: bytes}` and returns the prefix of files named x.LANGUAGE."""

    def write_files(files):
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        return str(tmp_path / "x")

    return write_files


def read_all(name, policy="error"):
    """`(line, source, target)` of each pair and the decisions, with the bare names of files."""
    report = Report()
    pairs = list(read(open_corpus(name, "en", "de"), policy, report))
    for entry in report.decisions.values():
        entry["first"] = [name.rpartition("/")[2] for name in entry["first"]]
    return pairs, report.decisions


def refusal(name, *arguments):
    with pytest.raises(UserError) as caught:
        read_all(name, *arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(name.rpartition("/")[0] + "/", "")


# Lines


@pytest.mark.parametrize("odd", [*"\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1e\x00\r", "\r\r"])
def test_only_a_line_feed_ends_a_line(write, odd):
    prefix = write({"x.en": f"a{odd}b\nsecond\n".encode(), "x.de": b"eins\nzwei\n"})
    assert read_all(prefix) == ([(1, f"a{odd}b", "eins"), (2, "second", "zwei")], {})


def test_a_carriage_return_at_a_line_s_end_and_a_byte_order_mark_at_a_file_s_are_removed(write):
    source = BOM + b"a\rb\r\n" + BOM + b"c\r\r\nd\r"
    pairs = [(1, "a\rb", "1"), (2, "\ufeffc\r", "2\ufeff"), (3, "d", "3")]
    prefix = write({"x.en": source, "x.de": BOM + b"1\n2" + BOM + b"\r\n3\n"})
    assert read_all(prefix) == (pairs, {})


# Two files


@pytest.mark.parametrize("packed", ["en", "de"])
def test_plain_and_gzip_files_read_alike(write, packed):
    content = {"en": b"one\ntwo\n", "de": "eins\nzwölf".encode()}
    content[packed + ".gz"] = gzip.compress(content.pop(packed))
    prefix = write({f"x.{ending}": text for ending, text in content.items()})
    assert read_all(prefix)[0] == [(1, "one", "eins"), (2, "two", "zwölf")]


def test_files_that_differ_in_lines_are_refused(write):
    message = refusal(write({"x.en": b"a\nb\nc", "x.de": b"1\n"}))
    assert re.match(r"x\.en and x\.de\b.*same number", message)


def test_a_missing_file_is_named_with_what_to_check(write):
    assert re.match(r"x\.de: .*\.gz\b", refusal(write({"x.en": b"a\n"})))


def test_a_truncated_gzip_file_is_named(write):
    text = b"".join(b"%d\n" % number**9 for number in range(9000))
    packed = gzip.compress(text)
    prefix = write({"x.en": text, "x.de.gz": packed[: len(packed) // 2]})
    assert re.match(r"x\.de\.gz: ", refusal(prefix, "skip"))


# Bytes that are not UTF-8

BAD = {"x.en": b"a\nb\xffc\nd\ne\n", "x.de": b"1\n2\n\xc3\n4\n"}


def test_bytes_that_are_not_utf8_are_an_error_with_file_and_line(write):
    message = refusal(write(BAD))
    assert re.match(r"x\.en:2: .*UTF-8.*bad_lines=skip", message)


def test_a_pair_with_bytes_that_are_not_utf8_can_be_skipped(write):
    pairs, decisions = read_all(write(BAD), "skip")
    assert pairs == [(1, "a", "1"), (4, "e", "4")]
    assert decisions == {"bad_line": {"count": 2, "first": ["x.en:2", "x.en:3"]}}


# Tab-separated


def test_without_a_header_the_first_column_is_the_source(write):
    name = write({"x.tsv": b"on\tauf\tCC-BY\nen\tde\t\xff\n"}) + ".tsv"
    assert read_all(name) == ([(1, "on", "auf"), (2, "en", "de")], {})


def test_a_header_that_names_one_of_the_languages_is_refused(write):
    """It would be a pair, and the columns would be wrong."""
    name = write({"x.tsv": b"id\tde\tfr\n1\t17\ta\n"}) + ".tsv"
    assert re.match(r"x\.tsv: .*both languages", refusal(name))


def test_a_header_that_names_both_languages_chooses_the_columns(write):
    text = BOM + b" de \tid\ten\r\n1\t17\ta\n2\t18\tb\r\n"
    name = write({"x.tsv.gz": gzip.compress(text)}) + ".tsv.gz"
    assert read_all(name) == ([(2, "a", "1"), (3, "b", "2")], {})


def test_another_number_of_columns_is_an_error_or_skipped_in_training_text(write):
    """As of a tab inside a sentence."""
    text = b"en\tid\tde\na\t17\t1\nb\tb\t18\t2\nc\t19\t3\n"
    name = write({"x.tsv": text}) + ".tsv"
    assert re.match(r"x\.tsv:3: .*columns.*bad_lines=skip", refusal(name))
    pairs, decisions = read_all(name, "skip")
    assert pairs == [(2, "a", "1"), (4, "c", "3")]
    assert decisions == {"bad_line": {"count": 1, "first": ["x.tsv:3"]}}


# Parquet


@pytest.fixture
def pa(tmp_path, monkeypatch):
    """pyarrow with its module `parquet`, and a cache of this test's own."""
    package = pytest.importorskip("datasets", reason="requires the extra hub")
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return pytest.importorskip("pyarrow.parquet") and sys.modules["pyarrow"]


def write_table(pa, folder, columns):
    path = folder / "x.parquet"
    pa.parquet.write_table(pa.table(columns), path)
    return str(path)


@pytest.mark.parametrize(
    "columns",
    [
        {"id": [7, 8], "de": ["1", None], "en": ["a\nb", "c"]},
        {"translation": [{"de": "1", "en": "a\nb", "fr": "un"}, {"de": None, "en": "c", "fr": ""}]},
    ],
    ids=["a column each", "one column"],
)
def test_columns_of_parquet_are_found_by_the_names_of_the_languages(pa, tmp_path, columns):
    pairs, decisions = read_all(write_table(pa, tmp_path, columns))
    assert pairs == [(1, "a\nb", "1")]
    assert decisions == {"empty": {"count": 1, "first": ["x.parquet:2"]}}


def test_parquet_without_a_column_for_each_language_is_refused_with_its_columns(pa, tmp_path):
    path = write_table(pa, tmp_path, {"en": ["a"], "fr": ["un"]})
    assert re.match(r"x\.parquet.*: .*\ben and de\b.*\ben, fr\b", refusal(path))


# Markup

SGML = """<srcset setid="x"><doc docid="1">
<hl>
<seg id="1"> R&amp;D &lt;b&gt; </seg>
</hl><p>
<seg id="2">two
  lines&#10;of &#8222;text&#x201C;</seg><SEG>a</SEG><segment>no</segment><seg id="4"></seg>
</p></doc></srcset>
"""


@pytest.mark.parametrize("suffix", ["sgm", "xml"])
def test_segments_of_sgml_and_xml_are_the_lines(write, suffix):
    prefix = write({f"x.en.{suffix}": SGML.encode(), "x.de": b"1\n2\n3\n4\n"})
    segments = ["R&D <b>", "two lines of „text“", "a", ""]
    assert [source for _, source, _ in read(open_corpus(prefix, "en", "de"))] == segments


TALKS = {
    "en": b"<url>http://a</url>\n<title>A & B</title>\na\n<b>\nb\n</doc>\n",
    "de": b"<url>http://a</url>\n <title>A und B</title>\n1\n<b>\n<url> im Text\n</doc>\n",
}


def test_markup_on_both_sides_of_tagged_talks_is_not_a_pair(write, tmp_path):
    write({f"train.tags.en-de.{language}": text for language, text in TALKS.items()})
    pairs = [(3, "a", "1"), (4, "<b>", "<b>"), (5, "b", "<url> im Text")]
    assert read_all(str(tmp_path / "train.tags.en-de")) == (pairs, {})


# Through the command line: `data` prints what training would see.


@pytest.fixture
def corpus(tmp_path):
    """A folder with a corpus of its own, to be spoilt."""
    write_split(tmp_path / "train", number_words(100, 110))
    write_split(tmp_path / "validation", number_words(400, 405))
    write_split(tmp_path / "test", number_words(420, 423))
    return tmp_path


def spoil(corpus, split, source, target):
    (corpus / f"{split}.en").write_bytes(source)
    (corpus / f"{split}.de").write_bytes(target)


def run_command(command, corpus, *extra):
    flags = [*small_flags(corpus, corpus / "run"), f"--config.data.cache={corpus / 'cache'}"]
    if command == "data":
        flags = [flag for flag in flags if not flag.startswith("--workdir=")] + ["--format=json"]
    return main(["jformer", command, *flags, *extra])


def facts_of(capfd, corpus, *extra):
    status = run_command("data", corpus, *extra)
    captured = capfd.readouterr()
    assert status == 0, captured.err
    (line,) = captured.out.splitlines()
    return json.loads(line.replace(f"{corpus}/", ""))


def message_of(capfd, corpus, *extra, command="data"):
    """The last line on standard error; exit status 2 and nothing on standard output."""
    assert run_command(command, corpus, *extra) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()[-1].removeprefix("jformer: ").replace(f"{corpus}/", "")


ODD = "\u2028\u2029\u0085\x0b\x0c\x1e\x00"


def test_odd_line_ends_shift_no_line_and_are_counted_with_their_lines(corpus, capfd):
    source = BOM + b"1\r\n" + f"2{ODD}\r3\n".encode() + b"\r\n4"
    spoil(corpus, "train", source, b"one\ntwo\nthree\r\nfour\r\n")
    facts = facts_of(capfd, corpus)
    assert facts["pairs_per_epoch"] == 3
    assert facts["skipped_or_changed"] == {"empty": {"count": 1, "first": ["train.en:3"]}}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_nothing_is_skipped_in_a_split_to_be_scored(corpus, capfd, split):
    spoil(corpus, split, b"1\n\xff\n\n", b"one\n\n" + b"3" * 999 + b"\n")
    refused = message_of(capfd, corpus, "--config.data.bad_lines=skip")
    assert refused.startswith(f"{split}.en:2: ")
    spoil(corpus, split, b"1\n\n\n", b"one\n\n" + b"3" * 999 + b"\n")
    assert facts_of(capfd, corpus)["scored"][split] == 3


@pytest.mark.parametrize(("split", "source"), [("train", b""), ("validation", b"1\n2\n")])
def test_a_bad_corpus_is_refused_before_a_run_begins(corpus, capfd, split, source):
    spoil(corpus, split, source, b"one\n" if source else b"")
    assert message_of(capfd, corpus, command="train").startswith(split)
    assert not any((corpus / "run").glob("*"))


def test_a_batch_must_hold_the_longest_pair(corpus, capfd):
    """Each digit is one token, so n digits are n + 1 tokens."""
    message = message_of(capfd, corpus, "--config.train.batch_tokens=47")
    assert re.match(r"config\.train\.batch_tokens=47: .*data\.max_length", message)
    spoil(corpus, "train", b"1" * 47 + b"\n", b"2" * 47 + b"\n")
    facts = facts_of(capfd, corpus, "--config.train.batch_tokens=48")
    assert facts["batches_per_epoch"] == 1
    assert facts["token_utilization"] == {"buckets": 1.0, "packed": 1.0}
