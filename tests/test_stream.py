"""Lines through a run: in order, each answered, none shifted, in every format."""

import functools
import gzip
import json
import math
import os
import select
import subprocess
import sys

import pytest

import jformer
from jformer.main import main
from jformer.run import Translation
from jformer.stream import json_row, text_row, tsv_rows, windows
from tests.conftest import number_words, small_flags, write_split

pytestmark = pytest.mark.process

KNOWN = number_words(1000, 1300)
LINES = [KNOWN.sources[n] for n in (137, 0, 260, 299, 218, 104, 55)]
LONG = "1 2 3. " * 30  # far more tokens than data.max_length
ONE_BY_ONE = "--config.decode.read_ahead=1"


@functools.cache
def train(corpus_directory, workdir):
    """A run that has its training pairs by heart: what it says differs from line to line."""
    folder = workdir.with_name("known")
    folder.mkdir()
    write_split(folder / "train", KNOWN)
    arguments = [
        *small_flags(corpus_directory, workdir),
        f"--config.data.train={folder / 'train'}",
        "--config.data.test=",
        "--config.model.dropout=0.0",
        "--config.optimizer.schedule=constant",
        "--config.optimizer.learning_rate=0.01",
        "--config.optimizer.warmup_steps=20",
        "--config.train.steps=300",
        "--config.train.log_every=300",
        "--config.train.evaluate_every=300",
        "--config.train.checkpoint_every=150",
    ]
    assert main(["jformer", *arguments]) == 0
    return workdir


@pytest.fixture(scope="session")
def learnt(corpus_directory, tmp_path_factory):
    return train(corpus_directory, tmp_path_factory.getbasetemp() / "learnt")


@pytest.fixture(scope="session")
def run(learnt):
    return jformer.load(learnt)


@pytest.fixture
def translate(learnt, tmp_path):
    """Bytes through `main translate`, from a file to a file."""

    def translate(data, *flags):
        source, target = tmp_path / "translated.in", tmp_path / "translated.out"
        source.write_bytes(data)
        files = [f"--input={source}", f"--output={target}"]
        assert main(["jformer", "translate", f"--workdir={learnt}", *files, *flags]) == 0
        return target.read_bytes()

    return translate


def as_file(lines):
    return "".join(line + "\n" for line in lines).encode()


def in_lines(data):
    assert data.endswith(b"\n") or not data
    return data.decode().split("\n")[:-1]


def columns(data):
    return [line.split("\t") for line in in_lines(data)]


# ---- in and out


def test_lines_keep_their_order_however_many_are_read_ahead(
    run, translate, learnt, tmp_path, monkeypatch, capfd
):
    # Of all lengths, so that within a window the search has them in another order.
    lines = [LINES[0], "1", LINES[1], "1 0 5", LINES[2], "1 2", LINES[3], LINES[4]]
    expected = run.translate(lines)
    assert len(set(expected)) >= 6
    assert in_lines(translate(as_file(lines))) == expected
    assert in_lines(translate(as_file(lines), "--config.decode.read_ahead=2")) == expected
    capfd.readouterr()
    (tmp_path / "in").write_bytes(as_file(lines))
    with open(tmp_path / "in") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["jformer", "translate", f"--workdir={learnt}"]) == 0
    assert capfd.readouterr() == (as_file(expected).decode(), "")


def test_as_many_lines_are_read_ahead_as_half_a_minute_needs(run, monkeypatch):
    clock, pace = [0.0], 100.0
    monkeypatch.setattr("jformer.stream.time.monotonic", lambda: clock[0])

    def sizes(lines, **decode):
        for window in windows(iter(range(lines)), run.with_decode(**decode)):
            clock[0] += len(window) / pace
            yield len(window)

    assert list(sizes(9500)) == [1000, 3000, 3000, 2500]
    assert list(sizes(9500, read_ahead=1500)) == [1000, *[1500] * 5, 1000]
    assert list(sizes(700, read_ahead=300)) == [300, 300, 100]
    pace = 5.0  # a few sentences alone would take long for each
    assert list(sizes(2500)) == [1000, 1000, 500]
    assert list(sizes(0)) == []


