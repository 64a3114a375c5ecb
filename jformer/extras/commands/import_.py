"""Create a run directory from the weights of another program.

The layout pytorch is a state dict of `torch.nn.Transformer` with embeddings, annotated is a state
dict of The Annotated Transformer, and marian and m2m100 are folders of Hugging Face's Marian and
M2M100 (also NLLB) formats, which contain the vocabulary. Only tensors are read from PyTorch's
files, which can also be .safetensors. Sizes are read from the weights; set other keys, such as
--config.model.num_heads=8. Every tensor must match a parameter, and every parameter a tensor.
"""

from pathlib import Path
from typing import Any

from jformer import cli
from jformer.config import Config, default_config, freeze
from jformer.errors import UserError

FOLDERS = ("marian", "m2m100")
LAYOUTS = ("pytorch", "annotated", *FOLDERS)
OF_LANGUAGES = ("source_language", "target_language")
OF_WORDS = ("vocabulary", "source_vocabulary", "specials", "names")


def add_flags(parser: cli.Parser) -> None:
    parser.add_path(
        "--from", "FILE", "the weights; for marian and m2m100 the folder", required=True
    )
    parser.add_argument("--layout", required=True, choices=LAYOUTS, help="layout of the weights")
    parser.add_path("--workdir", "DIR", "the run directory to write", required=True)
    text = "a tokenizer.json, a SentencePiece .model, or a .txt with a token per line"
    parser.add_path("--vocabulary", "FILE", text)
    parser.add_path("--source_vocabulary", "FILE", "the vocabulary of the source, if different")
    add, text = parser.add_argument, "ids of the special tokens (default: found by their names)"
    add("--specials", default="", metavar="PAD,BOS,EOS", help=text)
    text = "names of model parts in the state dict"
    add("--names", default="", metavar="embedding=NAME,...", help=text)
    for name in OF_LANGUAGES:
        add(f"--{name}", default="", metavar="CODE", help="for m2m100, as en or eng_Latn")
    cli.add_keys(parser)


def main(args: Any) -> int:
    source = Path(getattr(args, "from"))
    if args.layout not in FOLDERS and not args.vocabulary:
        raise UserError("--vocabulary is required: the file with the text of each id")
    for name in OF_WORDS:
        if args.layout in FOLDERS and getattr(args, name):
            raise UserError(f"--{name}: the folder of the model contains it; remove this flag")
    languages = (args.source_language, args.target_language)
    for name, code in zip(OF_LANGUAGES, languages, strict=True):
        if bool(code) != (args.layout == "m2m100"):
            raise UserError(f"--{name}={code}: is required with --layout=m2m100, and only there")

    def overriding(values: dict[str, Any]) -> Config:
        config = default_config("given")
        config.name = source.stem
        config.update_from_flattened_dict({**values, **args.overrides})
        return freeze(config)

    from jformer.extras.interop.importing import import_run

    files = (args.source_vocabulary, args.vocabulary)
    given = (files, args.specials, args.names, languages, overriding)
    import_run(source, args.layout, Path(args.workdir), *given)
    return 0
