"""A checkpoint knows what made it, and nothing is made of it under anything else."""

import contextlib
import gc
import importlib.metadata
import json
import re
import resource
import shutil
import subprocess
import sys
import time

import pytest

import jformer
from jformer.data.vocabulary import Vocabulary
from jformer.errors import UserError
from jformer.main import main
from jformer.training.checkpoint import Checkpoints
from jformer.training.provenance import source_hash
from tests.conftest import number_words, small_flags, write_split

pytestmark = pytest.mark.process


@pytest.fixture
def corpus(corpus_directory, tmp_path):
    return shutil.copytree(corpus_directory, tmp_path / "corpus")


def last_line(text):
    return text.splitlines()[-1]


def flags_of(corpus, workdir, *more):
    return ["jformer", *small_flags(corpus, workdir), "--config.train.scored=validation", *more]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_run_does_not_go_on_with_other_text(
    trained_workdir, corpus_directory, tmp_path, capsys, split
):
    workdir, changed = tmp_path / "run", corpus_directory / f"{split}.de"
    shutil.copytree(trained_workdir, workdir)
    text = changed.read_text()
    changed.write_text("".join(reversed(text.splitlines(keepends=True))))
    try:
        flags = small_flags(corpus_directory, workdir)
        assert main(["jformer", *flags, "--config.train.steps=15"]) == 2
    finally:
        changed.write_text(text)
    error = last_line(capsys.readouterr().err)
    prefix = changed.with_suffix("")
    name = str(changed) if split == "train" else f"the validation split {prefix}"
    assert error.startswith(f"jformer: {name}: ")
    assert f"config.train.init_from={workdir}" in error
    assert Checkpoints(workdir).steps() == [9, 12]


def test_a_run_resumes_with_text_that_has_moved_and_under_another_name(
    trained_workdir, corpus, tmp_path, capsys
):
    """And with another test set: the hash of the text decides whether it is another run."""
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    write_split(corpus / "new_test", number_words(430, 435))
    moved = [f"--config.data.test={corpus / 'new_test'}", "--config.name=renamed"]
    flags = [*small_flags(corpus, workdir), *moved, "--config.train.steps=15"]
    assert main(["jformer", *flags]) == 0
    message = capsys.readouterr().err
    assert re.search(r"resum.*step 12\b", message)
    assert re.search(r"test.*5 pairs", message)
    config = json.loads((workdir / "config.json").read_text())
    assert config["data"]["train"] == str(corpus / "train")
    assert jformer.load(workdir).step == 15


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
    assert f"config.data.vocabulary={tmp_path / 'other.json'}" in capsys.readouterr().err
    assert Checkpoints(tmp_path / "run").steps()[-1] == 6


def test_versions_and_devices_stand_in_every_checkpoint_and_beside_every_score(trained_workdir):
    with Checkpoints(trained_workdir) as checkpoints:
        recorded = [checkpoints.metadata(step)["versions"] for step in checkpoints.steps()]
    scores = json.loads((trained_workdir / "results.json").read_text())
    for versions in (*recorded, scores["test"]["versions"]):
        assert versions["jformer"] == jformer.__version__
        assert versions["backend"] == "cpu"
        assert versions["device"] == "cpu"
        for name in (
            "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "babel", "tokenizers",
            "sacrebleu",
        ):  # fmt: skip
            assert versions[name] == importlib.metadata.version(name)
        assert versions["python"].startswith("3.")


def test_a_resume_under_another_version_says_which(
    trained_workdir, corpus_directory, tmp_path, capsys, monkeypatch
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    own = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "9.9.9" if name == "optax" else own(name)
    )
    flags = [*small_flags(corpus_directory, workdir), "--config.train.steps=13"]
    assert main(["jformer", *flags, "--config.train.scored=validation"]) == 0
    (line,) = (x for x in capsys.readouterr().err.splitlines() if x.startswith("versions"))
    assert re.search(rf"optax {re.escape(own('optax'))}\b.*9\.9\.9", line)
    assert "jax " not in line  # which has not changed


def test_a_comment_or_a_docstring_is_the_same_source_and_any_code_is_another(tmp_path):
    package = tmp_path / "package"
    (package / "part").mkdir(parents=True)
    (package / "part" / "__init__.py").touch()

    def hashed(text):
        (package / "a.py").write_text(text)
        return source_hash.__wrapped__(package)

    hashes = {
        hashed(f"{doc}def f(x):{inner}\n    return x + 1{comment}\n")
        for doc in ("", '"""A module."""\n\n')
        for inner in ("", '\n    """Add one."""')
        for comment in ("", "  # the next one")
    }
    assert len(hashes) == 1
    assert hashed("def f(x):\n    return x + 2\n") not in hashes
    (package / "a.py").rename(package / "b.py")
    assert hashed("def f(x):\n    return x + 1\n") not in hashes


