"""metrics.jsonl, the clock, TensorBoard's event files and JAX's profile."""

import contextlib
import importlib.util
import io
import json
import re
import shutil
import struct
import subprocess
import sys
import time
import types
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image  # with which tensorboardX writes pictures

from jformer.components import arguments
from jformer.config import Config, read_config
from jformer.data.vocabulary import Vocabularies
from jformer.decoding.attention import Attention
from jformer.main import main
from jformer.rundir import read_metrics
from jformer.schema import flatten
from jformer.training import flops
from jformer.training.logging import Clock, Profile, TensorBoard, Window, cell, describe
from jformer.training.logging import warning_of_epochs as warning
from tests.conftest import small_config, small_flags

CONFIG = small_config()


@pytest.fixture
def wait(monkeypatch):
    """`wait(5)` moves the hands of the clock by five seconds."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return lambda seconds: now.append(now.pop() + seconds)


def test_the_clock_counts_seconds_by_activity_and_says_their_shares(wait):
    clock = Clock()
    for activity, seconds in (("steps", 100), ("compilation", 20), ("steps", 42), ("input", 2)):
        with contextlib.suppress(KeyError), clock(activity):
            wait(seconds)
            raise KeyError  # an activity that fails counts as well
    wait(36)
    assert clock.total == 200
    assert clock.seconds["steps"] == 142
    assert "03:20" in clock.report()
    shares = dict(re.findall(r"(\w+) (\d+)%", clock.report()))
    names = {"compilation": "10", "input": "1", "steps": "71", "evaluation": "0"}
    assert shares == {**names, "checkpoints": "0"}


def add_step(window, step, timed=True, **metrics):
    """Add a step of 4 tokens, of 2 * 6 positions, with a loss of 0.5 a token."""
    values = {"loss": 2.0, "nll": 1.0, "tokens": 4.0, "gradient_norm": 1.0, "skipped": 0}
    rows = {"source_BS": np.ones((2, 5)), "target_BT": np.ones((2, 6))}
    metrics = {name: jnp.float32(value) for name, value in (values | metrics).items()}
    window.add(rows, {"epoch": 0, "batch": step, "taken": step}, metrics, timed)


FLOPS_PER_TOKEN = flops.step_flops(CONFIG, 2, 5, 6) / 12


def test_metrics_are_fetched_late_and_added_to_the_sums_of_a_checkpoint():
    window = Window(CONFIG, 1.0, {"loss": 6.0, "tokens": 12.0, "steps": 3.0})
    for step in range(4, 9):
        add_step(window, step)
    assert [after["taken"] for after, _ in window.fetch(behind=2)] == [4, 5, 6]
    assert (window.sums["loss"], window.sums["steps"]) == (12.0, 6)
    assert [after["taken"] for after, _ in window.fetch()] == [7, 8]
    assert (window.sums["loss"], window.sums["tokens"], window.sums["steps"]) == (16.0, 32.0, 8)
    assert json.loads(json.dumps(window.sums)) == window.sums  # a checkpoint holds them


def test_means_are_of_the_window_and_the_speed_is_of_the_steps_timed_here():
    """Neither tokens of a checkpoint's sums nor a step that compiles are part of the speed."""
    before = {"loss": 6.0, "nll": 5.0, "tokens": 12.0, "steps": 3.0, "flops_in_all": 7.0}
    window = Window(CONFIG, 100.0, before)
    for step in range(4, 8):
        add_step(window, step, timed=step > 4)
    assert len([*window.fetch()]) == 4
    means = window.means(seconds=2.0)
    assert (means["loss"], means["nll"]) == (14 / 28, 9 / 28)
    assert means["perplexity"] == pytest.approx(np.exp(9 / 28))
    assert means["tokens_per_second"] == 12 / 2
    assert means["mfu"] == pytest.approx(12 * FLOPS_PER_TOKEN / 2 / 100)
    assert means["flops"] == pytest.approx(7 + 16 * FLOPS_PER_TOKEN)  # since the run began
    assert (window.sums["steps"], window.sums["flops_in_all"]) == (0, means["flops"])


def test_the_gradient_norm_is_a_mean_over_the_updates_that_were_made():
    window = Window(CONFIG, 1.0, {})
    for step, skipped in enumerate([0, 1, 0, 1], start=1):
        add_step(window, step, skipped=skipped, gradient_norm=3.0 - 3 * skipped)
    assert len([*window.fetch()]) == 4
    means = window.means(1.0)
    assert (means["gradient_norm"], means["skipped"]) == (3.0, 2.0)


