"""Bad lines through the real command line: what is refused, and what is skipped and counted.

`data` prints what training would see, without training. Users met each of these faults.
"""

import gzip
import io
import json
import random
import re
import string
import sys

import pytest

from jformer import load
from jformer.main import main
from tests.conftest import number_words, small_flags, write_split

BOM = b"\xef\xbb\xbf"
REFUSED = "jformer: "


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


def flags_for(command, corpus, *extra):
    """The command line of a run of seconds, of which `data` takes all but the run's directory."""
    flags = [*small_flags(corpus, corpus / "run"), f"--config.data.cache={corpus / 'cache'}"]
    if command == "data":
        flags = [flag for flag in flags if not flag.startswith("--workdir=")] + ["--format=json"]
    return ["jformer", command, *flags, *extra]


def look(capfd, corpus, *extra):
    """What training would see, with the bare names of files."""
    status = main(flags_for("data", corpus, *extra))
    captured = capfd.readouterr()
    assert status == 0, captured.err
    assert "Traceback" not in captured.err
    (line,) = captured.out.splitlines()
    return json.loads(line.replace(f"{corpus}/", ""))


def refusal(capfd, arguments):
    """The one line that says why, with exit status 2 and nothing on standard output."""
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    told = [line for line in captured.err.splitlines() if line.startswith(REFUSED)]
    assert told == captured.err.splitlines()[-1:]
    return told[0].removeprefix(REFUSED)


def data_refusal(capfd, corpus, *extra):
    return refusal(capfd, flags_for("data", corpus, *extra)).replace(f"{corpus}/", "")


# Line ends

ODD = "\u2028\u2029\u0085\x0b\x0c\x1e\x00"


def test_odd_line_ends_shift_no_line_and_are_counted_with_their_places(corpus, capfd):
    source = BOM + b"1\r\n" + f"2{ODD}\r3\n".encode() + b"\r\n4"
    spoil(corpus, "train", source, b"one\ntwo\nthree\r\nfour\r\n")
    facts = look(capfd, corpus)
    assert facts["pairs"] == 3
    assert facts["decisions"] == {
        "byte_order_mark": {"count": 1, "first": ["train.en:1"]},
        "carriage_return": {"count": 4, "first": ["train.en:1", "train.en:3", "train.de:3"]},
        "empty": {"count": 1, "first": ["train.en:3"]},
    }
    found = {code: (odd["count"], odd["first"]) for code, odd in facts["odd_characters"].items()}
    assert found == {f"U+{ord(c):04X}": (1, "train.en:2") for c in ODD + "\r"}


# Bytes that are not UTF-8


def test_training_pairs_that_are_not_utf8_are_skipped_by_request(corpus, capfd):
    spoil(corpus, "train", b"1\n\xff\n3\n\xff\n5\n", b"one\ntwo\n\xff\n\xff\nfive\n")
    facts = look(capfd, corpus, "--config.data.bad_lines=skip")
    assert facts["pairs"] == 2
    assert facts["skipped"] == {"not_utf8": 3}
    places = ["train.en:2", "train.de:3", "train.en:4"]
    assert facts["decisions"]["not_utf8"]["first"] == places


@pytest.mark.parametrize("split", ["validation", "test"])
def test_nothing_is_skipped_in_a_split_to_be_scored(corpus, capfd, split):
    spoil(corpus, split, b"1\n\xff\n\n", b"one\n\ntwo\n")
    refused = data_refusal(capfd, corpus, "--config.data.bad_lines=skip")
    assert refused.startswith(f"{split}.en:2: ")
    assert look(capfd, corpus, "--config.data.bad_lines=replace")["scored"][split] == 3


