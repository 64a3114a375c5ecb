"""Event files read back, by their format and tensorboardX's protocol buffers."""

import dataclasses
import importlib.util
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest

from jformer.config import Config
from jformer.decoding.attention import Attention
from jformer.schema import flatten
from jformer.training.tensorboard import TensorBoardWriter, cell, import_tensorboardx

Event, _ = import_tensorboardx()


def events_in(workdir):
    """Of all files in the order of their names, as TensorBoard reads them."""
    events = []
    for path in sorted((workdir / "tensorboard").iterdir()):
        content = path.read_bytes()
        while content:  # a record: its length and the CRC of that, its bytes and the CRC of those
            (length,) = struct.unpack("<Q", content[:8])
            events.append(Event.FromString(content[12 : 12 + length]))
            content = content[12 + length + 4 :]
    return events


def values_in(workdir, tag):
    """`(step, value)` of each event with the tag."""
    events = events_in(workdir)
    return [(event.step, v) for event in events for v in event.summary.value if v.tag == tag]


def text_in(workdir, tag):
    ((_, value),) = values_in(workdir, tag)
    assert value.metadata.plugin_data.plugin_name == "text"
    return value.tensor.string_val[0].decode()


def pixels_in(image):
    """Of an 8-bit gray PNG whose rows are unfiltered, by the specification."""
    content = image.encoded_image_string
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        kind_and_data = content[at + 4 : at + 8 + length]
        (crc,) = struct.unpack(">I", content[at + 8 + length : at + 12 + length])
        assert crc == zlib.crc32(kind_and_data)
        chunks[kind_and_data[:4]] = kind_and_data[4:]
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 0, 0, 0, 0]
    assert (image.height, image.width, image.colorspace) == (height, width, 1)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:]


@pytest.fixture
def board(tmp_path):
    board = TensorBoardWriter(tmp_path, 0, Config())
    yield board
    board.close()


def test_scalars_are_on_disk_at_once_with_their_step_and_value(board, tmp_path):
    board.scalars(10, "train", {"loss": 2.5, "learning_rate": 0.125})
    board.scalars(20, "train", {"loss": 1.5})
    board.scalars(20, "validation", {"nll": 0.75})

    def curve(tag):
        return [(step, value.simple_value) for step, value in values_in(tmp_path, tag)]

    assert curve("train/loss") == [(10, 2.5), (20, 1.5)]
    assert curve("train/learning_rate") == [(10, 0.125)]
    assert curve("validation/nll") == [(20, 0.75)]


def test_a_loss_that_is_no_number_is_written_too(board, tmp_path):
    board.scalars(10, "train", {"loss": float("nan")})
    ((_, value),) = values_in(tmp_path, "train/loss")
    assert np.isnan(value.simple_value)


def test_the_config_is_a_table_of_all_its_keys(tmp_path):
    config = dataclasses.replace(Config(), seed=17)
    TensorBoardWriter(tmp_path, 0, config).close()
    lines = text_in(tmp_path, "config").splitlines()
    assert lines[:2] == ["| key | value |", "| --- | --- |"]
    assert [line.split(" ")[1] for line in lines[2:]] == list(flatten(config))
    assert "| seed | 17 |" in lines


def test_translations_are_one_table_that_no_character_breaks(board, tmp_path):
    board.translations(30, [("a | b", "*c*", "d\ne"), ("1 < 2 & 3", "\\", "[x]")])
    assert text_in(tmp_path, "validation/translations") == (
        "| source | reference | output |\n"
        "| --- | --- | --- |\n"
        "| a \\| b | \\*c\\* | d e |\n"
        "| 1 &lt; 2 &amp; 3 | \\\\ | \\[x\\] |"
    )


def test_text_without_markup_stays_as_it_is():
    assert cell("Ein  Satz, d_model: #1_000!") == "Ein  Satz, d_model: #1_000!"