def test_with_read_ahead_1_each_line_is_answered_before_the_next_is_written(run, learnt):
    command = [sys.executable, "-m", "jformer.main", "translate", f"--workdir={learnt}"]
    process = subprocess.Popen(
        [*command, ONE_BY_ONE],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        for line, expected in zip(LINES, run.translate(LINES), strict=True):
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
    output = translate(data)
    assert output.count(b"\n") == data.count(b"\n") + 1
    assert in_lines(output) == run.translate(lines)
    assert all(in_lines(output))


def test_a_packed_file_is_read_and_a_damaged_one_named(run, learnt, tmp_path, capfd):
    packed, out = tmp_path / "in.gz", tmp_path / "out"
    arguments = ["translate", f"--workdir={learnt}", f"--input={packed}", f"--output={out}"]
    packed.write_bytes(gzip.compress(as_file(LINES)))
    assert main(["jformer", *arguments]) == 0
    assert in_lines(out.read_bytes()) == run.translate(LINES)
    packed.write_bytes(packed.read_bytes()[:-9])
    capfd.readouterr()
    assert main(["jformer", *arguments]) == 2
    assert f"{packed}: damaged gzip file" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("data", "output"),
    [
        (b"", b""),
        (b"\n", b"\n"),
        (b"\xef\xbb\xbf", b"\n"),
        ("\n \t\r\n\u3000\u00a0\n\x0c".encode(), b"\n\n\n\n"),
    ],
)
def test_a_line_without_words_is_empty_in_the_output(translate, data, output):
    assert translate(data) == output


def test_a_long_line_is_cut_with_a_warning_that_has_its_number(run, translate, capfd):
    capfd.readouterr()
    lines = ["", LONG, "", LONG + "4"]
    output = in_lines(translate(as_file(lines), ONE_BY_ONE))
    (warning,) = capfd.readouterr().err.splitlines()
    assert warning.startswith("2 ")
    assert "line 2, line 4" in warning
    assert "data.max_length" in warning
    kept = run.vocabulary.decode(run.vocabulary.encode([LONG])[0][:47])
    assert output == ["", *run.translate([kept]), "", *run.translate([kept])]
    assert capfd.readouterr().err == ""


