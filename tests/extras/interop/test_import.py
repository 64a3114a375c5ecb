"""`import`: weights of models in PyTorch, made here at random, and the run that they become."""

import os
import pickle
import re
import warnings

import numpy as np
import pytest

import jformer
from jformer.config import PAD
from jformer.errors import UserError
from jformer.extras.interop.state_dicts import read_tensors
from jformer.main import main
from jformer.model.positions import sinusoids

torch = pytest.importorskip(
    "torch", reason="the extra `parity` has PyTorch: pip install -e '.[parity]'"
)

from tests.annotated import AnnotatedTransformer, with_random_weights  # noqa: E402

V_SOURCE, V_TARGET, D, F, H, B, S, T = 23, 19, 20, 31, 4, 3, 7, 11
HEADS = f"--config.model.num_heads={H}"
# PAD, BOS and EOS of The Annotated Transformer, whose other tokens are from 3 on.
SPECIALS = ["<s>", "</s>", "<blank>", "<unk>"]
ANNOTATED_ROWS = [2, 0, 1, *range(3, V_TARGET)]


def write_words(path, size, specials=SPECIALS):
    """A token a line: specials, then words."""
    words = [*specials, *(f"w{n}" for n in range(size - len(specials)))]
    path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return path


@pytest.fixture
def annotated(tmp_path):
    """A model of The Annotated Transformer, and the command that imports it."""
    model = AnnotatedTransformer(V_SOURCE, V_TARGET, 2, D, F, H, pad=2)
    with_random_weights(model)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    write_words(tmp_path / "source.txt", V_SOURCE)
    write_words(tmp_path / "target.txt", V_TARGET)
    return model, [
        "import", f"--from={tmp_path / 'model.pt'}", "--layout=annotated",
        f"--workdir={tmp_path / 'run'}", f"--vocabulary={tmp_path / 'target.txt'}",
        f"--source_vocabulary={tmp_path / 'source.txt'}", HEADS,
    ]  # fmt: skip


def run_of(command, tmp_path, name="run"):
    assert main(["jformer", *command]) == 0
    return jformer.load(tmp_path / name)


def texts(size, length, seed):
    """Ids of ours, with a text that is shorter than the others."""
    ids = np.random.default_rng(seed).integers(3, size, (B, length)).astype(np.int32)
    ids[0, 4:] = PAD
    return ids


def compare_logits(run, theirs, rows, source_rows, first=0):
    """Hold our logits to those of `theirs(source, target)`, in ids of theirs, from entry `first`.

    `rows` are the ids of theirs of our entries.
    """
    source_BS, target_BT = texts(len(source_rows), S, 1), texts(len(rows), T, 2)
    logits_BTV = run.model.apply({"params": run.params}, source_BS, target_BT)
    source, target = (
        torch.tensor(np.asarray(ids_of)[ids].astype(np.int64))
        for ids_of, ids in ((source_rows, source_BS), (rows, target_BT))
    )
    with torch.no_grad():
        expected_BTV = theirs(source, target).numpy()[..., rows]
    seen_BT = target_BT != PAD  # nothing is asked of what follows the end
    # float32 twice, in other orders of summation
    np.testing.assert_allclose(
        logits_BTV[seen_BT][:, first:], expected_BTV[seen_BT][:, first:], atol=1e-4
    )


def test_an_annotated_transformer_gives_the_logits_that_it_gives_in_pytorch(
    annotated, tmp_path, capsys
):
    model, command = annotated
    run = run_of(command, tmp_path)
    source_rows = [2, 0, 1, *range(3, V_SOURCE)]
    compare_logits(run, model, ANNOTATED_ROWS, source_rows)
    err = capsys.readouterr().err
    assert "src_embed.1.pe [1, 50, 20]" in err
    assert "--embedding_scale=" in err
    config = run.config.model
    assert (config.tying, config.norm, config.norm_position) == ("none", "sample_layer_norm", "pre")
    assert (config.num_layers, config.d_model, config.d_ff) == (2, D, F)


