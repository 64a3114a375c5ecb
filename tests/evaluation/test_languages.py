"""BLEU uses sacreBLEU's tokenizer for the target language, in all that scores or chooses by it."""

import json

import pytest
import sacrebleu
from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_ko_mecab
from sacrebleu.tokenizers.tokenizer_char import TokenizerChar

import jformer
from jformer.evaluation.scores import score
from jformer.main import main
from jformer.rundir import read_metrics
from tests.conftest import SMALL

NUMERALS = str.maketrans("0123456789 ", "零一二三四五六七八九 ")
SOURCES = [" ".join(str(n)) for n in range(10000, 10320)]
TRAINING = [(line, line.translate(NUMERALS).replace(" ", "") + "。") for line in SOURCES]
VALIDATION = TRAINING[::16]
MECAB = {"ja": tokenizer_ja_mecab, "ko": tokenizer_ko_mecab}


class FakeMecab(TokenizerChar):
    """In place of MeCab, which the machine may not have: it cuts into characters."""

    def signature(self):
        return f"{self.language}-mecab-fake"


def set_mecab(monkeypatch, language, installed):
    """Install a fake MeCab for a language, or remove what there is."""
    module, name = MECAB[language], f"Tokenizer{language.capitalize()}Mecab"
    if installed:
        monkeypatch.setattr(module, name, type(name, (FakeMecab,), {"language": language}))
    else:
        monkeypatch.setattr(module, "MeCab", None)


def write_pairs(folder, language):
    for suffix, lines in zip(("en", language), zip(*VALIDATION, strict=True), strict=True):
        (folder / f"pairs.{suffix}").write_text("".join(f"{line}\n" for line in lines))
    return folder / "pairs"


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("zh", "zh"), ("ZH_CN", "zh"), ("zho-Hans", "zh"), ("lo_LA", "char"), ("khm", "char"),
        ("de", "13a"), ("kab", "13a"), ("this", "13a"),
    ],
)  # fmt: skip
def test_the_first_part_of_the_language_code_decides(language, tokenizer):
    text = ["我有一只猫。", "今天天气很好。"]
    assert f"|tok:{tokenizer}|" in score(text, [text], language)["signature"]


@pytest.mark.parametrize("language", ["ja", "kor"])
def test_japanese_and_korean_need_mecab(monkeypatch, language):
    text = ["猫が好き。", "고양이가 좋아요."]
    set_mecab(monkeypatch, language[:2], installed=False)
    with pytest.raises(RuntimeError, match=rf"sacrebleu\[{language[:2]}\]"):
        score(text, [text], language)
    set_mecab(monkeypatch, language[:2], installed=True)
    assert f"|tok:{language[:2]}-mecab-" in score(text, [text], language)["signature"]


@pytest.mark.parametrize("language", ["zh", "ja", "th"])
def test_good_text_without_spaces_has_no_score_that_says_it_is_bad(monkeypatch, language):
    """A word between spaces would be a sentence, so that one other character makes it wrong."""
    set_mecab(monkeypatch, "ja", installed=True)
    references = ["今天天气很好我们去公园吧。", "她昨天买了三本书都很有意思。"]
    outputs = ["今天天气很好我们去公园玩。", "她昨天买了五本书都很有意思。"]
    found = score(outputs, [references], language)
    scores = {name: found[name] for name in found if name.startswith(("bleu", "chrf"))}
    assert scores.pop("bleu_interval")[0] > 50
    assert min(scores.values()) > 50
    assert found.get("ter", 0) < 20
    assert ("ter" in found) == (language in ("zh", "ja"))  # TER cuts only their characters


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    """A run of seconds from digits to Chinese numerals."""
    keys = SMALL | {
        "data.target_language": "zh", "data.tokenizer": "unigram", "train.steps": 60,
        "train.metrics_every": 10, "train.best_by": "bleu", "train.evaluate_every": 30,
        "train.checkpoint_every": 30, "optimizer.warmup_steps": 20,
    }  # fmt: skip
    config = jformer.get_config("tiny:given", **keys)
    return jformer.train(config, TRAINING, VALIDATION, tmp_path_factory.mktemp("chinese") / "run")


@pytest.mark.process
def test_bleu_of_chinese_rises_in_training_and_chooses_the_best_checkpoint(chinese):
    lines = read_metrics(chinese.workdir)
    found = {line["step"]: line["bleu"] for line in lines if "bleu" in line}
    best = jformer.load(chinese.workdir, "best")
    assert best.step == max(found, key=found.get) > 10
    sources, targets = zip(*VALIDATION, strict=True)
    outputs = best.translate(sources)
    expected = sacrebleu.corpus_bleu(outputs, [targets], tokenize="zh").score
    assert 0 < found[best.step] == pytest.approx(expected)


@pytest.mark.process
def test_evaluate_and_the_paired_test_score_chinese_by_characters(chinese, tmp_path, capfd):
    prefix = write_pairs(tmp_path, "zh")
    flags = [f"--workdir={chinese.workdir}", f"--data={prefix}"]
    assert main(["jformer", "evaluate", *flags, f"--against={chinese.workdir}@best"]) == 0
    (scores,) = json.loads(capfd.readouterr().out.splitlines()[-1]).values()
    sources, targets = zip(*VALIDATION, strict=True)
    outputs = chinese.translate(sources)
    expected = sacrebleu.corpus_bleu(outputs, [targets], tokenize="zh").score
    assert 0 < scores["bleu"] == pytest.approx(expected)
    ours, _ = scores["against"]["bleu"]["systems"]
    assert ours["score"] == pytest.approx(expected)
    assert "tok:zh" in scores["signature"]
    assert "tok:zh" in scores["against"]["bleu"]["signature"]
    assert "asian:yes" in scores["signature_ter"]
    assert scores["against"]["ter"]["signature"].startswith(scores["signature_ter"][:7])
