"""Lines through a run: in order, each answered, none shifted, in every format."""

import gzip
import json
import math
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

import jformer
from jformer.decoding.translate import Hypothesis
from jformer.main import main
from jformer.stream import translation_line
from tests.conftest import number_words

WORKDIR = Path(__file__).parent / "stored_run" / "run"  # knows numbers below 1000
KNOWN = number_words(100, 400)
LINES = [KNOWN.sources[n] for n in (137, 0, 260, 299, 218, 104, 55)]
LONG = "1 2 3. " * 30  # far more tokens than data.max_length
ONE_BY_ONE = "--config.decode.read_ahead=1"


@pytest.fixture(scope="session")
def run():
    return jformer.load(WORKDIR)


def call(command, *flags):
    return main(["jformer", command, f"--workdir={WORKDIR}", *flags])


@pytest.fixture
def translate(tmp_path):
    """Bytes through `main translate`, from a file to a file."""

    def translate(data, *flags):
        source, target = tmp_path / "translated.in", tmp_path / "translated.out"
        source.write_bytes(data)
        assert call("translate", f"--input={source}", f"--output={target}", *flags) == 0
        return target.read_bytes()

    return translate


def as_file(lines):
    return "".join(line + "\n" for line in lines).encode()


def in_lines(data):
    assert data.endswith(b"\n") or not data
    return data.decode().split("\n")[:-1]


def test_lines_keep_their_order_however_many_are_read_ahead(
    run, translate, tmp_path, monkeypatch, capfd
):
    # Of all lengths, so that within a window the search has them in another order.
    lines = [LINES[0], "1", LINES[1], "1 0 5", LINES[2], "1 2", LINES[3], LINES[4]]
    expected = run.translate(lines)
    assert len(set(expected)) == len(lines)
    assert in_lines(translate(as_file(lines))) == expected
    assert in_lines(translate(as_file(lines), "--config.decode.read_ahead=3")) == expected
    capfd.readouterr()
    (tmp_path / "in").write_bytes(as_file(lines))
    with open(tmp_path / "in") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert call("translate") == 0
    assert capfd.readouterr() == (as_file(expected).decode(), "")


@pytest.mark.process
def test_with_read_ahead_1_each_line_is_answered_before_the_next_is_written(run):
    command = [sys.executable, "-m", "jformer.main", "translate", f"--workdir={WORKDIR}"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*command, ONE_BY_ONE], bufsize=0, **pipes) as process:
        for line, expected in zip(LINES[:3], run.translate(LINES[:3]), strict=True):
            process.stdin.write(line.encode() + b"\n")
            assert select.select([process.stdout], [], [], 100)[0], "no answer"
            assert os.read(process.stdout.fileno(), 1000).decode() == expected + "\n"
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_only_a_newline_ends_a_line(run, translate):
    odd = ["1\u2028 2", "1\u00852", "1\r2", "1\x0b2\x0c3", "1\x002", "\x1c1\x1d2\x1e"]
    # After a byte order mark, with carriage returns at the end; the last has no end at all.
    lines = [LINES[0], *odd, LINES[1]]
    data = b"\xef\xbb\xbf" + "\r\n".join(lines).encode()
    output = in_lines(translate(data))
    assert output == run.translate(lines)
    assert all(output)


def test_a_packed_file_is_read_and_a_damaged_one_named(run, tmp_path, capfd):
    packed, out = tmp_path / "in.gz", tmp_path / "out"
    flags = [f"--input={packed}", f"--output={out}"]
    packed.write_bytes(gzip.compress(as_file(LINES)))
    assert call("translate", *flags) == 0
    assert in_lines(out.read_bytes()) == run.translate(LINES)
    packed.write_bytes(packed.read_bytes()[:-9])
    assert call("translate", *flags) == 2
    assert str(packed) in capfd.readouterr().err


@pytest.mark.parametrize(
    ("data", "output"),
    [(b"", b""), ("\n \t\r\n\u3000\u00a0\n\x0c".encode(), b"\n" * 4)],
)
def test_a_line_without_words_is_empty_in_the_output(translate, data, output):
    assert translate(data) == output


def test_a_long_line_is_cut_with_a_warning(run, translate, capfd):
    output = in_lines(translate(as_file(["", LONG, "", LONG + "4"])))
    (warning,) = capfd.readouterr().err.splitlines()
    assert LONG[:30] in warning
    assert "data.max_length" in warning
    kept = run.vocabulary.decode(run.vocabulary.encode([LONG])[0][:23])
    assert output == ["", *run.translate([kept]), "", *run.translate([kept])]