class OwnModel(torch.nn.Module):
    """`torch.nn.Transformer` as its users have it: with embeddings and an output layer."""

    def __init__(self, norm_first=False, shared=False, scale=D**0.5):
        super().__init__()
        self.scale = scale
        with warnings.catch_warnings():  # it warns of nested tensors, which it then does without
            warnings.simplefilter("ignore")
            self.transformer = torch.nn.Transformer(
                D, H, 2, 1, F, dropout=0.0, batch_first=True, norm_first=norm_first
            )
        self.transformer.encoder.use_nested_tensor = False
        self.tgt_tok_emb = torch.nn.Embedding(V_TARGET, D)
        self.src_tok_emb = self.tgt_tok_emb if shared else torch.nn.Embedding(V_SOURCE, D)
        self.generator = torch.nn.Linear(D, V_TARGET, bias=not shared)
        if shared:
            self.generator.weight = self.tgt_tok_emb.weight

    def embed(self, table, tokens):
        angles = torch.arange(tokens.shape[1])[:, None] / 10000 ** (
            torch.div(torch.arange(D), 2, rounding_mode="floor") * 2 / D
        )
        positions = torch.where(torch.arange(D) % 2 == 1, angles.cos(), angles.sin())
        return table(tokens) * self.scale + positions

    def forward(self, source, target, pad=1):
        causal = torch.triu(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool), 1)
        hidden = self.transformer(
            self.embed(self.src_tok_emb, source), self.embed(self.tgt_tok_emb, target),
            tgt_mask=causal, src_key_padding_mask=source == pad,
            memory_key_padding_mask=source == pad,
        )  # fmt: skip
        return self.generator(hidden)


TORCH_SPECIALS = ["<unk>", "<pad>", "<bos>", "<eos>"]  # as in PyTorch's own tutorial


def torch_rows(size):
    return [1, 2, 3, 0, *range(4, size)]


def torch_command(tmp_path, model, *flags, form="pt"):
    path = tmp_path / f"model.{form}"
    if form == "pt":
        torch.save(model.state_dict(), path)
    else:
        library = pytest.importorskip("safetensors.torch", reason="the extra `export` has it")
        library.save_model(model, path)
    write_words(tmp_path / "source.txt", V_SOURCE, TORCH_SPECIALS)
    write_words(tmp_path / "target.txt", V_TARGET, TORCH_SPECIALS)
    return [
        "import", f"--from={path}", "--layout=pytorch", f"--workdir={tmp_path / 'run'}",
        f"--vocabulary={tmp_path / 'target.txt'}", HEADS, *flags,
    ]  # fmt: skip


@pytest.mark.parametrize(("norm_position", "form"), [("post", "pt"), ("pre", "safetensors")])
def test_a_transformer_of_torch_gives_the_logits_that_it_gives_there(norm_position, form, tmp_path):
    model = with_random_weights(OwnModel(norm_first=norm_position == "pre"))
    # A table of sinusoids, which is not an embedding.
    model.register_buffer("positional_encoding", torch.tensor(sinusoids(np.arange(50), D)))
    source = f"--source_vocabulary={tmp_path / 'source.txt'}"
    norm = f"--config.model.norm_position={norm_position}"
    run = run_of(torch_command(tmp_path, model, source, norm, form=form), tmp_path)
    compare_logits(run, model, torch_rows(V_TARGET), torch_rows(V_SOURCE))


def test_what_the_weights_do_not_show_is_printed_as_flags_that_change_it(tmp_path, capsys):
    model = with_random_weights(OwnModel(norm_first=True, shared=True, scale=3.0))
    command = torch_command(tmp_path, model, "--config.model.norm_position=pre")
    run_of(command, tmp_path)
    lines = capsys.readouterr().err.splitlines()
    (flags,) = [line.split()[1:] for line in lines if line.startswith("assumed")]
    assert [flag.partition("=")[0] for flag in flags] == [
        "--config.model.activation", "--config.model.norm", "--config.model.positions",
        "--embedding_scale",
    ]  # fmt: skip
    assert flags[-1] == f"--embedding_scale={D**0.5:.8g}"
    flags = [*flags[:-1], "--embedding_scale=3", f"--workdir={tmp_path / 'other'}"]
    run = run_of([*command, *flags], tmp_path, "other")
    assert "assumed" not in capsys.readouterr().err
    compare_logits(run, model, torch_rows(V_TARGET), torch_rows(V_TARGET))


