"""`import` of M2M100 and NLLB models, made here at random with vocabularies trained here."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import jformer
from jformer.config import BOS
from jformer.data.datasets import read_phrases
from jformer.data.vocabulary import LANGUAGE
from jformer.errors import UserError
from jformer.extras.interop.hugging_face import export_m2m100
from jformer.main import main
from jformer.schema import replaced

REASON = "the extra `parity` has PyTorch and transformers: pip install -e '.[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
sentencepiece = pytest.importorskip("sentencepiece", reason="the extra `sentencepiece` has it")

from tests.annotated import with_random_weights  # noqa: E402
from tests.extras.interop.small import logits_here_and_in_transformers  # noqa: E402

D, F, H = 32, 40, 4
LANGUAGES = {"m2m100": ("en", "de"), "nllb": ("eng_Latn", "deu_Latn")}
SEEDS = {"m2m100": 8, "nllb": 20}  # some outputs end before the limit, and some do not
SENTENCES = ["3.5 kilometers and Sweden", "Friday, May 3, 2041", " a  word of Zürich", "557 lira"]


def save_m2m100(folder, kind):
    """A tokenizer and a random model as `save_pretrained` writes them; both are returned."""
    sources, targets = zip(*read_phrases("en", "de", 1000)["train"], strict=True)
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
    model = with_random_weights(transformers.M2M100ForConditionalGeneration(config), SEEDS[kind])
    with torch.no_grad():  # so that outputs differ, and some end before the limit
        model.model.decoder.layer_norm.bias += 2 * model.model.shared.weight[2]
        for layer in model.model.decoder.layers:
            layer.encoder_attn.out_proj.weight *= 4
    model.save_pretrained(folder)
    if kind == "nllb":  # all names of a tensor, and the positions, as in the published files
        (folder / "model.safetensors").unlink()
        state = {
            f"model.{stack}.embed_positions.weights": model.get_submodule(
                f"model.{stack}.embed_positions"
            ).weights
            for stack in ("encoder", "decoder")
        }
        torch.save(model.state_dict() | state, folder / "pytorch_model.bin")
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
    logits_BTV, expected_BTV = logits_here_and_in_transformers(run, model, rows)
    assert len({*rows}) == model.config.vocab_size
    assert np.all(logits_BTV[..., BOS] < -500)  # </s> counts once in the softmax
    others = np.arange(len(rows)) != BOS
    np.testing.assert_allclose(logits_BTV[..., others], expected_BTV[..., others], atol=1e-4)


def test_texts_have_the_ids_that_they_have_in_transformers(imported):
    _, tokenizer, run = imported
    rows = rows_of(run)
    for sentence in SENTENCES:
        (source,), (target,) = (each.encode([sentence]) for each in run.vocabularies)
        assert [*rows[source], 2] == tokenizer(sentence).input_ids
        assert [*rows[target], 2] == tokenizer(text_target=sentence).input_ids
        assert run.vocabulary.decode(target) == tokenizer.decode(rows[target[1:]])
    for name in ("deu_Latn", "__de__"):  # in a text they are text
        assert run.vocabulary.encode([name])[0].count(run.vocabulary.language_token) == 1


@pytest.mark.process
@pytest.mark.parametrize("beams", [1, 4])
def test_outputs_are_those_of_generate_with_the_language_forced(beams, imported):
    model, tokenizer, run = imported
    rows, longest, seen = rows_of(run), 12, set()
    language = int(rows[run.vocabulary.language_token])
    search = {"early_stopping": "never", "length_penalty": 0.7} if beams > 1 else {}
    for sentence in SENTENCES:
        ((best,),) = run.hypotheses(
            [sentence], beam_size=beams, max_length=longest, length_penalty=0.7
        )
        found = model.generate(
            input_ids=torch.tensor([tokenizer(sentence).input_ids]), num_beams=beams,
            max_new_tokens=longest, forced_bos_token_id=language, do_sample=False,
            output_scores=True, return_dict_in_generate=True, **search,
        )  # fmt: skip
        expected = [token for token in found.sequences[0].tolist()[1:] if token not in (1, 2)]
        assert rows[best.output].tolist() == expected
        assert LANGUAGE not in best.text
        if beams > 1:
            assert best.score == pytest.approx(float(found.sequences_scores[0]), abs=1e-4)
        seen.add((tuple(expected), best.complete))
    assert len(seen) > 1
    assert {complete for _, complete in seen} == {True, False}


def test_a_prefix_follows_the_language(imported):
    *_, run = imported
    ((best,),) = run.hypotheses([SENTENCES[0]], ["Freitag, 3"], beam_size=1)
    assert best.text.startswith("Freitag, 3")
    assert best.output[0] == run.vocabulary.language_token


def test_a_score_is_that_of_the_language_and_the_text(imported):
    model, tokenizer, run = imported
    source, target = SENTENCES[1], "Freitag, 3. Mai 2041"
    (scored,) = run.score([source], [target])
    labels = tokenizer(text_target=target).input_ids
    with torch.no_grad():
        logits_TV = model(
            input_ids=torch.tensor([tokenizer(source).input_ids]),
            decoder_input_ids=torch.tensor([[2, *labels[:-1]]]),
        ).logits[0]
    log_probs_TV = torch.log_softmax(logits_TV, -1)
    expected = log_probs_TV[torch.arange(len(labels)), labels].tolist()
    assert scored.token_log_probs == pytest.approx(expected, abs=1e-4)


@pytest.mark.process
@pytest.mark.parametrize("imported", ["nllb"], indirect=True)
def test_an_imported_model_is_fine_tuned(imported, tmp_path):
    *_, run = imported
    files = [str(run.workdir / f"{name}.json") for name in ("source_vocabulary", "vocabulary")]
    train = {"steps": 12, "checkpoint_every": 12, "log_every": 1, "batch_tokens": 640}
    data = {"vocabulary": ",".join(files), "num_buckets": 1, "cache": str(tmp_path / "cache")}
    config = replaced(run.config, {
        "train": {**train, "init_from": str(run.workdir)}, "data": data,
        "optimizer": {"schedule": "constant", "learning_rate": 1e-3, "warmup_steps": 1},
    })  # fmt: skip
    pairs = read_phrases("en", "de", 100)["train"][:20]
    losses = []

    def on_metrics(step, split, numbers, _):
        if split == "train":
            losses.append(numbers["loss"])

    tuned = jformer.train(config, pairs, pairs[:8], tmp_path / "run", on_metrics)
    assert np.all(np.isfinite(losses))
    assert losses[-1] < 0.9 * losses[0]
    assert tuned.vocabularies.hash == run.vocabularies.hash


@pytest.mark.process
@pytest.mark.parametrize("is_tuned", [False, True])
def test_a_run_goes_back_to_transformers_with_its_logits(is_tuned, imported, tmp_path):
    _, tokenizer, run = imported
    if is_tuned:  # rows and matrices that are equal in M2M100 differ, and the logits have a bias
        rng = np.random.default_rng(5)
        params = jax.tree.map(lambda x: x + 0.03 * rng.standard_normal(x.shape), run.params)
        run = dataclasses.replace(run, params=params)
    export_m2m100(run, run.workdir.parent / "theirs", tmp_path)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    rows = rows_of(run)
    logits_BTV, expected_BTV = logits_here_and_in_transformers(run, model, rows)
    others = np.arange(len(rows)) != BOS
    np.testing.assert_allclose(logits_BTV[..., others], expected_BTV[..., others], atol=1e-4)
    back = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert back(SENTENCES).input_ids == tokenizer(SENTENCES).input_ids


def test_the_export_names_what_differs_from_the_original(imported, tmp_path, capsys):
    *_, run = imported
    command = ["jformer", "export", "--format=transformers", f"--workdir={run.workdir}"]
    assert main([*command, f"--output={tmp_path / 'out'}"]) == 2
    assert "--original=" in capsys.readouterr().err
    model = dataclasses.replace(run.config.model, activation="gelu")
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, model=model))
    with pytest.raises(UserError, match=r"model\.activation=gelu"):
        export_m2m100(run, run.workdir.parent / "theirs", tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--source_language=en"], "no language"),
        (["--source_language=xx", "--target_language=de"], "no language xx"),
        (["--source_language=a", "--target_language=de"], "no language a"),  # a piece
    ],
)
def test_a_mistake_is_one_line(flags, message, imported, tmp_path, capsys):
    *_, run = imported
    command = ["import", f"--from={run.workdir.parent / 'theirs'}", "--layout=m2m100", *flags]
    assert main(["jformer", *command, f"--workdir={tmp_path / 'run'}"]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()
