"""Trained parameters out of a run directory, by hand from its checkpoints, and into another run."""

import dataclasses
import itertools
import json
import re
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jformer
from jformer.config import Config, read_config, write_config
from jformer.data.pipeline import open_data
from jformer.data.vocabulary import Vocabularies, Vocabulary
from jformer.errors import UserError
from jformer.main import main
from jformer.model.transformer import Transformer
from jformer.training import parallel
from jformer.training.checkpoint import Checkpoints
from jformer.training.restore import initial_params, restore
from jformer.training.setup import NEW, prepare, restore_or_init
from jformer.training.step import TrainState
from tests.conftest import small_flags

pytestmark = pytest.mark.process


def saved(workdir, item, step, folder="checkpoints"):
    """An item of a checkpoint as arrays of numpy, by orbax alone."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as reader:
        return reader.restore((workdir / folder / str(step) / item).absolute())


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def mean(*trees):
    return jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), axis=0), *trees)


@pytest.mark.parametrize(
    ("checkpoint", "steps"),
    [("last", [12]), ("9", [9]), (9, [9]), ("average", [9, 12]), ("9,12", [9, 12])],
)
def test_parameters_are_those_of_the_checkpoints_that_were_asked_for(
    trained_workdir, checkpoint, steps
):
    run = jformer.load(trained_workdir, checkpoint)
    expected = mean(*(saved(trained_workdir, "params", step) for step in steps))
    assert_same(run.params, expected)  # a sum of two is rounded once, its half not at all
    assert run.step == steps[-1]


def test_an_average_does_not_depend_on_the_order_of_its_steps(trained_workdir):
    expected = jformer.load(trained_workdir, [9, 12])
    found = jformer.load(trained_workdir, [12, 9])
    assert_same(found.params, expected.params)
    assert found.step == expected.step == 12


def test_a_run_whose_path_has_an_at_sign_is_found_and_a_member_takes_several_steps(
    trained_workdir, tmp_path, capfd
):
    lab = shutil.copytree(trained_workdir, tmp_path / "run@lab")
    for name, step in ((f"{lab}", 12), (f"{lab}@9", 9)):
        (other,) = jformer.load(trained_workdir, ensemble=[name]).others
        assert (other.workdir, other.step) == (lab, step)
    (tmp_path / "in").write_text("1 2 3\n")
    flags = [f"--input={tmp_path / 'in'}", f"--workdir={trained_workdir}"]
    assert main(["jformer", "translate", *flags, f"--ensemble={lab}@9,12,{lab}"]) == 0
    assert capfd.readouterr().out.count("\n") == 1


@pytest.fixture
def running(trained_workdir, tmp_path):
    """A run whose training goes on: it saves a checkpoint, and deletes the oldest of two."""
    run = shutil.copytree(trained_workdir, tmp_path / "running")
    folder, ended = run / "checkpoints", threading.Event()

    def train():
        for step in itertools.count(13):
            shutil.copytree(folder / str(step - 1), folder / f"{step}.saving")
            (folder / f"{step}.saving").rename(folder / str(step))
            oldest = min(int(path.name) for path in folder.iterdir())
            (folder / str(oldest)).rename(folder / f"{oldest}.deleting")
            shutil.rmtree(folder / f"{oldest}.deleting")
            if ended.wait(0.3):  # a training that saves more often leaves no time to read
                return

    trainer = threading.Thread(target=train)
    trainer.start()
    yield run
    ended.set()
    trainer.join()


@pytest.mark.parametrize("checkpoint", ["last", "average"])
def test_a_checkpoint_that_is_deleted_while_it_is_read_is_no_error(
    running, trained_workdir, checkpoint, capfd
):
    expected = jformer.load(trained_workdir, "last").params
    steps = []
    while len({*steps}) < 4:
        run = jformer.load(running, checkpoint)
        steps.append(run.step)
        if checkpoint == "last":
            assert_same(run.params, expected)
    assert steps == sorted(steps)
    assert "Traceback" not in capfd.readouterr().err


def test_a_step_that_is_deleted_is_one_line_with_those_that_are_left(running):
    messages = []
    while not messages:
        try:
            jformer.load(running, 9)
        except UserError as error:
            messages.append(str(error))
    assert re.search(r"step 9\b.*\[1\d", messages[0])


def test_the_average_leaves_out_checkpoints_before_the_last_few(trained_workdir, tmp_path):
    copy = shutil.copytree(trained_workdir, tmp_path / "copy")
    shutil.copytree(copy / "checkpoints" / "9", copy / "checkpoints" / "6")
    run = jformer.load(copy, "average")
    assert run.config.train.average_checkpoints == 2
    assert_same(run.params, mean(*(saved(trained_workdir, "params", step) for step in (9, 12))))


def test_the_best_is_a_checkpoint_of_its_own(trained_workdir):
    best = jformer.load(trained_workdir, "best")
    assert str(best.step) in [path.name for path in (trained_workdir / "best").iterdir()]
    assert_same(best.params, saved(trained_workdir, "params", best.step, "best"))


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ("lats", r"checkpoint 'lats'.*\baverage, last, best\b"),
        ("", "checkpoint ''"),
        ("9,", "checkpoint '9,'"),
        (-9, "checkpoint '-9'"),
        (10, r"step 10\b.*9, 12"),
        ("9,10", r"step 10\b.*9, 12"),
        ([9, 12, 9], "9,12,9"),
        ("12,012", "12,012"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_one_line(trained_workdir, checkpoint, message):
    with pytest.raises(UserError, match=message) as caught:
        jformer.load(trained_workdir, checkpoint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("checkpoint", ["average", "last", "best"])
def test_no_checkpoint_is_read_with_another_vocabulary(trained_workdir, tmp_path, checkpoint):
    copy = tmp_path / "copy"
    shutil.copytree(trained_workdir, copy)
    Vocabulary.train(["other text"], 300).save(copy / "vocabulary.json")
    with pytest.raises(UserError, match=r"copy/vocabulary\.json"):
        jformer.load(copy, checkpoint)


def test_a_best_that_is_not_there_is_one_line(trained_workdir, tmp_path):
    copy = shutil.copytree(trained_workdir, tmp_path / "copy")
    shutil.rmtree(copy / "best")
    with pytest.raises(UserError, match="copy/best"):
        jformer.load(copy, "best")


def test_a_run_with_moving_averages_is_loaded_by_them(trained_workdir, tmp_path):
    copy = shutil.copytree(trained_workdir, tmp_path / "copy")
    run = jformer.load(copy)
    config = dataclasses.replace(
        run.config, train=dataclasses.replace(run.config.train, ema_decay=0.5)
    )
    write_config(config, copy / "config.json")
    ema = jax.tree.map(lambda x: x + 0.25, run.params)
    with Checkpoints(copy, config.train) as checkpoints:
        state = TrainState(jnp.int32(15), run.params, {"count": jnp.int32(15)}, ema)
        checkpoints.save(state, NEW, config, run.vocabularies.hash)
        checkpoints.save_best(state, 0.5, config, run.vocabularies.hash)
    for checkpoint, expected in (
        ("average", ema), ("best", ema), ("last", run.params), (15, run.params)
    ):  # fmt: skip
        loaded = jformer.load(copy, checkpoint)
        assert loaded.step == 15
        assert_same(loaded.params, expected)


def new_run(trained_workdir, workdir, seed=5, **train):
    """The task of a run like the trained one, in a directory of its own."""
    config = read_config(trained_workdir / "config.json")
    config = dataclasses.replace(
        config, seed=seed, train=dataclasses.replace(config.train, **train)
    )
    corpora, splits = open_data(config)
    mesh = parallel.make_mesh(config)
    return prepare(config, corpora, splits["validation"], workdir, mesh)


def test_parameters_and_masks_are_drawn_by_keys_of_their_own_from_the_seed(
    trained_workdir, tmp_path
):
    tasks = [new_run(trained_workdir, tmp_path, seed) for seed in (5, 6, 5)]
    keys = [
        tuple(jax.random.key_data(key).tolist())
        for task in tasks for key in (task.params_key, task.dropout_key)
    ]  # fmt: skip
    assert len({*keys[:4]}) == 4
    assert keys[4:] == keys[:2]


@pytest.mark.parametrize("suffix", ["", "@9"])
def test_a_new_run_begins_with_the_parameters_of_another_and_nothing_else_of_it(
    trained_workdir, tmp_path, suffix, capsys
):
    task = new_run(trained_workdir, tmp_path, init_from=f"{trained_workdir}{suffix}", ema_decay=0.5)
    own = task.create(task.params_key)
    with Checkpoints(tmp_path, task.config.train) as checkpoints:
        state, position = restore_or_init(task, checkpoints)
    theirs = jformer.load(trained_workdir, suffix[1:] or "served")
    assert_same(state.params, theirs.params)
    assert_same(state.ema, theirs.params)
    assert int(state.step) == 0
    assert_same(state.optimizer_state, own.optimizer_state)
    assert position == NEW
    leaves = len(jax.tree.leaves(state.params))
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.search(rf"{leaves} of {leaves}\b.*{trained_workdir}\b.*step {theirs.step}\b", message)


def test_a_run_that_resumes_does_not_begin_with_another(trained_workdir):
    task = new_run(trained_workdir, trained_workdir, seed=0, init_from="/nowhere")
    with Checkpoints(trained_workdir) as checkpoints:
        state, _ = restore_or_init(task, checkpoints)
    assert int(state.step) == 12
    assert_same(state.params, saved(trained_workdir, "params", 12))


def other_params(config: Config, vocabularies, **model):
    """Initial ones of a model like the trained one, but for what `model` changes."""
    changed = dataclasses.replace(config.model, **model)
    transformer = Transformer(changed, vocabularies.target.size, vocabularies.source.size)
    tokens_11 = jnp.ones((1, 1), jnp.int32)
    return jax.jit(transformer.init)(jax.random.key(1), tokens_11, tokens_11)["params"]


def by_name(tree):
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}


def test_what_has_another_shape_is_new_and_named(trained_workdir, capsys):
    run = jformer.load(trained_workdir)
    params = other_params(run.config, run.vocabularies, d_ff=20)
    taken = by_name(initial_params(str(trained_workdir), params, run.vocabularies))
    own, theirs = by_name(params), by_name(run.params)
    new = {name for name in own if own[name].shape != theirs[name].shape}
    assert new
    for name, leaf in taken.items():
        np.testing.assert_array_equal(leaf, own[name] if name in new else theirs[name])
    first, second = capsys.readouterr().err.splitlines()
    assert f"{len(own) - len(new)} of {len(own)}" in first
    assert len({name for name in new if re.search(rf"{re.escape(name)}(,| |$)", second)}) == 5
    assert f"{len(new) - 5} more" in second


def other_vocabulary(run):
    """One of another size that has some of the run's entries, at other places."""
    learned = run.vocabulary.tokens(range(259, run.vocabulary.size))
    return Vocabulary.train([" ".join(learned[::-1]), "more words"], 283)


