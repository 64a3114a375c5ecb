"""metrics.jsonl, TensorBoard's event files and JAX's profile."""

import shutil
import struct
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from jformer.components import arguments
from jformer.config import Config, read_config
from jformer.main import main
from jformer.rundir import read_metrics
from jformer.schema import flatten, replaced
from jformer.training import flops
from jformer.training.logging import Window
from tests.conftest import small_config, small_flags

CONFIG = replaced(small_config(), {"model": {"dtype": "bfloat16"}})
H100 = SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")
MESH = SimpleNamespace(devices=np.array([H100, H100]), size=2)
FLOPS_PER_TOKEN = flops.step_flops(CONFIG, 2, 5, 6) / 12


def add_step(window, rows=2, **metrics):
    """Add a step of 4 tokens, of 2 * 6 positions, with a loss of 0.5 a token."""
    values = {"loss": 2.0, "nll": 1.0, "tokens": 4.0, "gradient_norm": 1.0, "skipped": 0}
    batch = {"source_BS": np.ones((rows, 5)), "target_BT": np.ones((rows, 6))}
    metrics = {name: jnp.float32(value) for name, value in (values | metrics).items()}
    return window.add(batch, metrics)


def test_means_are_of_the_window_and_the_speed_is_of_the_steps_timed_here():
    """A step that compiles is not part of the speed."""
    before = {"loss": 6.0, "nll": 5.0, "tokens": 12.0, "steps": 3.0}
    before |= {"flops": 12 * FLOPS_PER_TOKEN, "flops_in_all": 7.0}
    window = Window(CONFIG, MESH, before)
    compiled = [
        add_step(window, gradient_norm=8.0 * (step == 5), skipped=step == 6) for step in range(4, 8)
    ]
    assert compiled == [True, False, False, False]
    window.sums.update(timed_steps=3, timed_seconds=2.0)
    window.fetch()
    means = window.means()
    assert (means["loss"], means["nll"]) == (14 / 28, 9 / 28)
    assert means["perplexity"] == pytest.approx(np.exp(9 / 28))
    assert (means["skipped"], means["gradient_norm"]) == (1, 8 / 6)  # of the updates that were made
    assert means["tokens_per_second"] == 12 / 2
    assert means["mfu"] == pytest.approx(12 * FLOPS_PER_TOKEN / 2 / (2 * 989e12))
    assert means["flops"] == pytest.approx(7 + 16 * FLOPS_PER_TOKEN)  # since the run began
    assert (window.sums["steps"], window.sums["flops_in_all"]) == (0, means["flops"])
    assert add_step(window, rows=3)


def lines_of(workdir, split):
    return [line for line in read_metrics(workdir) if line["split"] == split]


@pytest.mark.process
def test_metrics_hold_every_line_that_is_due(trained_workdir):
    assert [line["step"] for line in lines_of(trained_workdir, "validation")] == [6, 12]
    train = lines_of(trained_workdir, "train")
    assert [line["step"] for line in train] == [4, 8, 12]
    assert set(train[0]) == {
        "step", "split", "loss", "nll", "perplexity", "learning_rate", "gradient_norm", "skipped",
        "tokens_per_second", "flops", "seconds",
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
    # TensorBoard hides the steps from the first of a resumed run on.
    starts = [event.step for event in events_in(workdir) if event.session_log.status]
    assert starts == [1, 13]
    assert [step for step, _ in values_in(workdir, "train/loss")] == [4, 8, 12, 16, 20]


@pytest.mark.process
def test_a_profile_is_a_trace_in_the_run_directory(trained_workdir, corpus_directory, tmp_path):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    flags = [*small_flags(corpus_directory, workdir), "--config.train.steps=15"]
    assert main(["jformer", *flags, "--profile=14:1"]) == 0
    assert any(path.stat().st_size for path in (workdir / "profile").rglob("*.xplane.pb"))


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


@pytest.mark.process
def test_tensorboard_has_the_curves_of_the_log_and_the_config(trained_workdir):
    for split, name in (("train", "loss"), ("train", "learning_rate"), ("validation", "nll")):
        curve = [(n, v.simple_value) for n, v in values_in(trained_workdir, f"{split}/{name}")]
        logged = lines_of(trained_workdir, split)
        assert curve == [(line["step"], np.float32(line[name])) for line in logged]
    lines = text_in(trained_workdir, "config").splitlines()
    assert [line.split()[0] for line in lines] == list(flatten(Config()))
    assert "    train.steps = 12" in lines
