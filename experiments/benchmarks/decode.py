"""Benchmark translation against other engines that use the weights of the same run.

    python -m experiments.benchmarks.decode --workdir=RUN --input=FILE [--references=FILE]
        [--sentences=1000] [--beam=4] [--alpha=0.6] [--batch=64] [--rounds=3]
        [--platform=cpu|gpu] [--contenders=ctranslate2,...] [--json=FILE] [--chart=FILE]

Each engine translates the first sentences of the file, from ids to ids, in batches of similar
lengths. An extra first turn compiles and fills the caches. CTranslate2 uses float32 or 8-bit (int8)
weights, with one worker on all cores or with one worker per core. Marian is Hugging Face's
`generate`. All engines stop a search after they have found as many hypotheses as the beam size.

Each engine applies its own length penalty with `alpha`, so outputs may differ. Set `--alpha=0` to
disable the penalties. The table shows the share of outputs that are equal to jformer's, and BLEU if
you pass references.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import sacrebleu

import jformer
from experiments.benchmarks import turns
from jformer.run import Run

OURS = "jformer"
LONGER = 50  # the maximum output length is the source length plus this number, Section 6.1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--references", type=Path)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=0.6)
    parser.add_argument("--batch", type=int, default=64)
    turns.add_flags(parser, rounds=3)
    options = parser.parse_args()
    run = jformer.load(options.workdir)
    sources = options.input.read_text(encoding="utf-8").splitlines()[: options.sentences]
    ids = run.vocabularies.source.encode(sources)
    with tempfile.TemporaryDirectory() as folder:
        work = (options, ids)
        contenders: dict[str, tuple[Callable, tuple]] = {
            OURS: (ours, (options, sources)),
            "ctranslate2": (ctranslate2_engine, (*work, folder, "float32", 1)),
            "ctranslate2 workers": (ctranslate2_engine, (*work, folder, "float32", os.cpu_count())),
            "ctranslate2 int8": (ctranslate2_engine, (*work, folder, "int8", 1)),
            "marian": (marian_engine, (*work, "float32")),
            "marian bf16": (marian_engine, (*work, "bfloat16")),
        }
        contenders = turns.chosen(parser, contenders, options.contenders, (OURS,))
        results = turns.take_turns(contenders, options.rounds)
    title = (
        f"Translating {len(sources):,} sentences, {options.workdir}, beam {options.beam}, "
        f"alpha {options.alpha}, batches of {options.batch}, {options.platform}"
    )
    turns.publish(title, table(run, results, options), results, options)


def table(run: Run, results: list[turns.Result], options: argparse.Namespace) -> str:
    references = None
    if options.references:
        references = options.references.read_text(encoding="utf-8").splitlines()
    rows = []
    for result in results:
        if result.error:
            rows.append([result.name, result.error, "", "", "", "", "", ""])
            continue
        texts = result.answer
        if result.name != OURS:
            texts = [run.vocabulary.decode(output) for output in result.answer]
        equal = sum(a == b for a, b in zip(texts, results[0].answer, strict=True)) / len(texts)
        tokens = sum(len(output) + 1 for output in run.vocabulary.encode(texts))
        bleu = ""
        if references:
            bleu = f"{sacrebleu.corpus_bleu(texts, [references[: len(texts)]]).score:.2f}"
        median = statistics.median(result.seconds)
        rows.append(
            [
                result.name,
                turns.spread(result.ratios(results[0])),
                f"{len(texts) / median:.1f}",
                f"{tokens / median:,.0f}",
                f"{result.first:.1f}",
                f"{result.memory / 1e6:,.0f}",
                f"{equal:.1%}",
                bleu,
            ]
        )
    header = ["", "speed, jformer = 1", "sentences per second", "tokens per second",
              "first turn, seconds", "host memory, MB", "same outputs", "BLEU"]  # fmt: skip
    return turns.markdown(header, rows)


def ours(options: argparse.Namespace, sources: list[str]) -> Callable[[], list[str]]:
    import jax

    jax.config.update("jax_platforms", turns.PLATFORMS[options.platform])
    run = jformer.load(options.workdir)
    run = run.with_decode(
        search="beam(early_stopping=True)",
        beam_size=options.beam,
        n_best=1,
        length_penalty=options.alpha,
        batch_size=options.batch,
        max_extra_length=LONGER,
    )
    return lambda: run.translate(sources)


def ctranslate2_engine(
    options: argparse.Namespace, ids: list[list[int]], folder: str, dtype: str, workers: int
) -> Callable[[], list[list[int]]]:
    import ctranslate2

    from jformer.extras.interop.ctranslate2 import save_model, token_names

    model, run = Path(folder) / "ctranslate2", jformer.load(options.workdir)
    if not model.exists():
        model.mkdir()
        save_model(run, model)
    names = token_names(run.vocabulary)
    numbers = {name: token for token, name in enumerate(names)}
    translator = ctranslate2.Translator(
        str(model),
        device=turns.PLATFORMS[options.platform],
        compute_type=dtype,
        inter_threads=workers,
        intra_threads=max(1, (os.cpu_count() or 1) // workers),
    )
    texts = [[names[token] for token in text] for text in ids]

    def turn() -> list[list[int]]:
        found = translator.translate_batch(
            texts,
            max_batch_size=options.batch,
            beam_size=options.beam,
            length_penalty=options.alpha,
            max_decoding_length=max(map(len, ids)) + LONGER,
        )
        return [[numbers[token] for token in result.hypotheses[0]] for result in found]

    return turn


def marian_engine(
    options: argparse.Namespace, ids: list[list[int]], dtype: str
) -> Callable[[], list[list[int]]]:
    import torch

    from experiments.benchmarks import peers

    device = turns.PLATFORMS[options.platform]
    longest = max(map(len, ids)) + LONGER + 2
    model = peers.marian_of(jformer.load(options.workdir), longest).to(device)

    def turn() -> list[list[int]]:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            return peers.generate(
                model, ids, options.batch, options.beam, options.alpha, LONGER, early_stopping=True
            )

    return turn


if __name__ == "__main__":
    main()