def test_bytes_that_are_not_utf8_are_named(run, tmp_path, monkeypatch, capfd):
    bad = tmp_path / "bad"
    bad.write_bytes(as_file(LINES[:1]) + b"1 \xff 3\n" + as_file(LINES[1:]))
    files = [f"--input={bad}", f"--output={tmp_path / 'out'}"]
    assert call("translate", *files) == 2
    assert f"{bad}:2: " in capfd.readouterr().err
    assert os.listdir(tmp_path) == ["bad"]  # it is found before any work
    with open(bad) as file:
        monkeypatch.setattr("sys.stdin", file)
        assert call("translate", ONE_BY_ONE) == 2
    printed = capfd.readouterr()
    assert "standard input:2: " in printed.err
    assert in_lines(printed.out.encode()) == run.translate(LINES[:1])


def test_jsonl_has_all_that_python_has(run, translate):
    lines = [*LINES, "", '"\\ \u2028 1']
    output = translate(as_file(lines), "--format=jsonl", "--config.decode.n_best=2")
    rows = [json.loads(line) for line in in_lines(output)]
    assert [row["line"] for row in rows] == [*range(1, 10)]
    assert [row["source"] for row in rows] == lines
    expected = run.hypotheses(lines, details=True, n_best=2)
    assert [len(row["outputs"]) for row in rows] == [2] * 7 + [1, 2]
    for row, n_best in zip(rows, expected, strict=True):
        for output, one in zip(row["outputs"], n_best, strict=True):
            links = [tuple(map(int, link.split("-"))) for link in output.pop("alignment").split()]
            assert links == one.alignment
            names = ("text", "score", "log_prob", "complete", "tokens", "token_log_probs")
            assert output == {name: getattr(one, name) for name in names}
            assert "".join(one.tokens) == one.text


def test_a_line_break_in_an_output_shifts_nothing():
    one = Hypothesis(
        "a\nb\tc", -1.0, -2.0, True, [3], [4], ["a", "\n", "b\tc"], [-1.0] * 4, [(0, 1)]
    )
    assert translation_line("text", 1, "x", [one]) == "a b\tc\n"
    assert translation_line("jsonl", 1, "x", [one]).count("\n") == 1


def test_with_any_beginning_of_an_output_as_its_prefix_it_is_the_output(run, translate, tmp_path):
    (expected,) = run.translate(LINES[:1])
    prefixes = [expected[:end] for end in range(1, len(expected))]
    (tmp_path / "prefixes").write_bytes(as_file(prefixes))
    lines = as_file(LINES[:1] * len(prefixes))
    output = in_lines(translate(lines, f"--prefix={tmp_path / 'prefixes'}"))
    assert output == [expected] * len(prefixes)


def test_a_line_without_its_prefix_is_an_error(tmp_path, capfd, monkeypatch):
    source, prefixes = tmp_path / "in", tmp_path / "prefixes"
    source.write_bytes(as_file(LINES))
    prefixes.write_bytes(as_file(["one"] * 6))
    files = [f"--prefix={prefixes}", f"--input={source}", f"--output={tmp_path / 'out'}"]
    assert call("translate", *files) == 2
    assert f"{prefixes}:7: missing" in capfd.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["in", "prefixes"]
    # The number of lines in a stream is unknown before its end.
    with open(source) as file:
        monkeypatch.setattr("sys.stdin", file)
        assert call("translate", files[0], ONE_BY_ONE) == 2
    printed = capfd.readouterr()
    assert f"{prefixes}:7: missing" in printed.err
    assert printed.out.count("\n") == 6


def test_a_target_has_the_log_probability_that_translating_gave_it(translate, tmp_path, capfd):
    lines = in_lines(translate(as_file(LINES), "--format=jsonl"))
    found = [json.loads(line)["outputs"][0] for line in lines]
    (tmp_path / "own.en").write_bytes(as_file(LINES))
    (tmp_path / "own.de").write_bytes(as_file(one["text"] for one in found))
    data = f"--data={tmp_path / 'own'}"
    capfd.readouterr()
    assert call("score", data, "--format=jsonl", "--config.decode.read_ahead=3") == 0
    printed = capfd.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert [(row["line"], row["source"]) for row in rows] == [*enumerate(LINES, start=1)]
    for row, one in zip(rows, found, strict=True):
        assert (row["target"], row["tokens"]) == (one["text"], one["tokens"])
        assert row["log_prob"] == pytest.approx(one["log_prob"], rel=1e-4)
        assert row["token_log_probs"] == pytest.approx(one["token_log_probs"], rel=1e-3, abs=1e-5)
        mean = row["log_prob"] / len(row["token_log_probs"])
        assert row["perplexity"] == pytest.approx(math.exp(-mean))
    tokens = sum(len(row["token_log_probs"]) for row in rows)
    assert f"{sum(row['log_prob'] for row in rows):.2f} of {tokens:,} tokens" in printed.err
    assert call("score", data) == 0
    plain = [float(line) for line in capfd.readouterr().out.splitlines()]
    assert plain == pytest.approx([row["log_prob"] for row in rows], rel=1e-3, abs=1e-5)
