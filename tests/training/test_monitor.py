"""metrics.jsonl without a repeated or missing line, and progress that a log file can hold."""

import json
import re

import jax.numpy as jnp

from jformer.training.monitor import MetricsFile, Progress, Window


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_resumed_file_drops_what_happens_again_and_a_torn_last_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, 0)
    for step in (10, 20, 30):
        file.write(step, "train", loss=1.5)
    with path.open("a") as torn:
        torn.write('{"step": 40, "spl')
    file = MetricsFile(path, 20)
    file.write(30, "train", loss=1.0)
    assert steps_in(path) == [10, 20, 30]


def test_a_line_has_its_step_its_split_and_named_numbers(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", 0)
    file.write(10, "validation", nll=0.25)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "step": 10, "split": "validation", "nll": 0.25,
    }  # fmt: skip


def test_sums_go_on_from_those_of_a_checkpoint():
    window = Window({"loss": 1.25, "tokens": 2.0})
    for _ in range(5):
        window.add({"loss": jnp.float32(0.5), "tokens": jnp.float32(1)})
    assert window.sums() == {"loss": 3.75, "tokens": 7.0}
    assert window.sums() == {"loss": 3.75, "tokens": 7.0}  # fetching adds nothing


def test_progress_off_a_terminal_is_lines_with_the_time_left(capsys):
    progress = Progress(90, 1000)
    for _ in range(20):
        progress.advance({})
    progress.report(110, "loss 2.5")
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"step 91/1000  done in 0 s, with compilation", lines[0])
    assert re.fullmatch(r"step 110/1000  ETA 00:00  ", lines[1])
    assert re.fullmatch(r"step 110/1000  ETA 00:00  loss 2.5", lines[2])
