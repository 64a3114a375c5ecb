"""Create a run directory from the weights of another program.

The layout pytorch is a state dict of `torch.nn.Transformer` with embeddings, annotated is a state
dict of The Annotated Transformer, and marian and m2m100 are folders of Hugging Face's Marian and
M2M100 (also NLLB) formats, which contain the vocabulary. Only tensors are read from PyTorch's
files, which can also be .safetensors. Sizes are read from the weights. The command prints what a
state dict does not show, such as the number of heads, as flags that you can change. Every tensor
must match a parameter, and every parameter a tensor.
"""

from pathlib import Path
from typing import Any

from jformer import cli
from jformer.config import Config
from jformer.console import say
from jformer.schema import flatten

LAYOUTS = ("pytorch", "annotated", "marian", "m2m100")
# Keys that a state dict does not show.
ASSUMED = ("num_heads", "norm_position", "activation", "norm", "positions")


def add_flags(parser: cli.Parser) -> None:
    parser.add_path(
        "--from", "FILE", "the weights; for marian and m2m100 the folder", required=True
    )
    parser.add_argument("--layout", required=True, choices=LAYOUTS, help="layout of the weights")
    parser.add_path("--workdir", "DIR", "the run directory to write", required=True)
    text = "of a state dict: a tokenizer.json, a SentencePiece .model, or a .txt of tokens"
    parser.add_path("--vocabulary", "FILE", text)
    parser.add_path("--source_vocabulary", "FILE", "the vocabulary of the source, if different")
    add, text = parser.add_argument, "ids of the special tokens (default: found by their names)"
    add("--specials", type=three_ids, metavar="PAD,BOS,EOS", help=text)
    text = "names of embedding, source_embedding and output in the state dict (default: found)"
    add("--names", type=assignments, default={}, metavar="embedding=NAME,...", help=text)
    text = "factor of the embeddings in the other program (default: sqrt(d_model))"
    add("--embedding_scale", type=float, metavar="X", help=text)
    for name in ("source_language", "target_language"):
        add(f"--{name}", default="", metavar="CODE", help="for m2m100, as en or eng_Latn")
    cli.add_keys(parser)


def three_ids(text: str) -> tuple[int, int, int]:
    pad, bos, eos = map(int, text.split(","))
    return pad, bos, eos


def assignments(text: str) -> dict[str, str]:
    return dict(part.split("=") for part in text.split(","))


def main(args: Any) -> int:
    path = Path(getattr(args, "from"))
    is_folder = args.layout in ("marian", "m2m100")

    from jformer.extras.interop import hugging_face, state_dicts
    from jformer.extras.interop.run_directory import import_run

    if is_folder:
        languages = (args.source_language, args.target_language)
        source = hugging_face.read(path, args.layout, languages)
    else:
        files = (args.source_vocabulary, args.vocabulary)
        source = state_dicts.read(path, args.layout, files, args.specials, args.names)
    config = import_run(source, args.workdir, args.embedding_scale, args.overrides)
    if not is_folder and (flags := assumptions(config, args)):
        say(f"assumed     {' '.join(flags)}")
        say("            the weights do not show these values; if one is wrong, set its flag")
    say(f"workdir     {args.workdir}; translate, score and evaluate open it as any other run")
    return 0


def assumptions(config: Config, args: Any) -> list[str]:
    """Return what a state dict does not show and the user has not set, as flags."""
    values = flatten(config)
    keys = [f"model.{name}" for name in ASSUMED if f"model.{name}" not in args.overrides]
    flags = [f"--config.{key}={values[key]}" for key in keys]
    if args.embedding_scale is None:
        flags.append(f"--embedding_scale={config.model.d_model**0.5:.8g}")
    return flags
