"""The trained models of the repository open, translate and have the scores of their cards."""

import json
from pathlib import Path

import pytest

import jformer

MODELS = sorted(Path("experiments/models").iterdir())


@pytest.fixture(params=MODELS, ids=lambda folder: folder.name)
def model(request):
    return jformer.load(request.param)


def test_the_card_has_the_stored_scores(model):
    scores = json.loads((model.workdir / "results.json").read_text())
    card = (model.workdir / "README.md").read_text()
    assert all(f"| {name} | {each['bleu']:.2f} " in card for name, each in scores.items())


def test_the_model_translates():
    run = jformer.load("experiments/models/tatoeba-en-de")
    assert run.translate(["Where is the station?"]) == ["Wo ist der Bahnhof?"]


def test_all_models_together_are_small():
    files = [path for path in Path("experiments/models").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 14e6