def entries(vocabulary, path):
    """The entries of a vocabulary by their ids, from its file."""
    vocabulary.save(path)
    model = json.loads(path.read_text())["model"]
    return {i + 3: name for name, i in model["vocab"].items()}


def test_under_another_vocabulary_the_rows_of_equal_tokens_are_taken(
    trained_workdir, tmp_path, capsys
):
    run = jformer.load(trained_workdir)
    other = other_vocabulary(run)
    own = other_params(run.config, Vocabularies(other, other))
    taken = initial_params(str(trained_workdir), own, Vocabularies(other, other))
    assert taken.keys() == own.keys() == run.params.keys()
    assert_same({**taken, "embedding": 0}, {**run.params, "embedding": 0})

    ours, theirs = (entries(each, tmp_path / "v.json") for each in (other, run.vocabulary))
    rows_of = {name: run.params["embedding"][i] for i, name in theirs.items()}
    new = sum(name not in rows_of for name in ours.values())
    assert_same(taken["embedding"][:3], run.params["embedding"][:3])  # PAD, BOS, EOS
    for i, name in ours.items():
        assert_same(taken["embedding"][i], rows_of.get(name, own["embedding"][i]))
    assert other.size != run.vocabulary.size
    assert 0 < new < len(ours) - 256
    assert re.search(rf"\b{new} of {other.size}\b.*embedding\n$", capsys.readouterr().err)