def lines_of(workdir, split):
    return [line for line in read_metrics(workdir) if line["split"] == split]


@pytest.mark.process
def test_metrics_hold_every_line_that_is_due(trained_workdir):
    assert [line["step"] for line in lines_of(trained_workdir, "validation")] == [6, 12]
    train = lines_of(trained_workdir, "train")
    assert [line["step"] for line in train] == [4, 8, 12]
    assert set(train[0]) == {
        "step", "split", "loss", "nll", "perplexity", "learning_rate", "gradient_norm", "skipped",
        "tokens_per_second", "mfu", "flops", "seconds",
    }  # fmt: skip
    assert 0 < train[0]["seconds"] < train[1]["seconds"] < train[2]["seconds"]
    assert train[1]["tokens_per_second"] > 0
    config = read_config(trained_workdir / "config.json")
    factor = arguments("schedule", config.optimizer.schedule)["factor"]
    rate = factor * 16**-0.5 * 8 * config.optimizer.warmup_steps**-1.5
    assert train[1]["learning_rate"] == pytest.approx(rate, rel=1e-5)  # float32


@pytest.mark.process
def test_a_resumed_run_counts_on_after_a_log_that_is_ahead_of_it_and_torn(
    trained_workdir, corpus_directory, tmp_path
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    before = lines_of(workdir, "train")
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 14, "split": "train", "loss": 7.0}\n{"step": 14, "split": "val')
    flags = [*small_flags(corpus_directory, workdir), "--config.train.steps=20"]
    assert main(["jformer", *flags]) == 0
    train = lines_of(workdir, "train")
    assert train[:3] == before
    assert [line["step"] for line in train] == [4, 8, 12, 16, 20]
    for name in ("seconds", "flops"):
        counted = [line[name] for line in train]
        assert counted == sorted({*counted})


@pytest.mark.process
def test_a_run_of_one_step_claims_no_speed(corpus_directory, tmp_path):
    """Its time is that of compilation."""
    flags = small_flags(corpus_directory, tmp_path)
    assert main(["jformer", *flags, "--config.train.steps=1"]) == 0
    (line,) = lines_of(tmp_path, "train")
    assert (line["tokens_per_second"], line["mfu"]) == (0, 0)


@pytest.fixture(scope="module")
def profiled(corpus_directory, tmp_path_factory):
    """The directory of a run with a profile of steps 2 and 3, and what it said."""
    workdir, errors = tmp_path_factory.mktemp("profiled") / "run", io.StringIO()
    flags = [*small_flags(corpus_directory, workdir), "--config.train.scored=validation"]
    with contextlib.redirect_stderr(errors):
        assert main(["jformer", *flags, "--profile=2:2", "--config.model.dtype=bfloat16"]) == 0
    return workdir, errors.getvalue().splitlines()


@pytest.mark.process
def test_a_profile_is_a_trace_in_the_run_directory(profiled):
    workdir, lines = profiled
    (line,) = (line for line in lines if line.startswith("profile "))
    assert re.search(rf"2 steps from 2\b.*{workdir / 'profile'}", line)
    assert any(path.stat().st_size for path in (workdir / "profile").rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    ("text", "steps", "traced"),
    [
        ("3:2", range(1, 9), True),
        ("3:9", range(1, 5), True),  # a run that ends within the profile
        ("3:2", range(5, 7), False),  # one that resumes beyond it
        ("3:2", range(4, 7), False),  # and one that resumes within it
        ("", range(1, 3), False),
    ],
)
def test_a_profile_is_of_its_steps_and_is_written_when_the_run_ends(
    tmp_path, monkeypatch, text, steps, traced
):
    """JAX's profiler, replaced by one as strict, has run from the first step to the last."""
    current, traces = [], []

    def stop():
        if not current:
            raise RuntimeError("No profile started")
        traces.append(current.pop())

    monkeypatch.setattr("jax.profiler.start_trace", lambda folder: current.append([]))
    monkeypatch.setattr("jax.profiler.stop_trace", stop)
    profile = Profile(text, tmp_path)
    for step in steps:
        profile.step_begins(step)
        for trace in current:
            trace.append(step)
        profile.step_ended(step, {})
    profile.close()
    assert traces == ([[3, 4]] if traced else [])


class Sized(NamedTuple):
    size: int


@pytest.mark.process
def test_what_is_trained_is_said_before_the_first_step(profiled):
    _, lines = profiled
    text = "\n".join(lines[: next(i for i, line in enumerate(lines) if line.startswith("step "))])
    for facts in (
        r"^model +[\d,]+ parameters, .*\d+, bfloat16",
        r"^data +nothing skipped or changed",
        r"^batches +\d+x\d+\+\d+\b",
        r"^ +300 pairs in \d+ batches.*\b\d\d%",
        r"^training +12 steps, 1\.\d epochs.*\bjit\b.*1 x cpu$",
    ):
        assert re.search(facts, text, re.MULTILINE)


def test_devices_and_how_they_share_the_work_are_described():
    """With stand-ins, as this process has one device."""
    whole, split = ({"sharding": types.SimpleNamespace(is_fully_replicated=r)} for r in (1, 0))
    params = [types.SimpleNamespace(size=30, **whole), types.SimpleNamespace(size=90, **split)]
    device = types.SimpleNamespace(device_kind="TPU v9")
    mesh = types.SimpleNamespace(
        size=8, shape={"data": 2, "fsdp": 4, "model": 1}, devices=np.full((2, 4, 1), device)
    )
    batches = types.SimpleNamespace(
        layout=types.SimpleNamespace(shapes=[(8, 16, 20), (4, 32, 40)]), rows=range(5000),
        epoch=lambda number: range(8), token_utilization=lambda: 0.875,
    )  # fmt: skip
    vocabularies = Vocabularies(Sized(1300), Sized(2000))
    text = " ".join(describe(CONFIG, vocabularies, batches, mesh, params).split())
    for facts in (
        r"model 120 parameters.*1,300\b.*2,000\b.*float32\b.*\bXLA\b",
        r"batches 8x16\+20, 4x32\+40\b.*\b2\b.*\b5,000 pairs in 8\b.*\b88%",
        r"training 12 steps, 1\.5 epochs.*\b8 x TPU v9\b.*data 2, fsdp 4, model 1\b.*\b75%",
    ):
        assert re.search(facts, text)


def test_many_epochs_are_a_warning_that_names_the_keys():
    assert warning(50.0) == ""
    assert re.search(r"50\.1\b.*config\.train\.steps\b.*config\.train\.patience", warning(50.1))


def events_in(workdir):
    """The records of all event files in the order of their names, as TensorBoard reads them."""
    from tensorboardX.proto.event_pb2 import Event

    events = []
    for path in sorted((workdir / "tensorboard").iterdir()):
        content = path.read_bytes()
        while content:  # a record: its length and the CRC of that, its bytes and the CRC of those
            (length,) = struct.unpack("<Q", content[:8])
            events.append(Event.FromString(content[12 : 12 + length]))
            content = content[12 + length + 4 :]
    return events


def values_in(workdir, tag):
    """`(step, value)` of each event with the tag, without what TensorBoard purges on a restart."""
    seen = []
    for event in events_in(workdir):
        if event.session_log.status == event.session_log.START:
            seen = [(step, value) for step, value in seen if step < event.step]
        seen += [(event.step, value) for value in event.summary.value if value.tag == tag]
    return seen


def text_in(workdir, tag):
    *_, (_, value) = values_in(workdir, f"{tag}/text_summary")  # as tensorboardX calls it
    assert value.metadata.plugin_data.plugin_name == "text"
    return value.tensor.string_val[0].decode()


def picture_in(workdir, tag):
    ((_, value),) = values_in(workdir, tag)
    return np.asarray(Image.open(io.BytesIO(value.image.encoded_image_string)).convert("L"))


@pytest.fixture
def board(tmp_path):
    with contextlib.closing(TensorBoard(tmp_path, 0, CONFIG)) as board:
        yield board


@pytest.mark.process
def test_tensorboard_has_the_curves_of_the_log_and_the_config(trained_workdir):
    for split, name in (("train", "loss"), ("train", "learning_rate"), ("validation", "nll")):
        curve = [(n, v.simple_value) for n, v in values_in(trained_workdir, f"{split}/{name}")]
        logged = lines_of(trained_workdir, split)
        assert curve == [(line["step"], np.float32(line[name])) for line in logged]
    lines = text_in(trained_workdir, "config").splitlines()
    assert [line.split(" ")[1] for line in lines[2:]] == list(flatten(Config()))
    assert "| train.steps | 12 |" in lines


def test_scalars_are_on_disk_while_the_run_goes_on_even_if_they_are_no_numbers(board, tmp_path):
    board.scalars(10, "train", {"loss": 2.5, "nll": float("nan")})
    for _ in range(500):  # a thread of tensorboardX writes them
        time.sleep(0.01)
        if values_in(tmp_path, "train/nll"):
            break
    assert [(n, v.simple_value) for n, v in values_in(tmp_path, "train/loss")] == [(10, 2.5)]
    assert np.isnan(values_in(tmp_path, "train/nll")[0][1].simple_value)


def test_a_resumed_run_hides_later_steps_of_the_one_before_and_has_a_file_of_its_own(tmp_path):
    """Within one second, and although the one before was killed: its file was not closed."""
    boards = []
    for resumed, losses in ((0, {10: 1.0, 20: 2.0, 30: 3.0}), (20, {30: 7.0}), (30, {})):
        boards.append(TensorBoard(tmp_path, resumed, CONFIG))
        for step, loss in losses.items():
            boards[-1].scalars(step, "train", {"loss": loss})
    for board in boards:
        board.close()
    curve = [(step, value.simple_value) for step, value in values_in(tmp_path, "train/loss")]
    assert curve == [(10, 1.0), (20, 2.0), (30, 7.0)]
    assert len([*(tmp_path / "tensorboard").iterdir()]) == 3


def test_translations_are_one_table_that_no_character_breaks(board, tmp_path):
    board.translations(30, [("a | b", "*c*", "d\ne"), ("1 < 2 & 3", "\\", "[x]")])
    board.close()
    assert text_in(tmp_path, "validation/translations") == (
        "| source | reference | output |\n"
        "| --- | --- | --- |\n"
        "| a \\| b | \\*c\\* | d e |\n"
        "| 1 &lt; 2 &amp; 3 | \\\\ | \\[x\\] |"
    )
    assert cell("Ein  Satz, d_model: #1_000!") == "Ein  Satz, d_model: #1_000!"


def test_cross_attention_is_a_picture_and_tokens_stand_beside_it(board, tmp_path):
    """White is a weight of 1, heads are side by side with a line between them."""
    weights_HQM = np.zeros((2, 3, 5), np.float32)
    weights_HQM[0, 1, 2] = 1.004  # more than 1, as rounding to bfloat16 gives it
    weights_HQM[1, 2, 0] = 0.4
    names = ("decoder_0/cross_attention", "encoder_0/self_attention")
    weights = dict.fromkeys(names, weights_HQM)
    board.attention(40, Attention(weights, ["Ein", "Hund"], ["<s>", "a", "|"]))
    board.close()
    pixels = picture_in(tmp_path, "attention/decoder_0/cross_attention")
    height, width = pixels.shape
    side = height // 3
    assert (height, width) == (3 * side, 2 * 5 * side + 1)
    middle = slice(side // 2, None, side)
    heads = pixels[middle, : 5 * side][:, middle], pixels[middle, 5 * side + 1 :][:, middle]
    np.testing.assert_array_equal(heads, np.round(255 * np.minimum(weights_HQM, 1)))
    assert {*pixels[:, 5 * side]}.isdisjoint({0, 255})
    assert not values_in(tmp_path, "attention/encoder_0/self_attention")
    lines = text_in(tmp_path, "attention/tokens").splitlines()
    assert lines[2:] == ["| 0 | Ein | &lt;s> |", "| 1 | Hund | a |", "| 2 |  | \\| |"]


def test_a_picture_of_long_sentences_is_no_wider_than_a_screen(board, tmp_path):
    weights_HQM = np.zeros((8, 61, 59), np.float32)
    board.attention(40, Attention({"decoder_1/cross_attention": weights_HQM}, [], []))
    board.close()
    assert 8 * 59 < picture_in(tmp_path, "attention/decoder_1/cross_attention").shape[1] < 2100


@pytest.mark.process
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
def test_torch_is_not_imported_where_it_is_installed():
    program = (
        "import sys; from jformer.training.logging import summary_writer; "
        "summary_writer(); assert 'torch' not in sys.modules; import torch"
    )
    # Whole, so that torch itself can be imported afterwards.
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)
