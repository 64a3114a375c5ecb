"""Several processes give what one gives, and none of them outlives its parent."""

import contextlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

from jformer.data import tokenize, workers
from jformer.data.corpora import open_corpus
from jformer.data.tokenize import write_tokens
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.data.workers import Chunk, encode_all
from jformer.errors import UserError
from tests.conftest import number_words, write_split

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture
def two_workers(monkeypatch):
    monkeypatch.setattr(workers, "PAIRS_EACH", 1)
    monkeypatch.setattr(workers, "cpus", lambda: 2)


@pytest.fixture(scope="module")
def vocabularies():
    split = number_words(100, 160)
    return Vocabularies(Vocabulary.train(split.sources, 290), Vocabulary.train(split.targets, 300))


def chunks(number):
    return (Chunk(0, [n], [f"{n} <s>"], [f"word {n}"] * 3) for n in range(number))


def children():
    """Processes of which this one is the parent."""
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return {int(pid) for pid in file.read().split()}


def test_several_processes_write_the_files_that_one_writes(
    vocabularies, tmp_path, monkeypatch, two_workers
):
    corpora, written = [], []
    for name, first in (("one", 100), ("other", 300)):
        write_split(tmp_path / name, number_words(first, first + 53))
        with (tmp_path / f"{name}.en").open("a") as file:
            file.write("\n")
        with (tmp_path / f"{name}.de").open("a") as file:
            file.write("empty on the other side\n")
        corpora.append(open_corpus(str(tmp_path / name), "en", "de"))
    monkeypatch.setattr(tokenize, "CHUNK", 7)
    for number in (1, 2):
        monkeypatch.setattr(workers, "cpus", lambda number=number: number)
        folder = tmp_path / str(number)
        folder.mkdir()
        write_tokens(folder, corpora, vocabularies, "error", 9, words=True)
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1]
    assert len(written[0]) == 8


def test_processes_encode_at_once_and_answer_in_order(vocabularies, two_workers):
    before, during = children(), set()
    for number, (chunk, sides) in enumerate(encode_all(vocabularies, chunks(20), 20)):
        during |= children() - before
        assert chunk.lines == [number]
        for (ids, lengths, _), vocabulary, texts in zip(
            sides, (vocabularies.source, vocabularies.target), chunk[2:], strict=True
        ):
            assert ids.tolist() == [*itertools.chain(*vocabulary.encode(texts))]
            assert len(lengths) == len(texts)
    assert number == 19
    assert len(during) == 2
    assert children() == before


def test_a_fault_of_the_text_ends_the_processes(vocabularies, two_workers, tmp_path):
    write_split(tmp_path / "bad", number_words(100, 105))
    with (tmp_path / "bad.de").open("ab") as file:
        file.write(b"\xff\n")
    with (tmp_path / "bad.en").open("a") as file:
        file.write("x\n")
    (tmp_path / "made").mkdir()
    before = children()
    with pytest.raises(UserError, match=r"bad\.de:6: not UTF-8"):
        write_tokens(
            tmp_path / "made", [open_corpus(str(tmp_path / "bad"), "en", "de")],
            vocabularies, "error", None, words=False,
        )  # fmt: skip
    assert children() == before


def test_a_process_that_ended_before_its_time_is_told_with_its_status(vocabularies, two_workers):
    before = children()

    def killing():
        yield from chunks(1)
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)
        yield from chunks(9)

    with (
        pytest.raises(RuntimeError, match="a process that tokenizes ended with status -9"),
        contextlib.closing(encode_all(vocabularies, killing(), 10)) as encoded,
    ):
        list(encoded)


PARENT = """
import itertools, os, signal, time
from jformer.data import tokenize, workers
from tests.data.test_workers import Chunk, Vocabularies, Vocabulary, children, chunks

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored under nohup
workers.PAIRS_EACH, workers.cpus = 1, lambda: 2
one = Vocabulary.train(["a"], 290)

def waiting():
    yield from chunks(9)
    print(*children(), flush=True)
    time.sleep(600)

list(workers.encode_all(Vocabularies(one, one), waiting(), 10))
"""


@pytest.mark.parametrize("kept", [None, -1])
def test_a_process_says_nothing_where_its_parent_goes_in_the_midst(kept, vocabularies):
    """Before it has the answer, or while it writes the question."""
    question = pickle.dumps(vocabularies) + pickle.dumps(Chunk(0, [1], ["1"], ["word 1"]))[:kept]
    process = subprocess.Popen(
        [sys.executable, "-m", "jformer.data.workers"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdout.close()
    process.stdin.write(question)
    process.stdin.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == 0


@pytest.mark.process
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_processes_go_when_their_parent_is(how):
    """Ctrl-C goes to all processes of a terminal; only the parent has to say anything."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    if how == "killed":
        parent.kill()
    else:
        os.killpg(parent.pid, signal.SIGINT)
    assert parent.communicate()[1].count("Traceback") == (how == "interrupted")
    deadline = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline, "a worker is still there"
        time.sleep(0.05)