def test_source_target_and_output_have_the_rows_of_their_own_vocabularies(
    trained_workdir, tmp_path, monkeypatch
):
    texts = {"source": "a source of the other run", "target": "ein Ziel des anderen Laufs"}
    old, new = (
        Vocabularies(*(Vocabulary.train([f"{text} {more}"], 290) for text in texts.values()))
        for more in ("", "und mehr davon")
    )
    run = jformer.load(trained_workdir)
    made = {
        which: Transformer(
            dataclasses.replace(run.config.model, tying="none"),
            which.target.size,
            which.source.size,
        ).init(jax.random.key(seed), *[jnp.ones((1, 1), jnp.int32)] * 2)["params"]
        for seed, which in enumerate((old, new))
    }
    restored = dataclasses.replace(restore(trained_workdir), vocabularies=old, params=made[old])
    monkeypatch.setattr("jformer.training.restore.restore", lambda *_: restored)
    taken = initial_params("another", made[new], new)
    for name in ("source_embedding", "embedding", "output"):
        side = "source" if name == "source_embedding" else "target"
        theirs, ours = (entries(getattr(each, side), tmp_path / "v.json") for each in (old, new))
        ids = {entry: i for i, entry in theirs.items()}
        assert {*theirs.values()} != {*ours.values()}
        for i, entry in ours.items():
            row = made[old][name][ids[entry]] if entry in ids else made[new][name][i]
            np.testing.assert_array_equal(taken[name][i], row)