def test_without_biases_and_with_one_matrix_it_is_a_model_without_them(tmp_path):
    model = OwnModel(shared=True)
    for module in model.modules():
        if isinstance(module, torch.nn.MultiheadAttention):
            module.in_proj_bias = module.out_proj.bias = None
    with_random_weights(model)
    run = run_of(torch_command(tmp_path, model), tmp_path)
    compare_logits(run, model, torch_rows(V_TARGET), torch_rows(V_TARGET))
    config = run.config.model
    assert (config.tying, config.attention_bias, config.output_bias) == ("all", False, False)


def test_names_say_which_matrix_is_which(tmp_path, capsys):
    model = with_random_weights(OwnModel())
    state = {name.replace("tok_emb", "generator"): x for name, x in model.state_dict().items()}
    model.state_dict = lambda: state
    source = f"--source_vocabulary={tmp_path / 'source.txt'}"
    command = torch_command(tmp_path, model, source)
    line = failed(command, capsys)
    names = "source_embedding=src_generator.weight,embedding=tgt_generator.weight"
    assert all(name.partition("=")[2] in line for name in names.split(","))
    run = run_of([*command, f"--names={names},output=generator.weight"], tmp_path)
    compare_logits(run, model, torch_rows(V_TARGET), torch_rows(V_SOURCE))


def failed(command, capsys):
    assert main(["jformer", *command]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("jformer: ")]
    return line


def without(flag, command):
    return [argument for argument in command if not argument.startswith(flag)]


def test_every_tensor_that_does_not_fit_is_named_in_one_error(annotated, tmp_path, capsys):
    model, command = annotated
    state = model.state_dict()
    del state["decoder.layers.1.src_attn.linears.2.bias"]
    state["encoder.layers.0.extra.weight"] = torch.ones(3, 2)
    state["encoder.norm.a_2"] = torch.ones(D + 1)
    torch.save(state, tmp_path / "model.pt")
    line = failed(command, capsys)
    assert f"decoder.layers.1.src_attn.linears.2.bias [{D}]" in line
    assert "encoder.layers.0.extra.weight [3, 2]" in line
    assert re.search(rf"encoder\.norm\.a_2 .*\[{D + 1}\].*\[{D}\]", line)
    assert not os.path.exists(tmp_path / "run")


class Harm:
    def __reduce__(self):
        return os.mkdir, ("harmed",)


def test_a_file_that_runs_code_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.ones(2), "more": Harm()}, "model.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Harm()))
    for name in ("model.pt", "pickle.pt"):
        with pytest.raises(UserError, match=re.escape(name)):
            read_tensors(tmp_path / name)
    assert not os.path.exists("harmed")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: [*without("--layout", x), "--layout=keras"], "--layout.*keras"),
        (lambda x: [*without("--from", x), "--from=none.pt"], "--from=none.pt: "),
        (lambda x: without("--source_vocabulary", x), r"src_embed\.0\.lut\.weight.*\b23\b"),
        (lambda x: without("--config", x), "num_heads=8.*d_model=20"),
        (lambda x: [*x, "--config.model.positions=learned"], "position_embedding"),
    ],
)
def test_a_mistake_is_one_line_and_makes_no_run(change, message, annotated, tmp_path, capsys):
    _, command = annotated
    assert re.search(message, failed(change(command), capsys))
    assert not os.path.exists(tmp_path / "run")


def test_a_run_is_not_imported_over_another(annotated, tmp_path, capsys):
    _, command = annotated
    (tmp_path / "run").mkdir()
    assert re.search(f"--workdir={tmp_path / 'run'}.*exists", failed(command, capsys))


@pytest.mark.parametrize("key", ["model_state_dict", "state_dict"])
def test_the_state_dict_of_a_training_checkpoint_is_read(key, tmp_path):
    torch.save({"epoch": 3, key: {"a": torch.ones(2)}}, tmp_path / "model.pt")
    assert list(read_tensors(tmp_path / "model.pt")) == ["a"]