def test_columns_are_skipped_by_request_and_never_in_a_split_to_be_scored(corpus, capfd):
    (corpus / "train.tsv").write_bytes(b"en\tde\n1\tone\n2\n3\tthree\n")
    flag = f"--config.data.train={corpus / 'train.tsv'}"
    assert data_refusal(capfd, corpus, flag).startswith("train.tsv:3: ")
    facts = look(capfd, corpus, flag, "--config.data.bad_lines=skip")
    assert (facts["pairs"], facts["skipped"]) == (2, {"columns": 1, "markup": 1})
    flag = f"--config.data.validation={corpus / 'train.tsv'}"
    for policy in ("skip", "replace"):
        refused = data_refusal(capfd, corpus, flag, f"--config.data.bad_lines={policy}")
        assert refused.startswith("train.tsv:3: ")


def test_a_tab_inside_a_sentence_shifts_no_columns(corpus, capfd):
    (corpus / "train.tsv").write_bytes(b"1\tone\n2\tvalue\t2\ttwo\n3\tthree\n")
    flag = f"--config.data.train={corpus / 'train.tsv'}"
    assert data_refusal(capfd, corpus, flag).startswith("train.tsv:2: ")
    facts = look(capfd, corpus, flag, "--config.data.bad_lines=skip")
    assert (facts["pairs"], facts["skipped"]) == (2, {"columns": 1})
    flag = f"--config.data.validation={corpus / 'train.tsv'}"
    for policy in ("error", "replace", "skip"):
        refused = data_refusal(capfd, corpus, flag, f"--config.data.bad_lines={policy}")
        assert refused.startswith("train.tsv:2: ")


@pytest.mark.process
@pytest.mark.parametrize("policy", ["error", "skip"])
def test_a_prefix_to_be_scored_is_refused_with_file_and_line(
    trained_workdir, corpus, capfd, policy
):
    spoil(corpus, "other", b"1\n2\n", b"one\n\xff\n")
    flags = [f"--workdir={trained_workdir}", f"--data={corpus / 'other'}"]
    policy = f"--config.data.bad_lines={policy}"
    message = refusal(capfd, ["jformer", "evaluate", *flags, policy])
    assert re.match(rf"{corpus}/other\.de:2: .*UTF-8.*0xff\b.*position 0\b", message)


@pytest.fixture
def standard_input(monkeypatch):
    """A function that gives the program these bytes to read."""

    def put(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return put


@pytest.mark.process
@pytest.mark.parametrize("policy", [[], ["--config.data.bad_lines=skip"]])
def test_standard_input_that_is_not_utf8_is_refused_with_its_line(
    trained_workdir, tmp_path, standard_input, capfd, policy
):
    standard_input(b"1 2\n\n\xff\n4\n")
    output = tmp_path / "out"
    flags = [f"--workdir={trained_workdir}", f"--output={output}", *policy]
    message = refusal(capfd, ["jformer", "translate", *flags])
    assert re.match(r"standard input:3: .*UTF-8.*0xff\b.*position 0\b", message)
    assert not output.exists()


@pytest.mark.process
def test_a_file_to_translate_that_is_not_utf8_is_refused_with_its_line(
    trained_workdir, tmp_path, capfd
):
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"1\n2 \xff\n"))
    flags = [f"--workdir={trained_workdir}", f"--input={tmp_path / 'in.gz'}"]
    message = refusal(capfd, ["jformer", "translate", *flags])
    assert re.match(rf"{tmp_path}/in\.gz:2: .*UTF-8.*0xff\b.*position 2\b", message)


# Empty lines


def test_training_pairs_with_an_empty_side_are_skipped_and_counted_by_pair(corpus, capfd):
    source, target = "1\n\n3\n\n \t\n6\n\u3000\n", "one\ntwo\n\n\nfive\nsix\n\u00a0\n"
    spoil(corpus, "train", source.encode(), target.encode())
    facts = look(capfd, corpus)
    assert (facts["pairs"], facts["skipped"]) == (2, {"empty": 5})
    assert facts["decisions"]["empty"]["first"] == ["train.en:2", "train.en:3", "train.en:4"]


@pytest.mark.parametrize("blank", [b"\n", b" \t\n", b"\r\n", "\u3000\n".encode()])
def test_a_training_corpus_of_blank_lines_is_refused(corpus, capfd, blank):
    spoil(corpus, "train", blank * 4, b"one\n" * 4)
    message = data_refusal(capfd, corpus)
    assert re.match(r"train\.en: .*\b4 pairs skipped.*\bempty\b.*train\.en:1\b", message)