def test_bytes_that_are_not_utf8_are_named_or_replaced(
    run, translate, learnt, tmp_path, monkeypatch, capfd
):
    bad = tmp_path / "bad"
    bad.write_bytes(as_file(LINES[:1]) + b"1 \xff 3\n" + as_file(LINES[1:]))
    arguments = [f"--input={bad}", f"--output={tmp_path / 'out'}", ONE_BY_ONE]
    for policy in ("error", "skip"):  # a line cannot be left out here
        flag = f"--config.data.bad_lines={policy}"
        capfd.readouterr()
        assert main(["jformer", "translate", f"--workdir={learnt}", *arguments, flag]) == 2
        assert f"{bad}:2: not UTF-8 (byte 0xff at position 2 of" in capfd.readouterr().err
    assert os.listdir(tmp_path) == ["bad"]  # it is found before any work
    with open(bad) as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["jformer", "translate", f"--workdir={learnt}", ONE_BY_ONE]) == 2
    told = capfd.readouterr()
    assert "standard input:2: not UTF-8" in told.err
    assert in_lines(told.out.encode()) == run.translate(LINES[:1])
    output = translate(bad.read_bytes(), "--config.data.bad_lines=replace")
    assert in_lines(output) == run.translate([LINES[0], "1 \ufffd 3", *LINES[1:]])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_lines(learnt, tmp_path):
    """By the process's own measure of its peak."""
    program = (
        "import resource, sys\n"
        "from jformer.main import main\n"
        "assert main(sys.argv) == 0\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    kilobytes = []
    for count in (2_000, 20_000):
        (tmp_path / "in").write_bytes(as_file(LINES[n % len(LINES)] for n in range(count)))
        files = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}"]
        arguments = ["translate", f"--workdir={learnt}", *files, "--config.decode.read_ahead=500"]
        command = [sys.executable, "-c", program, *arguments]
        kilobytes.append(int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
        assert (tmp_path / "out").read_bytes().count(b"\n") == count
    assert abs(kilobytes[1] - kilobytes[0]) < 50_000


# ---- formats


def test_jsonl_has_all_that_python_has(run, translate):
    lines = [*LINES, "", '"\\ \u2028 1']
    output = translate(as_file(lines), "--format=jsonl", "--config.decode.n_best=2")
    rows = [json.loads(line) for line in in_lines(output)]
    assert [row["line"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [row["source"] for row in rows] == lines
    expected = run.hypotheses(lines, details=True, n_best=2)
    assert [len(row["outputs"]) for row in rows] == [2] * 7 + [1, 2]
    for row, ones in zip(rows, expected, strict=True):
        for output, one in zip(row["outputs"], ones, strict=True):
            links = [tuple(map(int, link.split("-"))) for link in output.pop("alignment").split()]
            # In another window, or alone: float32 sums in another order.
            assert output.pop("score") == pytest.approx(one.score, rel=1e-5)
            assert output.pop("log_prob") == pytest.approx(one.log_prob, rel=1e-5)
            assert output.pop("token_log_probs") == pytest.approx(one.token_log_probs, rel=1e-4)
            assert output == {"text": one.text, "complete": one.complete, "tokens": one.tokens}
            assert links == one.alignment
            assert "".join(one.tokens) == one.text


def test_tsv_has_a_row_for_each_output(run, translate):
    lines = [LINES[0], "", *LINES[1:]]
    rows = columns(translate(as_file(lines), "--format=tsv", "--config.decode.n_best=2"))
    firsts = [[row[0], row[1]] for row in rows]
    assert firsts[:5] == [["1", "1"], ["1", "2"], ["2", "1"], ["3", "1"], ["3", "2"]]
    assert len(firsts) == 15
    assert {len(row) for row in rows} == {7}
    ones = [one for ones in run.hypotheses(lines, details=True, n_best=2) for one in ones]
    for (_, _, score, log_prob, text, tokens, links), one in zip(rows, ones, strict=True):
        assert float(score) == pytest.approx(one.score, abs=2e-6, rel=1e-5)
        assert float(log_prob) == pytest.approx(one.log_prob, abs=2e-6, rel=1e-5)
        assert text == one.text
        assert tokens.split() == [token.replace(" ", "\u2581") for token in one.tokens]
        assert links == " ".join(f"{i}-{j}" for i, j in one.alignment)


def test_a_tab_or_a_line_break_in_an_output_shifts_nothing(translate, tmp_path):
    (tmp_path / "prefix").write_text("one\ttwo\n")
    prefix = f"--prefix={tmp_path / 'prefix'}"
    (row,) = columns(translate(as_file(LINES[:1]), "--format=tsv", prefix))
    assert len(row) == 7
    assert row[4].startswith("one two")
    (text,) = in_lines(translate(as_file(LINES[:1]), prefix))
    assert text.startswith("one\ttwo")
    # A model may say a line break; no input can make it.
    one = Translation("a\nb\tc", -1.0, -2.0, True, ["a", "\n", "b\tc"], [-1.0] * 4, [(0, 1)])
    assert text_row(1, "x", [one]) == "a b\tc\n"
    assert json_row(1, "x", [one]).count("\n") == 1
    row = "1\t1\t-1.000000\t-2.000000\ta b c\ta \u2581 b\u2581c\t0-1\n"
    assert tsv_rows(1, "x", [one]) == row


# ---- prefixes


def test_with_any_beginning_of_an_output_as_its_prefix_it_is_the_output(run, translate, tmp_path):
    (expected,) = run.translate(LINES[:1])
    assert expected.count(" ") == 3
    prefixes = [expected[:end] for end in range(1, len(expected))]
    (tmp_path / "prefixes").write_bytes(as_file(prefixes))
    lines = as_file(LINES[:1] * len(prefixes))
    output = in_lines(translate(lines, f"--prefix={tmp_path / 'prefixes'}"))
    assert output == [expected] * len(prefixes)


def test_outputs_have_the_terms_of_their_lines(translate, tmp_path):
    (tmp_path / "terms").write_text("3\tnine nine\n7 7\tzero\n")
    lines = ["1 2 3", "4 5", "33"]
    free = in_lines(translate(as_file(lines)))
    bound = in_lines(
        translate(as_file(lines), f"--config.decode.constraint=terms(file='{tmp_path / 'terms'}')")
    )
    assert "nine nine" in bound[0]
    assert "nine nine" not in free[0]
    assert bound[1:] == free[1:]


@pytest.mark.parametrize("count", [6, 8])
def test_a_line_without_its_prefix_is_an_error_at_once(learnt, tmp_path, capfd, monkeypatch, count):
    source, prefixes = tmp_path / "in", tmp_path / "prefixes"
    source.write_bytes(as_file(LINES))
    prefixes.write_bytes(as_file(["one"] * count))
    arguments = ["jformer", "translate", f"--workdir={learnt}", f"--prefix={prefixes}"]
    capfd.readouterr()
    assert main([*arguments, f"--input={source}", f"--output={tmp_path / 'out'}"]) == 2
    shorter = f"{prefixes}:7" if count == 6 else f"{source}:8"
    assert f"{shorter}: missing" in capfd.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["in", "prefixes"]
    # How many lines a stream has, nobody knows before its end.
    with open(source) as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main([*arguments, ONE_BY_ONE]) == 2
    told = capfd.readouterr()
    missing = "prefix:7" if count == 6 else "standard input:8"
    assert f"{missing}: missing" in told.err
    assert told.out.count("\n") == min(count, 7)


# ---- scores


def score(learnt, data, *flags):
    assert main(["jformer", "score", f"--workdir={learnt}", f"--data={data}", *flags]) == 0


def test_a_target_has_the_log_probability_that_translating_gave_it(
    learnt, translate, tmp_path, capfd
):
    found = [
        json.loads(line)["outputs"][0]
        for line in in_lines(translate(as_file(LINES), "--format=jsonl"))
    ]
    assert all(one["complete"] for one in found)
    (tmp_path / "own.en").write_bytes(as_file(LINES))
    (tmp_path / "own.de").write_bytes(as_file(one["text"] for one in found))
    capfd.readouterr()
    score(learnt, tmp_path / "own", "--format=jsonl", "--config.decode.read_ahead=3")
    told = capfd.readouterr()
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert [row["line"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [row["source"] for row in rows] == LINES
    for row, one in zip(rows, found, strict=True):
        assert row["target"] == one["text"]
        assert row["tokens"] == one["tokens"]
        assert row["log_prob"] == pytest.approx(one["log_prob"], rel=1e-4)
        assert row["token_log_probs"] == pytest.approx(one["token_log_probs"], rel=1e-3, abs=1e-5)
        assert sum(row["token_log_probs"]) == pytest.approx(row["log_prob"], rel=1e-5)
        assert row["perplexity"] == pytest.approx(
            math.exp(-row["log_prob"] / len(row["token_log_probs"]))
        )
    total = sum(row["log_prob"] for row in rows)
    tokens = sum(len(row["token_log_probs"]) for row in rows)
    mean = math.exp(-total / tokens)
    end = f"log-probability {total:.2f} of {tokens:,} tokens, perplexity {mean:.3f}\n"
    assert told.err == end


def test_scores_of_pairs_in_text_and_tsv(learnt, tmp_path, capfd):
    pairs = [("1 2 3", "one two three"), ("4", "a\u2028b"), ("", "nothing"), ("5", "")]
    (tmp_path / "pairs.tsv").write_bytes(as_file("\t".join(pair) for pair in pairs))
    capfd.readouterr()
    score(learnt, tmp_path / "pairs.tsv")
    plain = [float(line) for line in capfd.readouterr().out.splitlines()]
    score(learnt, tmp_path / "pairs.tsv", "--format=tsv", f"--output={tmp_path / 'out'}")
    assert capfd.readouterr().out == ""
    rows = columns((tmp_path / "out").read_bytes())
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert [float(row[1]) for row in rows] == plain
    for _, log_prob, perplexity, tokens, log_probs in rows:
        parts = [float(part) for part in log_probs.split()]
        assert len(parts) == len(tokens.split()) + 1
        # Each part has four decimals.
        assert sum(parts) == pytest.approx(float(log_prob), abs=5e-5 * len(parts))
        mean = math.exp(-float(log_prob) / len(parts))
        assert float(perplexity) == pytest.approx(mean, rel=1e-4, abs=1e-4)
