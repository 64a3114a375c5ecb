"""The benchmarks compared with other projects, on work that takes seconds."""

import argparse
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import time

import pytest
import yaml

import jformer
from experiments.benchmarks import racers, train
from experiments.benchmarks.turns import take_turns
from jformer.config import BOS, EOS, PAD
from jformer.data.vocabulary import Vocabulary

pytestmark = pytest.mark.process
with_peers = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None,
    reason="the extra `parity` has the peers: pip install -e '.[parity]'",
)
STORED = "tests/stored_run"


def benchmark(name, *flags):
    """Return the cells of the printed table, by the name of the contender."""
    command = [sys.executable, "-m", f"experiments.benchmarks.{name}", *flags, "--rounds=1"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [re.split(r" *\| *", line)[1:-1] for line in result.stdout.splitlines() if "|" in line]
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}


@pytest.mark.slow
@with_peers
def test_the_train_step_is_compared_with_pytorch_and_with_other_values_of_keys(tmp_path):
    file, variant = tmp_path / "train.json", "model.remat=layer"
    rows = benchmark(
        "train", "--config=tiny", "--keys=data.vocabulary_size=500,model.num_layers=1", "--rows=4",
        "--length=8", "--steps=2", f"--variant={variant}", f"--json={file}",
        "--contenders", "matrix product", "jformer", "torch",
    )  # fmt: skip
    assert list(rows) == ["jformer", "torch", f"jformer {variant}"]
    assert rows["jformer"]["speed, jformer = 1"] == "1.00 (1.00 to 1.00)"
    assert all(float(row["ms per step"]) > 0 for row in rows.values())
    assert all(float(row["mfu"][:4]) < 1 for row in rows.values())
    # The loss is near that of a guess among 500 entries.
    assert all(4 < float(row["loss"]) < 9 for row in rows.values())
    results = {result["name"]: result for result in json.loads(file.read_text())["results"]}
    assert all(len(result["seconds"]) == 1 for result in results.values())
    assert results["jformer"]["answer"] == results[f"jformer {variant}"]["answer"]


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_the_batches_of_the_train_step_fill_their_rows_as_in_training(batching):
    config = jformer.get_config("tiny", **{"data.batching": batching})
    batches = train.make_batches(config, rows=8, length=64)
    shares = [(batch["labels_BT"] != PAD).mean() for batch in batches]
    assert {batch["source_BS"].shape for batch in batches} == {(8, 64)}
    expected = 0.75 if batching == "buckets" else 0.9
    assert statistics.mean(shares) == pytest.approx(expected, abs=0.08)


@pytest.mark.slow
@with_peers
def test_marian_and_ctranslate2_with_our_weights_find_our_translations():
    rows = benchmark(
        "decode", f"--workdir={STORED}/run", f"--input={STORED}/test.en",
        f"--references={STORED}/test.de", "--beam=1", "--alpha=0",
        "--contenders", "jformer", "ctranslate2", "marian",
    )  # fmt: skip
    assert list(rows) == ["jformer", "ctranslate2", "marian"]
    assert {row["same outputs"] for row in rows.values()} == {"100.0%"}
    assert len({row["BLEU"] for row in rows.values()}) == 1


@pytest.mark.slow
@with_peers
def test_an_epoch_of_batches_is_compared_with_pytorchs():
    names = ["jformer", "jformer cached", "jformer packed", "torch"]
    rows = benchmark("data", "--pairs=500", "--contenders", *names)
    assert list(rows) == names
    assert all(0 < float(row["token utilization"]) < 1 for row in rows.values())


SMALL_CONFIG = """
from jformer.config import default_config


def get_config(dataset):
    config = default_config(dataset)
    config.model.num_layers = 1
    config.model.d_model = 16
    config.model.d_ff = 24
    config.model.num_heads = 2
    config.data.vocabulary_size = 300
    config.data.num_buckets = 1
    config.train.batch_tokens = 256
    config.train.steps = 20
    config.train.checkpoint_every = 10
    config.decode.max_extra_length = 5
    return config
"""


@pytest.mark.slow
@with_peers
def test_each_contender_is_timed_to_its_first_checkpoint_that_reaches_the_bar(tmp_path):
    config, file = tmp_path / "small.py", tmp_path / "runs.json"
    config.write_text(SMALL_CONFIG)
    text = f"--train={STORED}/train", f"--validation={STORED}/test"
    flags = "--contenders", "jformer", "marian", "--peers=train.steps=10", "--bar=0"
    rows = benchmark("time_to_bleu", *text, f"--config={config}", *flags, f"--json={file}")
    assert list(rows) == ["jformer", "marian"]
    for name, runs in json.loads(file.read_text())["results"].items():
        steps = ["10", "20"] if name == "jformer" else ["10"]
        (run,) = runs
        # All checkpoints are timed, and the first is good enough for a bar of 0.
        assert [*run["minutes"]] == sorted(run["bleu"]) == steps
        assert 0 < run["minutes"]["10"] <= run["minutes"][steps[-1]] < 3
        assert rows[name]["minutes"].startswith(f"{run['minutes']['10']:.2f} (")