def test_a_training_corpus_without_a_byte_is_refused(corpus, capfd):
    spoil(corpus, "train", b"", b"")
    assert re.match(r"train\.en .*train\.de: .*\bempty\b", data_refusal(capfd, corpus))


def test_empty_lines_of_a_split_to_be_scored_stay(corpus, capfd):
    spoil(corpus, "validation", b"\n1\n \n\n", b"\none\n\ntwo\n")
    assert look(capfd, corpus)["scored"]["validation"] == 4


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_split_to_be_scored_without_a_line_is_refused(corpus, capfd, split):
    spoil(corpus, split, b"", b"")
    message = data_refusal(capfd, corpus)
    assert re.match(rf"{split}\.en .*{split}\.de: .*\bempty\b", message)


# Long lines. Each digit is one token, so n digits are n + 1 tokens.


def test_long_lines_of_a_split_to_be_scored_stay(corpus, capfd):
    spoil(corpus, "validation", b"1\n" + b"2" * 999 + b"\n", b"3" * 48 + b"\n4\n")
    for flags in ([], ["--config.data.long_pairs=truncate"]):
        facts = look(capfd, corpus, *flags)
        assert (facts["scored"]["validation"], facts["decisions"]) == (2, {})


def test_a_pair_may_not_be_longer_than_a_batch(corpus, capfd):
    message = data_refusal(capfd, corpus, "--config.train.batch_tokens=47")
    assert re.match(r"config\.train\.batch_tokens=47: .*data\.max_length", message)


def test_a_pair_may_be_as_long_as_a_batch(corpus, capfd):
    spoil(corpus, "train", b"1" * 47 + b"\n", b"2" * 47 + b"\n")
    facts = look(capfd, corpus, "--config.train.batch_tokens=48")
    for batching in ("buckets", "packed"):
        one = {"shapes": [[1, 48, 48]], "batches": 1, "token_utilization": 1.0}
        assert facts["batchings"][batching] == one


# Odd text

ODD_LINES = [
    "😀 👩\u200d👩\u200d👧 🏳️\u200d🌈",
    "𒀀𒀁 ꙮ ᚠᛇᚻ 𐍈",
    "नमस्ते دنیا 世界",
    "a\u0301\u0323\u200b\ufeff\ufffd\U0010ffff",
    "<s> </s> <pad> <unk> <0x41>",
]


def test_emoji_and_rare_scripts_are_training_text_like_any_other(corpus, capfd):
    text = "".join(line + "\n" for line in ODD_LINES).encode()
    spoil(corpus, "train", text, text)
    facts = look(capfd, corpus, "--config.data.max_length=200")
    assert (facts["pairs"], facts["decisions"]) == (len(ODD_LINES), {})


@pytest.mark.process
@pytest.mark.parametrize("line", [*ODD_LINES, "x\x00y" + ODD])
def test_text_that_training_never_saw_comes_back_from_its_tokens(trained_workdir, line):
    vocabulary = load(trained_workdir).vocabulary
    (ids,) = vocabulary.encode([line])
    assert vocabulary.decode(ids) == line


LETTERS = "".join(random.Random(0).choices(string.ascii_letters, k=10_000))  # hardly a merge


@pytest.mark.parametrize("token", ["12345" * 2000, LETTERS], ids=["digits", "letters"])
def test_a_token_of_10_000_characters_is_too_long_or_encoded(corpus, capfd, token):
    spoil(corpus, "train", b"1\n" + token.encode() + b"\n3\n", b"one\ntwo\nthree\n")
    facts = look(capfd, corpus)
    assert facts["decisions"] == {"too_long": {"count": 1, "first": ["train.en:2"]}}
    roomy = ["--config.data.max_length=10001", "--config.train.batch_tokens=10001"]
    facts = look(capfd, corpus, *roomy)
    assert (facts["pairs"], facts["decisions"]) == (3, {})
    assert 5000 < facts["lengths"]["en"]["max"] <= 10_001


