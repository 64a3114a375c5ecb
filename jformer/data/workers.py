"""Tokenization in several processes, since only one thread of a process at a time runs Python.

Each worker is `python -m jformer.data.workers`, which answers until its standard input ends, so it
exits with its parent, even if that is killed. (A worker of `multiprocessing` waits for ever for a
parent that was killed, and first runs the user's script once more.)
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

PAIRS_EACH = 100_000  # with fewer pairs, a worker hardly saves the time of its start
MOST = 8  # workers that a single reader of text can keep busy

# Ids, lengths and word starts of the sources, then of the targets.
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
    """Yield each chunk with its ids, in order; `pairs` is the approximate number of all pairs."""
    number = max(1, min(MOST, cpus(), pairs // PAIRS_EACH))
    with contextlib.ExitStack() as stack:
        answer = partial(encode, vocabularies)
        if number > 1:
            idle: SimpleQueue = SimpleQueue()
            for _ in range(number):
                process = start(vocabularies)
                stack.callback(process.communicate)  # closes its input, which ends it
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
        # The worker imports from the same paths as this process, and encodes in one thread.
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TOKENIZERS_PARALLELISM": "false",
        },
        start_new_session=True,  # Ctrl-C reaches only the parent
    )
    assert process.stdin is not None
    pickle.dump(vocabularies, process.stdin)
    return process


def ask(idle: SimpleQueue, chunk: Chunk) -> Sides:
    """Encode a chunk in an idle worker; raise `RuntimeError` if the worker has ended."""
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
    """Return the number of CPUs that this process may use, or of all if that is unknown."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    vocabularies = pickle.load(sys.stdin.buffer)
    # The parent may end at any time, even while it sends a chunk or before it reads the answer.
    with contextlib.suppress(EOFError, pickle.UnpicklingError, BrokenPipeError):
        while True:
            pickle.dump(encode(vocabularies, pickle.load(sys.stdin.buffer)), sys.stdout.buffer)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
