"""`import` of Marian models, made here at random with SentencePiece vocabularies trained here."""

import json

import numpy as np
import pytest

import jformer
from jformer.config import PAD
from jformer.data.datasets import read_phrases
from jformer.main import main

REASON = "the extra `parity` has PyTorch and transformers: pip install -e '.[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
sentencepiece = pytest.importorskip("sentencepiece", reason="the extra `sentencepiece` has it")

from tests.annotated import with_random_weights  # noqa: E402
from tests.extras.interop.small import logits_here_and_in_transformers  # noqa: E402

D, F, H = 20, 31, 4
CODE = ">>deu<<"
SENTENCES = ["3.5 kilometers and Sweden", "Friday, May 3, 2041", "a word of Zürich", "557 lira"]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A SentencePiece model of each language, and one vocab.json for both as OPUS-MT has it."""
    folder = tmp_path_factory.mktemp("pieces")
    sources, targets = zip(*read_phrases("en", "de", 1000)["train"], strict=True)
    ids = {"</s>": 0, "<unk>": 1}
    for name, texts in (("source", sources), ("target", targets)):
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(texts), model_prefix=str(folder / name), vocab_size=150,
            model_type="unigram", character_coverage=1.0, num_threads=1, minloglevel=2,
            hard_vocab_limit=False,
        )  # fmt: skip
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        for number in range(3, model.get_piece_size()):
            ids.setdefault(model.id_to_piece(number), len(ids))
    ids[CODE] = len(ids)
    ids["<pad>"] = len(ids)  # the last, as there
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    return folder, ids


def save_marian(pieces, folder, scale_embedding=True, seed=0):
    """A random Marian model in `folder`, as `save_pretrained` writes it, with its vocabulary."""
    spm, ids = pieces
    V = len(ids)
    config = transformers.MarianConfig(
        vocab_size=V, d_model=D, encoder_layers=2, decoder_layers=1, encoder_attention_heads=H,
        decoder_attention_heads=H, encoder_ffn_dim=F, decoder_ffn_dim=F, max_position_embeddings=64,
        activation_function="swish", scale_embedding=scale_embedding, forced_eos_token_id=None,
        pad_token_id=V - 1, decoder_start_token_id=V - 1, eos_token_id=0, bos_token_id=0,
        num_beams=1,
    )  # fmt: skip
    model = with_random_weights(transformers.MarianMTModel(config), seed)
    with torch.no_grad():
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())
    generator = torch.Generator().manual_seed(7)
    model.final_logits_bias.copy_(0.25 * torch.randn(1, V, generator=generator))
    model.generation_config.bad_words_ids = [[V - 1]]
    model.save_pretrained(folder)
    for name in ("source.spm", "target.spm", "vocab.json"):
        (folder / name).write_bytes((spm / name).read_bytes())
    return model


def run_of(folder, tmp_path):
    flags = [f"--from={folder}", "--layout=marian", f"--workdir={tmp_path / 'run'}"]
    assert main(["jformer", "import", *flags]) == 0
    return jformer.load(tmp_path / "run")


def rows_of(ids):
    """The ids of theirs of our entries: <pad> stands for PAD and for BOS."""
    V = len(ids)
    return np.array([V - 1, V - 1, 0, *range(1, V - 1)])


def compare_logits(run, model, rows):
    logits_BTV, expected_BTV = logits_here_and_in_transformers(run, model, rows)
    np.testing.assert_allclose(logits_BTV[..., 1:], expected_BTV[..., 1:], atol=1e-4)
    assert np.all(logits_BTV[..., PAD] < -500)  # <pad> is BOS, and counts once in the softmax


@pytest.mark.process
@pytest.mark.parametrize("scale_embedding", [True, False])
def test_a_marian_model_gives_the_logits_that_it_gives_in_transformers(
    scale_embedding, pieces, tmp_path
):
    model = save_marian(pieces, tmp_path / "theirs", scale_embedding=scale_embedding)
    run = run_of(tmp_path / "theirs", tmp_path)
    rows = rows_of(pieces[1])
    compare_logits(run, model, rows)
    compare_ids(run, rows, tokenizer_of(tmp_path / "theirs"))
    assert run.config.model.tying == ("output" if scale_embedding else "none")
    assert (run.config.model.activation, run.config.model.norm) == (
        "silu", "layer_norm(epsilon=1e-5)",
    )  # fmt: skip


def compare_ids(run, rows, tokenizer):
    """Hold our ids of texts to those of Marian's tokenizer."""
    for sentence in [*SENTENCES, f"{CODE} Sweden", "☃"]:
        (ours,) = run.vocabularies.source.encode([sentence])
        assert [*rows[ours], 0] == tokenizer(sentence).input_ids, sentence
    target = "3,5 Kilometer und Schweden"
    (ours,) = run.vocabulary.encode([target])
    assert [*rows[ours], 0] == tokenizer(text_target=target).input_ids
    assert run.vocabulary.decode(ours) == target


def tokenizer_of(folder):
    files = (str(folder / name) for name in ("source.spm", "target.spm", "vocab.json"))
    return transformers.MarianTokenizer(*files)
