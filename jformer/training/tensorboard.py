"""The TensorBoard log of a run, shown by `tensorboard --logdir=WORKDIR`.

Events are written at once, by the calling thread: tensorboardX's `SummaryWriter` would queue them
for another thread, and a killed run would lose the last ones. Only tensorboardX's record writer and
protocol buffers are used.
Letters: H heads, Q queries, M memory.
"""

import itertools
import re
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from jformer.config import Config
from jformer.decoding.attention import Attention
from jformer.rundir import TENSORBOARD
from jformer.schema import flatten

CELL, WIDEST = 12, 2048  # pixels: side of a weight's square; width beyond which it shrinks
GAP = 128  # gray level between two heads, unlike that of a weight of 0 or of 1


class TensorBoardWriter:
    """Writes event files in `workdir/tensorboard`; each call flushes its events to the file."""

    def __init__(self, workdir: Path, resume_step: int, config: Config):
        """Open a new event file, which supersedes events of the same run after `resume_step`."""
        self._event, events_writer = import_tensorboardx()
        directory = workdir / TENSORBOARD
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files in the order of their names. Host and second, which the name
        # has besides, are the same for a run that is resumed at once.
        self._writer = events_writer(str(directory / "events"), f".{resume_step:09}")
        # Makes TensorBoard hide the events of other files from this step on.
        self._write(resume_step + 1, session_log={"status": "START"})
        rows = [(key, str(value)) for key, value in flatten(config).items()]
        self._text(resume_step, "config", ("key", "value"), rows)

    def scalars(self, step: int, split: str, numbers: dict[str, float]) -> None:
        """Write a point of the curve of each number: `train/loss`, `validation/nll`, ..."""
        self._summary(
            step, [{"tag": f"{split}/{name}", "simple_value": n} for name, n in numbers.items()]
        )

    def translations(self, step: int, rows: list[tuple[str, str, str]]) -> None:
        """Write a table of `(source, reference, output)`."""
        self._text(step, "validation/translations", ("source", "reference", "output"), rows)

    def attention(self, step: int, seen: Attention) -> None:
        """Write a picture of each layer's cross-attention for one pair.

        White is a weight of 1. Rows are queries, columns are positions of the memory, and the
        heads are side by side. A table lists the tokens.
        """
        images = [
            {"tag": f"attention/{name}", "image": image(picture(weights_HQM))}
            for name, weights_HQM in seen.weights.items()
            if name.endswith("/cross_attention")
        ]
        self._summary(step, images)
        tokens = itertools.zip_longest(seen.source_tokens, seen.target_tokens, fillvalue="")
        rows = [(str(position), *pair) for position, pair in enumerate(tokens)]
        self._text(step, "attention/tokens", ("position", "source", "target"), rows)

    def close(self) -> None:
        self._writer.close()

    def _text(self, step: int, tag: str, head: tuple, rows: list[tuple]) -> None:
        shape = {"dim": [{"size": 1}]}
        strings = [table(head, rows).encode()]
        tensor = {"dtype": "DT_STRING", "string_val": strings, "tensor_shape": shape}
        metadata = {"plugin_data": {"plugin_name": "text"}}
        self._summary(step, [{"tag": tag, "metadata": metadata, "tensor": tensor}])

    def _summary(self, step: int, values: list[dict]) -> None:
        self._write(step, summary={"value": values})

    def _write(self, step: int, **content: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), step=step, **content))
        self._writer.flush()


def import_tensorboardx() -> tuple[Any, Any]:
    """Return tensorboardX's classes `Event` and `EventsWriter`, imported without torch.

    tensorboardX imports torch wherever that is installed, only to name a type. That would cost
    seconds, hundreds of MB, and a second set of CUDA libraries in the process of JAX.
    """
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]  # import raises ImportError
    try:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
    finally:
        if hidden:
            del sys.modules["torch"]
    return Event, EventsWriter


def table(head: tuple, rows: list[tuple]) -> str:
    """Return a table in Markdown, with cells escaped so that they appear literally."""
    lines = [head, ("---",) * len(head), *([cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    escaped = re.sub(r"([\\`*|\[\]])", r"\\\1", re.sub(r"[\r\n]+", " ", text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


def picture(weights_HQM: np.ndarray) -> np.ndarray:
    """Return the gray levels (height, width) of a picture with the heads side by side."""
    H, _, M = weights_HQM.shape
    side = max(1, min(CELL, WIDEST // (H * M)))
    # In bfloat16 a weight may be a little more than 1.
    pixels_HQM = np.round(255 * weights_HQM.astype(np.float32).clip(0, 1)).astype(np.uint8)
    heads = [pixels.repeat(side, axis=0).repeat(side, axis=1) for pixels in pixels_HQM]
    gap = np.full((heads[0].shape[0], 1), GAP, np.uint8)
    return np.concatenate([part for head in heads for part in (gap, head)][1:], axis=1)


def image(pixels: np.ndarray) -> dict[str, Any]:
    """Return gray pixels as TensorBoard's image, encoded as PNG by `zlib` alone."""
    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)  # 8 bits, gray
    unfiltered = np.pad(pixels, ((0, 0), (1, 0))).tobytes()  # filter type 0 before each row
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(unfiltered)), (b"IEND", b"")]
    png = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks:
        checksum = zlib.crc32(kind + data)
        png += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
    return {"height": height, "width": width, "colorspace": 1, "encoded_image_string": png}
