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

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image  # with which tensorboardX writes pictures

from jformer.components import arguments
from jformer.config import Config, read_config
from jformer.decoding.attention import Attention
from jformer.main import main
from jformer.rundir import read_metrics
from jformer.schema import flatten
from jformer.training import flops
from jformer.training.logging import Clock, Profile, TensorBoard, Window, warning_of_epochs
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
    assert shares.items() > {"compilation": "10", "input": "1", "steps": "71"}.items()


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
        add_step(window, step, timed=step > 4, gradient_norm=8.0 * (step == 5), skipped=step == 6)
    assert len([*window.fetch()]) == 4
    means = window.means(seconds=2.0)
    assert (means["loss"], means["nll"]) == (14 / 28, 9 / 28)
    assert means["perplexity"] == pytest.approx(np.exp(9 / 28))
    assert (means["skipped"], means["gradient_norm"]) == (1, 8 / 6)  # of the updates that were made
    assert means["tokens_per_second"] == 12 / 2
    assert means["mfu"] == pytest.approx(12 * FLOPS_PER_TOKEN / 2 / 100)
    assert means["flops"] == pytest.approx(7 + 16 * FLOPS_PER_TOKEN)  # since the run began
    assert (window.sums["steps"], window.sums["flops_in_all"]) == (0, means["flops"])


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
    assert (
        main(["jformer", *small_flags(corpus_directory, workdir), "--config.train.steps=20"]) == 0
    )
    train = lines_of(workdir, "train")
    assert train[:3] == before
    assert [line["step"] for line in train] == [4, 8, 12, 16, 20]
    for name in ("seconds", "flops"):
        counted = [line[name] for line in train]
        assert counted == sorted({*counted})


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
    assert re.search(rf"2 steps, .*\b2\b.*{workdir / 'profile'}", line)
    assert any(path.stat().st_size for path in (workdir / "profile").rglob("*.xplane.pb"))


def test_a_profile_ends_with_its_run_and_is_not_begun_by_one_that_resumes_within_it(tmp_path):
    for name, steps in (("short", (1, 2, 3, 4)), ("resumed", (4, 5, 6))):
        profile = Profile("3:3", tmp_path / name)
        for step in steps:
            profile.step_begins(step)
            profile.step_ended(step, {})
        profile.close()
    assert [*(tmp_path / "short").rglob("*.xplane.pb")]
    assert not (tmp_path / "resumed").exists()


@pytest.mark.process
def test_what_is_trained_is_said_before_the_first_step(profiled):
    _, lines = profiled
    text = "\n".join(lines).partition("\nstep ")[0]
    for facts in (
        r"^model +[\d,]+ parameters, .*\d+, bfloat16",
        r"^data +300 pairs.*nothing skipped or changed",
        r"^batches +\d+x\d+\+\d+\b",
        r"^ +\d+ batches.*\b\d\d%",
        r"^training +12 steps, 1\.\d epochs.*\bjit\b.*1 x cpu$",
    ):
        assert re.search(facts, text, re.MULTILINE)


def test_many_epochs_are_a_warning_that_names_the_keys():
    keys = r"config\.train\.steps\b.*config\.train\.patience"
    assert re.search(rf"50\.1\b.*{keys}", warning_of_epochs(50.1))
    assert warning_of_epochs(50.0) == ""


def events_in(workdir):
    """The records of all event files in the order of their names, as TensorBoard reads them."""
    from tensorboardX.proto.event_pb2 import Event

    events = []
    for path in sorted((workdir / "tensorboard").iterdir()):
        content = path.read_bytes()
        # A record: its length and the CRC of that, its bytes and the CRC of those.
        while len(content) > 8:
            (length,) = struct.unpack_from("<Q", content)
            if len(content) < 16 + length:
                break  # it is being written
            events.append(Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
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
    time.sleep(2)  # a thread of tensorboardX writes them each second
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


def test_cross_attention_is_a_picture_and_tokens_stand_beside_it(board, tmp_path):
    """Two heads side by side; of long sentences too it is no wider than a screen."""
    weights_HQM = np.zeros((2, 3, 5), np.float32)
    weights_HQM[0, 1, 2] = 1.004  # more than 1, as rounding to bfloat16 gives it: still white
    names = [
        f"{name}_attention" for name in ("decoder_0/cross", "decoder_1/cross", "decoder_0/self")
    ]
    long_HQM = np.zeros((8, 61, 59), np.float32)
    weights = dict(zip(names, (weights_HQM, long_HQM, weights_HQM), strict=True))
    board.attention(40, Attention(weights, ["Ein", "Hund"], ["<s>", "a", "|"]))
    board.close()
    tags = (f"attention/{name}" for name in names)
    (small,), (large,), own = ([v.image for _, v in values_in(tmp_path, tag)] for tag in tags)
    gray = Image.open(io.BytesIO(small.encoded_image_string)).convert("L")
    assert gray.size == (small.width, small.height)
    assert gray.width > 3 * gray.height
    assert gray.getextrema() == (0, 255)
    assert 8 * 59 < large.width < 2100
    assert own == []
    lines = text_in(tmp_path, "attention/tokens").splitlines()
    assert lines[2:] == ["| 0 | Ein | &lt;s> |", "| 1 | Hund | a |", "| 2 |  | \\| |"]


@pytest.mark.process
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
def test_torch_is_not_imported_where_it_is_installed():
    program = "import sys; from jformer.training.logging import summary_writer; summary_writer(); "
    program += "assert 'torch' not in sys.modules; import torch"  # it can be imported afterwards
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)
