"""`import` of M2M100 and NLLB models, made here at random with vocabularies trained here."""

import json

import numpy as np
import pytest

import jformer
from jformer.config import BOS, EOS, PAD
from jformer.data.phrases import make_splits
from jformer.main import main

REASON = "the extra `parity` has PyTorch and transformers: pip install -e '.[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
sentencepiece = pytest.importorskip("sentencepiece", reason="the extra `sentencepiece` has it")

from tests.annotated import with_random_weights  # noqa: E402

D, F, H, S, T = 32, 40, 4, 7, 11
LANGUAGES = {"m2m100": ("en", "de"), "nllb": ("eng_Latn", "deu_Latn")}
SENTENCES = ["3.5 kilometers and Sweden", "Friday, May 3, 2041", " a  word of Zürich", "557 lira"]


def save_m2m100(folder, kind):
    """A tokenizer and a random model as `save_pretrained` writes them; both are returned."""
    sources, targets = make_splits("en", "de", 1000, 0)["train"]
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter([*sources, *targets]), model_prefix=str(folder / "pieces"),
        vocab_size=200, model_type="bpe", character_coverage=1.0, num_threads=1, minloglevel=2,
    )  # fmt: skip
    spm = str(folder / "pieces.model")
    model = sentencepiece.SentencePieceProcessor(model_file=spm)
    ids = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    for number in range(3, model.get_piece_size()):
        ids[model.id_to_piece(number)] = len(ids)
    source, target = LANGUAGES[kind]
    if kind == "m2m100":
        (folder / "ids.json").write_text(json.dumps(ids))
        tokenizer = transformers.M2M100Tokenizer(
            str(folder / "ids.json"), spm, src_lang=source, tgt_lang=target
        )
    else:
        pieces = sorted(set(ids) - {"<s>", "<pad>", "</s>", "<unk>"}, key=ids.__getitem__)
        merges = [
            (piece[:cut], piece[cut:])
            for piece in pieces
            for cut in range(1, len(piece))
            if piece[:cut] in ids and piece[cut:] in ids
        ]
        tokenizer = transformers.NllbTokenizer(ids, merges, src_lang=source, tgt_lang=target)
    tokenizer.save_pretrained(folder)
    V = 3 + max(tokenizer.convert_tokens_to_ids([source, target, "__zu__", "zul_Latn", "<mask>"]))
    config = transformers.M2M100Config(
        vocab_size=V, d_model=D, encoder_layers=2, decoder_layers=2, encoder_attention_heads=H,
        decoder_attention_heads=H, encoder_ffn_dim=F, decoder_ffn_dim=F, num_beams=1,
        max_position_embeddings=64,
    )  # fmt: skip
    model = with_random_weights(transformers.M2M100ForConditionalGeneration(config))
    model.save_pretrained(folder)
    return model, tokenizer


@pytest.fixture(scope="module", params=LANGUAGES)
def imported(request, tmp_path_factory):
    """The model and the tokenizer of transformers, and the run."""
    folder = tmp_path_factory.mktemp(request.param)
    model, tokenizer = save_m2m100(folder / "theirs", request.param)
    source, target = LANGUAGES[request.param]
    assert main([
        "jformer", "import", f"--from={folder / 'theirs'}", "--layout=m2m100",
        f"--source_language={source}", f"--target_language={target}", f"--workdir={folder / 'run'}",
    ]) == 0  # fmt: skip
    return model, tokenizer, jformer.load(folder / "run")


def rows_of(run):
    """The ids of theirs of our entries: </s> stands for BOS and for EOS."""
    return np.array([1, 2, 2, 0, *range(3, run.vocabulary.size - 1)])


def test_a_model_gives_the_logits_that_it_gives_in_transformers(imported):
    model, _, run = imported
    rows = rows_of(run)
    rng = np.random.default_rng(1)
    source_BS, target_BT = (rng.integers(3, len(rows), (3, L)).astype(np.int32) for L in (S, T))
    source_BS[:, -1], source_BS[0, 4:] = EOS, PAD
    target_BT[:, 0] = BOS
    logits_BTV = np.array(run.model.apply({"params": run.params}, source_BS, target_BT))
    with torch.no_grad():
        expected_BTV = model(
            input_ids=torch.tensor(rows[source_BS]),
            attention_mask=torch.tensor(source_BS != PAD),
            decoder_input_ids=torch.tensor(rows[target_BT]),
        ).logits.numpy()[..., rows]
    assert len({*rows}) == model.config.vocab_size
    assert np.all(logits_BTV[..., BOS] < -500)  # </s> counts once in the softmax
    others = np.arange(len(rows)) != BOS
    np.testing.assert_allclose(logits_BTV[..., others], expected_BTV[..., others], atol=1e-4)


def test_texts_have_the_ids_that_they_have_in_transformers(imported):
    _, tokenizer, run = imported
    rows = rows_of(run)
    for sentence in [*SENTENCES, "eng_Latn __en__ ☃"]:
        (source,), (target,) = (each.encode([sentence]) for each in run.vocabularies)
        if sentence in SENTENCES:
            assert [*rows[source], 2] == tokenizer(sentence).input_ids
            assert [*rows[target], 2] == tokenizer(text_target=sentence).input_ids
            expected = tokenizer.decode(rows[target], skip_special_tokens=True)
            assert run.vocabulary.decode(target) == expected
        assert source[1:] == target[1:]  # a language's name in a text is text
        assert len({*run.vocabulary.encode(["eng_Latn"])[0]} - {*target}) == 0


@pytest.mark.process
@pytest.mark.parametrize("beams", [1, 4])
def test_outputs_are_those_of_generate_with_the_language_forced(beams, imported):
    model, tokenizer, run = imported
    rows, longest = rows_of(run), 12
    language = rows[run.vocabulary.language_token]
    assert language == tokenizer.convert_tokens_to_ids(tokenizer.tgt_lang) or (
        language == tokenizer.get_lang_id(tokenizer.tgt_lang)
    )
    for sentence in SENTENCES:
        (best,) = run.hypotheses(
            [sentence], beam_size=beams, max_length=longest, length_penalty=0.8, details=True
        )[0]
        found = model.generate(
            input_ids=torch.tensor([tokenizer(sentence).input_ids]), num_beams=beams,
            max_new_tokens=longest, forced_bos_token_id=int(language), length_penalty=0.8,
            early_stopping="never" if beams > 1 else False, do_sample=False,
            output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        (output,) = best.parts
        expected = [token for token in found.sequences[0].tolist()[1:] if token not in (1, 2)]
        print(sentence, expected, rows[output.output].tolist(), best.score, best.complete, getattr(found, "sequences_scores", None))
        assert rows[output.output].tolist() == expected
        if beams > 1:
            assert best.score == pytest.approx(float(found.sequences_scores[0]), abs=1e-4)
        assert best.text == tokenizer.decode(expected, skip_special_tokens=True)
        (scored,) = run.score([sentence], [best.text])
        print(scored)