def test_a_run_with_another_vocabulary_begins_with_the_same_logits_of_equal_tokens(
    trained_workdir, tmp_path
):
    run = jformer.load(trained_workdir)
    other = other_vocabulary(run)
    model = Transformer(run.config.model, other.size, other.size)
    own = other_params(run.config, Vocabularies(other, other))
    taken = initial_params(str(trained_workdir), own, Vocabularies(other, other))
    ids = {name: i for i, name in entries(run.vocabulary, tmp_path / "v.json").items()}
    ours = entries(other, tmp_path / "v.json")
    here = [j for j, name in ours.items() if j != ids.get(name, j)][:7]
    there = [ids[ours[j]] for j in here]
    assert here
    logits_there, logits_here = (
        each.apply({"params": params}, jnp.array([ids]), jnp.array([ids]))[0]
        for each, params, ids in ((run.model, run.params, there), (model, taken, here))
    )
    for i, j in zip(there, here, strict=True):
        # The sums over d_model are the same; only the width of the product differs.
        np.testing.assert_allclose(logits_here[:, j], logits_there[:, i], rtol=1e-5, atol=1e-5)


def test_a_run_of_which_nothing_fits_is_refused(trained_workdir):
    run = jformer.load(trained_workdir)
    own = other_params(run.config, run.vocabularies, d_model=14, d_ff=20)
    with pytest.raises(UserError, match=str(trained_workdir)):
        initial_params(str(trained_workdir), own, run.vocabularies)


def test_a_run_and_checkpoint_is_looked_for_before_any_text_is_read(
    trained_workdir, corpus_directory, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("jformer.training.setup.content_hashes", None)
    flags = small_flags(corpus_directory, tmp_path / "run")
    assert main(["jformer", *flags, "--config.train.init_from=/nowhere@best"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "/nowhere/config.json" in error
    assert not (tmp_path / "run").exists()


def test_a_run_that_cannot_begin_with_another_leaves_nothing_behind(
    trained_workdir, corpus_directory, tmp_path, capsys
):
    flags = small_flags(corpus_directory, tmp_path / "run")
    assert main(["jformer", *flags, f"--config.train.init_from={trained_workdir}@10"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"step 10\b.*9, 12", message)
    assert not (tmp_path / "run").exists()
