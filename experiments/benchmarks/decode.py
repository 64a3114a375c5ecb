"""Benchmark translation against other engines that use the weights of the same run.

    python -m experiments.benchmarks.decode --workdir=RUN --input=FILE [--references=FILE]
        [--sentences=1000] [--beam=4] [--alpha=0.6] [--batch=64] [--rounds=3]
        [--platform=cpu|gpu] [--contenders NAME ...] [--json=FILE]

Each engine translates the first sentences of the file, from ids to ids, in batches of similar
lengths. An extra first turn compiles and fills the caches. CTranslate2 uses float32 or 8-bit (int8)
weights, with one worker on all cores or with one worker per core. Marian is Hugging Face's
`generate`. All engines stop a search after they have found as many hypotheses as the beam size.

Each engine applies its own length penalty with `alpha`, so outputs may differ. Set `--alpha=0` to
disable the penalties. The table shows the share of outputs that are equal to the first engine's,
and BLEU if you pass references. GPU memory is that of JAX or PyTorch, without CTranslate2's.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import sacrebleu

import jformer
from experiments.benchmarks import turns
from jformer.run import Run

LONGER = 50  # the maximum output length is the source length plus this number, Section 6.1


def main() -> None:
    parser = turns.make_parser(__doc__, rounds=3, contenders=[*ENGINES])
    parser.add_argument("--platform", choices=turns.PLATFORMS, default="cpu")
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--references")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=0.6)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    sources = turns.read_lines(options.input)[: options.sentences]
    with tempfile.TemporaryDirectory() as folder:
        contenders: dict[str, turns.Contender] = {}
        for name in options.contenders:
            make, *arguments = ENGINES[name]
            contenders[name] = (make, (options, sources, folder, *arguments))
        results = turns.take_turns(contenders, options.rounds, options.platform)
    title = (
        f"Translating {len(sources):,} sentences, {options.workdir}, beam {options.beam}, "
        f"alpha {options.alpha}, batches of {options.batch}, {options.platform}"
    )
    turns.publish(title, table(results, options), results, options)


def table(results: list[turns.Result], options: argparse.Namespace) -> str:
    vocabulary = jformer.load(options.workdir).vocabulary
    first = next((result.answer for result in results if not result.error), None)

    def cells(result: turns.Result) -> list[str]:
        texts = result.answer
        equal = sum(a == b for a, b in zip(texts, first, strict=True)) / len(texts)
        tokens = sum(len(output) + 1 for output in vocabulary.encode(texts))
        bleu = ""
        if options.references:
            references = turns.read_lines(options.references)[: len(texts)]
            bleu = f"{sacrebleu.corpus_bleu(texts, [references]).score:.2f}"
        return [
            f"{len(texts) / result.median:.1f}",
            f"{tokens / result.median:,.0f}",
            f"{result.first:.1f}",
            f"{result.memory / 1e6:,.0f}",
            f"{equal:.1%}",
            bleu,
        ]

    header = ["sentences per second", "tokens per second", "first turn, seconds"]
    return turns.table([*header, "memory, MB", "same outputs", "BLEU"], results, cells)


def open_run(options: argparse.Namespace) -> Run:
    return jformer.load(options.workdir).with_decode(
        search="beam(early_stopping=True)",
        beam_size=options.beam,
        n_best=1,
        length_penalty=options.alpha,
        batch_size=options.batch,
        max_extra_length=LONGER,
    )


def ours(options: argparse.Namespace, sources: list[str], folder: str) -> Callable[[], list[str]]:
    run = open_run(options)
    return lambda: run.translate(sources)


def ctranslate2_engine(
    options: argparse.Namespace, sources: list[str], folder: str, dtype: str, workers: int
) -> Callable[[], list[str]]:
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
    texts = [[names[token] for token in ids] for ids in run.vocabularies.source.encode(sources)]

    def turn() -> list[str]:
        found = translator.translate_batch(
            texts,
            max_batch_size=options.batch,
            beam_size=options.beam,
            length_penalty=options.alpha,
            max_decoding_length=max(map(len, texts)) + LONGER,
        )
        outputs = ([numbers[token] for token in result.hypotheses[0]] for result in found)
        return [run.vocabulary.decode(output) for output in outputs]

    return turn


def marian_engine(
    options: argparse.Namespace, sources: list[str], folder: str, bf16: bool
) -> Callable[[], list[str]]:
    from experiments.benchmarks import peers

    run = open_run(options)
    ids = run.vocabularies.source.encode(sources)
    model = peers.marian_of(run, longest=max(map(len, ids)) + LONGER + 2)
    model = model.to(turns.PLATFORMS[options.platform])

    def turn() -> list[str]:
        outputs = peers.generate(model, ids, run.config.decode, bf16)
        return [run.vocabulary.decode(output) for output in outputs]

    return turn


# Functions that make a contender, and their last arguments.
ENGINES = {
    "jformer": (ours,),
    "ctranslate2": (ctranslate2_engine, "float32", 1),
    "ctranslate2 workers": (ctranslate2_engine, "float32", os.cpu_count()),
    "ctranslate2 int8": (ctranslate2_engine, "int8", 1),
    "marian": (marian_engine, False),
    "marian bf16": (marian_engine, True),
}

if __name__ == "__main__":
    main()