GREEDY = ["--config.decode.beam_size=1"]  # quick


@pytest.fixture(scope="module")
def translated(trained_workdir, tmp_path_factory):
    """Odd lines to their translations and what was said about them, by one search for all."""
    folder = tmp_path_factory.mktemp("translated")
    lines = [b"1 2", b"", b" \t ", f"3{ODD}4".encode(), b"7\r", b"8 \xff 9", b"1" * 10_000]
    lines += [line.encode() for line in ODD_LINES]
    (folder / "in").write_bytes(BOM + b"\n".join(lines))
    flags = [f"--workdir={trained_workdir}", f"--input={folder}/in", f"--output={folder}/out"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", said := io.StringIO())
        assert (
            main(["jformer", "translate", *flags, *GREEDY, "--config.data.bad_lines=replace"]) == 0
        )
    outputs = (folder / "out").read_bytes().decode().split("\n")
    assert outputs.pop() == ""
    return lines, outputs, said.getvalue()


@pytest.mark.process
def test_each_line_to_translate_has_its_line_whatever_is_in_it(translated):
    lines, outputs, _ = translated
    assert len(outputs) == len(lines)


@pytest.mark.process
def test_empty_and_blank_lines_to_translate_stay_empty(translated):
    assert translated[1][1:3] == ["", ""]


@pytest.mark.process
def test_a_long_line_to_translate_is_cut_and_named(translated):
    (line,) = translated[2].splitlines()
    assert line.startswith("1 ")
    assert "line 7" in line
    assert "decode.long_texts=split" in line


@pytest.mark.process
def test_bytes_replaced_in_a_line_to_translate_are_u_fffd(trained_workdir, translated):
    lines, outputs, _ = translated
    texts = [lines[i].decode("utf-8", "replace").removesuffix("\r") for i in (0, 4, 5)]
    assert load(trained_workdir).translate(texts, beam_size=1) == [outputs[i] for i in (0, 4, 5)]


# What is no corpus


def test_a_wrong_name_of_a_data_set_is_refused_with_the_nearest(capfd):
    for flags in (
        ["--config=configs/tiny.py:mult30k"],
        ["--config=configs/tiny.py", "--config.data.name=mult30k"],
    ):
        assert "multi30k" in refusal(capfd, ["jformer", "data", *flags])


@pytest.mark.process
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--input={0}/none", "{0}/none: "),
        ("--input={0}", "{0}: "),
        ("--input={0}/in.gz", "{0}/in.gz: "),
    ],
)
def test_a_file_to_translate_that_is_none_is_refused_by_name(
    trained_workdir, tmp_path, capfd, flag, message
):
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"1 2 3\n" * 99)[:-9])
    flags = [f"--workdir={trained_workdir}", flag.format(tmp_path)]
    refused = refusal(capfd, ["jformer", "translate", *flags])
    assert refused.startswith(message.format(tmp_path))


@pytest.mark.process
def test_a_prefix_to_be_scored_that_is_none_is_refused_by_name(trained_workdir, tmp_path, capfd):
    flags = [f"--workdir={trained_workdir}", f"--data={tmp_path / 'none'}"]
    refused = refusal(capfd, ["jformer", "evaluate", *flags])
    assert refused.startswith(f"{tmp_path}/none.en: ")


def test_debug_shows_the_traceback_of_a_bad_line(corpus, capfd):
    spoil(corpus, "train", b"\xff\n", b"one\n")
    assert main(flags_for("data", corpus, "--debug")) == 2
    error = capfd.readouterr().err
    assert "Traceback" in error
    assert f"{REFUSED}{corpus}/train.en:1: " in error.splitlines()[-1]


# Before a run


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("source", [b"\xff\n", b"1\n2\n"], ids=["not UTF-8", "line counts"])
def test_a_bad_corpus_is_refused_before_a_run_is_begun(corpus, capfd, split, source):
    spoil(corpus, split, source, b"one\n")
    message = refusal(capfd, flags_for("train", corpus))
    assert message.startswith(f"{corpus}/{split}.en")
    assert not (corpus / "run").exists()