def test_edited_code_is_named_beside_stored_scores_and_when_a_run_resumes(
    trained_workdir, corpus_directory, tmp_path
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    package = shutil.copytree("jformer", tmp_path / "edited" / "jformer")
    shutil.copytree("configs", tmp_path / "edited" / "configs")
    loss = package / "training" / "loss.py"
    flags = small_flags(corpus_directory, workdir)

    def lines_about_source(*more):
        command = [sys.executable, "-m", "jformer.main", *flags, *more]
        result = subprocess.run(command, capture_output=True, text=True, cwd=package.parent)
        assert result.returncode == 0, result.stderr
        return [line for line in result.stderr.splitlines() if re.search(r"source \w+, now", line)]

    loss.write_text("# A comment.\n" + loss.read_text())
    assert lines_about_source() == []
    loss.write_text(loss.read_text() + "\nEDITED = True\n")
    assert len(lines_about_source()) == 1  # the scores of `test` are of the code before
    assert len(lines_about_source("--config.train.steps=13")) == 1


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("model", "activation", "gelu"), ("model", "scaled_attention", False), (None, "seed", 7)],
)
def test_a_config_that_is_not_the_checkpoints_own_is_refused(
    trained_workdir, tmp_path, section, key, value
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    config = json.loads((workdir / "config.json").read_text())
    (config if section is None else config[section])[key] = value
    (workdir / "config.json").write_text(json.dumps(config))
    for checkpoint in ("average", "last", "9", "best"):
        with pytest.raises(UserError, match=rf"config\.json: .*\b{key}\b"):
            jformer.load(workdir, checkpoint)


def test_keys_that_do_not_make_another_run_may_be_edited(trained_workdir, tmp_path):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    config = json.loads((workdir / "config.json").read_text())
    config["decode"]["beam_size"], config["model"]["dtype"] = 1, "bfloat16"
    (workdir / "config.json").write_text(json.dumps(config))
    run = jformer.load(workdir)
    assert (run.config.decode.beam_size, run.model.config.dtype) == (1, "bfloat16")


@pytest.fixture
def without_checkpoint(corpus, tmp_path, during_step):
    """A run that was killed after its first best score, and before its first checkpoint."""
    workdir = tmp_path / "run"
    flags = flags_of(corpus, workdir, "--config.train.checkpoint_every=1000")

    def killed():
        raise KeyboardInterrupt

    during_step({9: killed})
    assert main(flags) == 130
    assert not Checkpoints(workdir).steps()
    assert jformer.load(workdir, "best").step == 6
    return workdir, flags, lambda step: during_step({step: killed})


def test_a_best_checkpoint_keeps_its_directory_from_a_run_of_another_config(
    without_checkpoint, capsys
):
    workdir, flags, _ = without_checkpoint
    assert main([*flags, "--config.seed=5"]) == 2
    message = capsys.readouterr().err
    assert re.search(rf"{workdir}\b.*config\.seed\b.*0\b.*5\b", message)
    assert jformer.load(workdir, "best").step == 6


def test_a_run_that_begins_anew_does_not_serve_the_best_of_the_start_before(
    without_checkpoint, corpus
):
    workdir, flags, kill_at = without_checkpoint
    write_split(corpus / "train", number_words(500, 800))
    kill_at(3)
    assert main(flags) == 130
    with pytest.raises(UserError, match="run/best"):
        jformer.load(workdir, "best")


@pytest.mark.parametrize("failed_save", ["stop", "go_on"])
def test_a_last_checkpoint_that_cannot_be_written_is_no_result(
    corpus, tmp_path, during_step, capfd, failed_save
):
    """The disk is full from step 11 on, as a limit to the size of files has it."""
    workdir, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)

    def full():
        while not (workdir / "checkpoints" / "9").exists():
            time.sleep(0.01)  # that one is still whole
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))

    during_step({11: full})
    more = ["--config.model.d_model=128", f"--config.train.failed_save={failed_save}"]
    flags = flags_of(corpus, workdir, *more)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        assert main(flags) == 1
    gc.collect()  # asyncio tells of errors that nobody asked for when they are collected
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    assert re.search(rf"^jformer: {workdir}/\w+/12: ", last_line(err))
    assert out == ""
    assert not (workdir / "results.json").exists()
    assert main(flags) == 0  # with room, it goes on from what it has
    assert jformer.load(workdir).step == 12


def test_a_complete_run_whose_last_checkpoint_is_damaged_is_trained_on_from_the_one_before(
    corpus, tmp_path, capfd
):
    flags = flags_of(corpus, tmp_path / "run")
    assert main(flags) == 0
    scores = json.loads(last_line(capfd.readouterr().out))
    damaged = tmp_path / "run" / "checkpoints" / "12" / "params" / "_sharding"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"_sharding.*checkpoint=average.*9, 12$"):
        jformer.load(tmp_path / "run", "average")
    assert main(flags) == 0
    out, err = capfd.readouterr()
    assert re.search(r"checkpoints/12: .*damaged/12.*step 9\b", err)
    again = json.loads(last_line(out))
    assert again["validation"]["params_sha256"] == scores["validation"]["params_sha256"]


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv (util-linux) is not installed")
def test_a_complete_run_that_cannot_be_written_prints_its_scores(
    trained_workdir, corpus_directory, tmp_path
):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    # Root may write anywhere, unless it gives that up.
    command = ["setpriv", "--bounding-set=-dac_override", sys.executable, "-m", "jformer.main"]
    command += small_flags(corpus_directory, workdir)
    for path in (*workdir.rglob("*"), workdir):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        scores = json.loads((workdir / "results.json").read_text())
        told = subprocess.run(command, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        assert json.loads(last_line(told.stdout)) == {"test": scores["test"]}
        more = [*command, "--config.train.steps=15"]
        told = subprocess.run(more, capture_output=True, text=True)
        assert told.returncode == 2
        assert re.match(rf"jformer: workdir={workdir}: .*Permission denied", last_line(told.stderr))
    finally:
        for path in (workdir, *workdir.rglob("*")):
            path.chmod(0o755)