def test_the_peers_get_the_sizes_and_the_rates_of_the_config(tmp_path):
    folder = tmp_path / "peer"
    folder.mkdir()
    options = argparse.Namespace(
        config="tiny", languages="en,de", platform="cpu", joeynmt="python",
        peers="optimizer.name=adamw(weight_decay=0.5),optimizer.schedule=linear,train.steps=900",
    )  # fmt: skip
    assert racers.joeynmt(folder, options).train[:1] == ["python"]
    config = yaml.safe_load((folder / "train.yaml").read_text())
    assert config["model"]["decoder"]["ff_size"] == jformer.get_config("tiny").model.d_ff
    assert config["training"]["weight_decay"] == 0.5
    translating = yaml.safe_load((folder / "translate.yaml").read_text())
    assert translating["testing"]["load_model"] == f"{folder}/mean.ckpt"
    racers.marian(folder, options)
    rates = json.loads((folder / "rates.json").read_text())
    assert len(rates) == 900
    assert max(rates) == config["training"]["learning_rate"]
    assert rates[-1] < rates[-2] < max(rates)


@with_peers
def test_checkpoints_of_marian_are_averaged_and_only_its_matrices_decay(tmp_path):
    from transformers import MarianMTModel

    from experiments.benchmarks.marian_job import mean_of, optimizer_of
    from experiments.benchmarks.peers import marian_model

    config = jformer.get_config("tiny", **{"optimizer.name": "adamw(weight_decay=0.5)"})
    models = [marian_model(config, vocabulary_size=9, longest=8) for _ in range(3)]
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / str(number))
    mean = mean_of([tmp_path / str(number) for number in range(3)])
    assert isinstance(mean, MarianMTModel)
    first, second, third = (model.model.shared.weight for model in models)
    assert mean.model.shared.weight.detach().numpy() == pytest.approx(
        ((first + second + third) / 3).detach().numpy(), abs=1e-6
    )
    decay = {
        parameter.ndim: group["weight_decay"]
        for group in optimizer_of(config, mean).param_groups
        for parameter in group["params"]
    }
    assert decay == {1: 0.0, 2: 0.5}


@with_peers
def test_the_batches_of_pytorch_hold_every_pair_once_within_the_budget():
    import torch

    from experiments.benchmarks import pytorch_data

    texts = [f"{'word ' * (number % 17)}{number}" for number in range(101)]
    vocabulary = Vocabulary.train(texts, 300)
    sides = pytorch_data.encode(vocabulary, texts), pytorch_data.encode(vocabulary, texts[::-1])
    pairs = pytorch_data.no_longer_than(15, *sides)
    kept = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= 15]
    assert 0 < len(pairs) < 101
    assert [id(source) for source, _ in pairs] == [id(source) for source, _ in kept]
    seen = []
    for source_BS, target_BT, labels_BT in pytorch_data.make_loader(pairs, 64):
        assert max(source_BS.numel(), labels_BT.numel()) <= 64
        assert torch.all(target_BT[:, 0] == BOS)
        for source, target, labels in zip(source_BS, target_BT, labels_BT, strict=True):
            text = labels[labels != PAD].tolist()
            assert text[-1] == EOS
            assert target[target != PAD].tolist() == [BOS, *text[:-1]]
            seen.append((source[source != PAD].tolist(), text))
    assert sorted(seen) == sorted((s.tolist(), t.tolist()) for s, t in pairs)


def sleeper(seconds):
    return lambda: time.sleep(seconds)


def broken():
    raise ValueError("no such model\nsee the manual")


def test_contenders_take_turns_and_one_that_fails_is_named_with_the_reason():
    fast, failed, slow = take_turns(
        {"fast": (sleeper, (0.1,)), "failed": (broken, ()), "slow": (sleeper, (0.3,))}, rounds=2
    )
    assert slow.ratios(fast) == pytest.approx([1 / 3, 1 / 3], rel=0.3)
    assert failed.error == "ValueError: no such model"
    assert failed.seconds == []
    assert slow.memory > 10**7  # a Python process
