"""The likelihood of the validation split: what it computes, and what it comes to."""

from pathlib import Path

import pytest

import jformer
from jformer.data.corpora import Split
from jformer.schema import replaced
from jformer.training import likelihood as module
from jformer.training import parallel

pytestmark = pytest.mark.process

STORED = Path("tests/stored_run")
LONG = 60  # words of one pair; the others have a few


@pytest.fixture(scope="module")
def run():
    return jformer.load(STORED / "run", "last")


@pytest.fixture(scope="module")
def split():
    texts = [(STORED / f"validation.{name}").read_text().splitlines() for name in ("en", "de")]
    words = ("seven", "sieben")
    return Split(
        *([*side, " ".join([word] * LONG)] for side, word in zip(texts, words, strict=True))
    )


def test_one_long_pair_costs_its_own_positions_and_not_a_batch_of_them(run, split, monkeypatch):
    shapes, shard_batch = [], parallel.shard_batch

    def noting(batch, mesh):
        shapes.append(batch["source_BS"].shape)
        return shard_batch(batch, mesh)

    monkeypatch.setattr(parallel, "shard_batch", noting)
    config = replaced(run.config, {"train": {"batch_tokens": 8192}, "data": {"num_buckets": 3}})
    mesh = parallel.make_mesh(config)
    scores = module.likelihood(run.model, run.vocabularies, split, config, mesh)(run.params)
    assert min(shapes) == (1, max(S for _, S in shapes))
    assert sum(rows for rows, _ in shapes) == len(split.sources)
    forced = run.score(split.sources, split.targets)
    tokens = sum(len(one.token_log_probs) for one in forced)
    nll = -sum(one.log_prob for one in forced) / tokens
    assert scores["nll"] == pytest.approx(nll, rel=1e-5)  # sums of float32 in another order
