"""What a checkpoint was made with is recorded, and a run resumes and opens only with the same."""

import importlib.metadata
import json
import re
import shutil

import pytest

import jformer
from jformer.data.vocabulary import Vocabulary
from jformer.errors import UserError
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
def test_a_run_does_not_resume_with_other_text(
    trained_workdir, corpus_directory, tmp_path, capsys, split
):
    workdir, changed = tmp_path / "run", corpus_directory / f"{split}.de"
    shutil.copytree(trained_workdir, workdir)
    text = changed.read_text()
    changed.write_text("".join(reversed(text.splitlines(keepends=True))))
    try:
        assert main(flags_of(corpus_directory, workdir, "--config.train.steps=15")) == 2
    finally:
        changed.write_text(text)
    error = last_line(capsys.readouterr().err)
    prefix = changed.with_suffix("")
    name = str(changed) if split == "train" else f"the validation split {prefix}"
    assert error.startswith(f"jformer: {name}: ")
    assert f"config.train.init_from={workdir}" in error
    assert Checkpoints(workdir).steps() == [9, 12]


def test_a_run_resumes_with_text_that_has_moved_another_test_set_and_another_name(
    run, corpus, capsys
):
    write_split(corpus / "new_test", number_words(430, 435))
    moved = [f"--config.data.test={corpus / 'new_test'}", "--config.name=renamed"]
    flags = [*small_flags(corpus, run), *moved, "--config.train.steps=15"]
    assert main(["jformer", *flags]) == 0
    message = capsys.readouterr().err
    assert re.search(r"resum.*step 12\b", message)
    assert re.search(r"test.*5 pairs", message)
    config = json.loads((run / "config.json").read_text())
    assert config["data"]["train"] == str(corpus / "train")
    assert jformer.load(run).step == 15


def test_a_run_resumes_with_a_vocabulary_that_has_moved_and_with_no_other(corpus, tmp_path, capsys):
    for name, text in (("a", "one two three"), ("other", "uno due tre")):
        Vocabulary.train([text] * 9, 270).save(tmp_path / f"{name}.json")
    shutil.copy(tmp_path / "a.json", tmp_path / "moved.json")

    def train(name, steps):
        vocabulary = f"--config.data.vocabulary={tmp_path / name}"
        more = [vocabulary, f"--config.train.steps={steps}", "--config.train.average_checkpoints=1"]
        return main(flags_of(corpus, tmp_path / "run", *more))

    assert train("a.json", 3) == 0
    assert train("moved.json", 6) == 0
    assert train("other.json", 9) == 2
    assert f"{tmp_path / 'other.json'}: " in last_line(capsys.readouterr().err)
    assert Checkpoints(tmp_path / "run").steps()[-1] == 6


@pytest.mark.parametrize("checkpoint", ["average", "best"])
def test_a_run_whose_vocabulary_was_replaced_is_not_opened(run, checkpoint):
    Vocabulary.train(["other text"], 300).save(run / "vocabulary.json")
    with pytest.raises(UserError, match=r"run/vocabulary\.json"):
        jformer.load(run, checkpoint)


# ---- versions


def test_every_checkpoint_and_every_score_records_versions_and_devices(trained_workdir):
    checkpoints = Checkpoints(trained_workdir)
    steps = checkpoints.steps()
    recorded = [checkpoints.read(step, {}, "metadata")["metadata"]["versions"] for step in steps]
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


def test_a_comment_is_the_same_source_and_any_code_is_another(tmp_path):
    package = tmp_path / "package"
    (package / "part").mkdir(parents=True)
    (package / "part" / "__init__.py").touch()

    def hashed(text):
        (package / "a.py").write_text(text)
        return source_hash.__wrapped__(package)

    hashes = {
        hashed(f"def f(x):\n    return x + 1{comment}\n") for comment in ("", "  # the next one")
    }
    assert len(hashes) == 1
    assert hashed("def f(x):\n    return x + 2\n") not in hashes
    (package / "a.py").rename(package / "b.py")
    assert hashed("def f(x):\n    return x + 1\n") not in hashes
