"""Encoding in several processes, since of one process's threads only one at a time runs Python.

Each is `python -m jformer.data.workers`, which answers until its standard input ends: it goes when
its parent goes, however that ends. (A process of `multiprocessing` waits for ever for a parent that
was killed, and first runs the user's script once more.)
"""

import contextlib
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from jformer.data.corpora import Split
from jformer.data.vocabulary import Vocabularies

PAIRS_EACH = 100_000  # with fewer, a process hardly earns its start
MOST = 8  # processes that one reader of text can keep at work

# Ids, lengths and word starts of the sources, and of the targets.
Sides = list[tuple[np.ndarray, np.ndarray, np.ndarray]]


class Chunk(NamedTuple):
    corpus: int
    lines: list[int]
    sources: list[str]
    targets: list[str]


def encode(vocabularies: Vocabularies, texts: Chunk | Split) -> Sides:
    sources = vocabularies.source.encode_flat(texts.sources)
    return [sources, vocabularies.target.encode_flat(texts.targets)]


def encode_all(
    vocabularies: Vocabularies, chunks: Iterable[Chunk], pairs: int
) -> Generator[tuple[Chunk, Sides], None, None]:
    """Each chunk with its ids, in order; `pairs` is how many pairs there are in all, or nearly."""
    number = max(1, min(MOST, cpus(), pairs // PAIRS_EACH))
    with contextlib.ExitStack() as stack:
        answer = partial(encode, vocabularies)
        if number > 1:
            idle: SimpleQueue = SimpleQueue()
            for _ in range(number):
                process = start(vocabularies)
                stack.callback(process.communicate)  # its input ends, and so does it
                idle.put(process)
            answer = partial(ask, idle)
        pool = stack.enter_context(ThreadPoolExecutor(number))
        coming: deque = deque()
        for chunk in chunks:
            coming.append((chunk, pool.submit(answer, chunk)))
            if len(coming) > 2 * number:
                chunk, sides = coming.popleft()
                yield chunk, sides.result()
        for chunk, sides in coming:
            yield chunk, sides.result()


def start(vocabularies: Vocabularies) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-m", "jformer.data.workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # It finds this package where this process did, and encodes in one thread.
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TOKENIZERS_PARALLELISM": "false",
        },
        start_new_session=True,  # Ctrl-C is for the parent
    )
    assert process.stdin is not None
    pickle.dump(vocabularies, process.stdin)
    return process


def ask(idle: SimpleQueue, chunk: Chunk) -> Sides:
    """The answer of a process that has nothing to do."""
    process = idle.get()
    try:
        pickle.dump(chunk, process.stdin)
        process.stdin.flush()
        return pickle.load(process.stdout)
    except (EOFError, OSError) as error:
        raise RuntimeError(
            f"a process that tokenizes ended with status {process.wait()}"
        ) from error
    finally:
        idle.put(process)


def cpus() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    vocabularies = pickle.load(sys.stdin.buffer)
    # The parent may go at any time, also in the midst of a question or before its answer.
    with contextlib.suppress(EOFError, pickle.UnpicklingError, BrokenPipeError):
        while True:
            pickle.dump(encode(vocabularies, pickle.load(sys.stdin.buffer)), sys.stdout.buffer)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
