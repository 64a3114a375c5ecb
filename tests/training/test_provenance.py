"""What a checkpoint was made with is recorded, and a run resumes and opens only with the same."""

import importlib.metadata
import json
import re
import secrets
import shutil

import pytest

import jformer
from jformer.data.vocabulary import Vocabulary
from jformer.main import main
from jformer.training.checkpoints import Checkpoints
from jformer.training.provenance import source_hash
from tests.conftest import number_words, small_flags, write_split

pytestmark = pytest.mark.process


@pytest.fixture
def corpus(corpus_directory, tmp_path):
    return shutil.copytree(corpus_directory, tmp_path / "corpus")


@pytest.fixture
def run(trained_workdir, tmp_path):
    return shutil.copytree(trained_workdir, tmp_path / "run")


def last_line(text):
    return text.splitlines()[-1]


def flags_of(corpus, workdir, *more):
    return ["jformer", *small_flags(corpus, workdir), "--config.train.scored=validation", *more]


# ---- text and vocabulary


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_run_does_not_resume_with_other_text(run, corpus, capsys, split):
    changed = corpus / f"{split}.de"
    changed.write_text("".join(reversed(changed.read_text().splitlines(keepends=True))))
    assert main(flags_of(corpus, run, "--config.train.steps=15")) == 2
    error = last_line(capsys.readouterr().err)
    name = str(changed) if split == "train" else f"the validation split {changed.with_suffix('')}"
    assert error.startswith(f"jformer: {name}: ")
    assert f"config.train.init_from={run}" in error
    assert Checkpoints(run).steps() == [9, 12]


def test_a_run_resumes_with_text_that_has_moved_another_test_set_and_another_name(
    run, corpus, capsys
):
    """But with no other vocabulary."""
    write_split(corpus / "new_test", number_words(430, 435))
    Vocabulary.train(["uno due tre"] * 9, 270).save(corpus / "other.json")
    moved = [f"--config.data.test={corpus / 'new_test'}", "--config.name=renamed"]
    flags = ["jformer", *small_flags(corpus, run), *moved, "--config.train.steps=15"]
    assert main([*flags, f"--config.data.vocabulary={corpus / 'other.json'}"]) == 2
    assert f"jformer: {corpus / 'other.json'}: " in capsys.readouterr().err
    assert main(flags) == 0
    message = capsys.readouterr().err
    assert re.search(r"resum.*step 12\b", message)
    assert re.search(r"test.*5 pairs", message)
    config = json.loads((run / "config.json").read_text())
    assert config["data"]["train"] == str(corpus / "train")
    assert jformer.load(run).step == 15


# ---- versions


def test_every_checkpoint_and_every_score_records_versions_and_devices(trained_workdir):
    checkpoints = Checkpoints(trained_workdir)
    steps = checkpoints.steps()
    recorded = [
        checkpoints.read(step, {"metadata": None})["metadata"]["versions"] for step in steps
    ]
    scores = json.loads((trained_workdir / "results.json").read_text())
    for versions in (*recorded, scores["test"]["versions"]):
        assert versions["jformer"] == jformer.__version__
        assert versions["backend"] == versions["device"] == "cpu"
        for name in ("jax", "flax", "orbax-checkpoint", "numpy", "tokenizers", "sacrebleu"):
            assert versions[name] == importlib.metadata.version(name)
        assert versions["python"].startswith("3.")


def test_a_resume_with_another_version_names_it(run, corpus_directory, capsys, monkeypatch):
    own = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "9.9.9" if name == "optax" else own(name)
    )
    assert main(flags_of(corpus_directory, run, "--config.train.steps=13")) == 0
    (line,) = (x for x in capsys.readouterr().err.splitlines() if x.startswith("versions"))
    assert re.search(rf"optax {re.escape(own('optax'))}\b.*9\.9\.9", line)
    assert "jax " not in line  # which has not changed


def test_a_comment_or_a_docstring_is_the_same_source_and_any_code_is_another(tmp_path):
    def hashed(text, name="a.py"):
        package = tmp_path / secrets.token_hex()
        (package / "part").mkdir(parents=True)
        (package / "part" / name).write_text(text)
        return source_hash.__wrapped__(package)

    code = "def f(x):\n    return x + 1\n"
    documented = '"""Numbers."""\ndef f(x):\n    """Add one."""\n    return x + 1  # the next\n'
    assert hashed(code) == hashed(documented)
    assert hashed(code) != hashed(code.replace("1", "2"))
    assert hashed(code) != hashed(code, "b.py")