def test_heads_are_side_by_side_and_white_is_a_weight_of_1(board, tmp_path):
    weights_HQM = np.random.default_rng(0).dirichlet(np.ones(5), (3, 7)).astype(np.float32)
    weights_HQM[0, 0] = [0, 0, 1.004, 0, 0]  # more than 1, as rounding to bfloat16 gives it
    board.attention(40, Attention({"decoder_0/cross_attention": weights_HQM}, ["a"] * 5, ["b"] * 7))
    ((step, value),) = values_in(tmp_path, "attention/decoder_0/cross_attention")
    pixels = pixels_in(value.image)
    assert step == 40
    assert pixels.shape == (7 * 12, 3 * 5 * 12 + 2)
    assert set(pixels[:, 5 * 12]) == {128}
    for head in range(3):
        left = head * (5 * 12 + 1)
        block = pixels[:, left : left + 5 * 12].reshape(7, 12, 5, 12)
        assert (block == block[:, :1, :, :1]).all()  # a weight is a square of one gray
        expected = np.minimum(weights_HQM[head], 1) * 255
        np.testing.assert_allclose(block[:, 0, :, 0], expected, atol=0.5 + 1e-4)  # whole numbers


def test_pictures_are_of_the_attention_to_the_source_only(board, tmp_path):
    square = np.zeros((2, 3, 3), np.float32)
    names = ["encoder_0/self_attention", "decoder_0/self_attention"]
    board.attention(40, Attention(dict.fromkeys(names, square), [], []))
    assert not any(values_in(tmp_path, f"attention/{name}") for name in names)


def test_long_sentences_have_smaller_squares(board, tmp_path):
    weights_HQM = np.zeros((8, 61, 59), np.float32)
    board.attention(40, Attention({"decoder_1/cross_attention": weights_HQM}, [], []))
    ((_, value),) = values_in(tmp_path, "attention/decoder_1/cross_attention")
    assert pixels_in(value.image).shape == (61 * 4, 8 * 59 * 4 + 7)  # 4 = 2048 // (8 * 59)


def test_tokens_stand_beside_the_pictures(board, tmp_path):
    board.attention(40, Attention({}, ["Ein", "Hund"], ["<s>", "a", "|"]))
    assert text_in(tmp_path, "attention/tokens").splitlines()[2:] == [
        "| 0 | Ein | &lt;s> |",
        "| 1 | Hund | a |",
        "| 2 |  | \\| |",
    ]


def test_a_resumed_board_hides_what_happens_again_and_keeps_what_does_not(tmp_path):
    before = TensorBoardWriter(tmp_path, 0, Config())
    for step in (10, 20, 30):
        before.scalars(step, "train", {"loss": step / 10})
    after = TensorBoardWriter(tmp_path, 20, Config())  # the run was killed: nothing was closed
    after.scalars(30, "train", {"loss": 7.0})
    seen = []
    for event in events_in(tmp_path):
        if event.session_log.status == event.session_log.START:
            # TensorBoard's own rule for such an event.
            seen = [(step, loss) for step, loss in seen if step < event.step]
        for value in event.summary.value:
            if value.tag == "train/loss":
                seen.append((event.step, value.simple_value))
    before.close()
    after.close()
    assert seen == [(10, 1.0), (20, 2.0), (30, 7.0)]


def test_a_board_made_in_the_same_second_has_its_own_file(tmp_path):
    for resume_step in (0, 90, 100):
        TensorBoardWriter(tmp_path, resume_step, Config()).close()
    starts = [event.step for event in events_in(tmp_path) if event.HasField("session_log")]
    assert starts == [1, 91, 101]


@pytest.mark.process
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
def test_torch_is_not_imported_where_it_is_installed():
    program = (
        "import sys; from jformer.training.tensorboard import import_tensorboardx; "
        "import_tensorboardx(); assert 'torch' not in sys.modules; import torch"
    )
    # Whole, so that torch itself can be imported afterwards.
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)
