"""Create a run directory from the weights of another program.

The layout pytorch is a state dict of `torch.nn.Transformer` with embeddings, annotated is a state
dict of The Annotated Transformer, and marian is a folder of Hugging Face's Marian format, which
contains the vocabulary. Only tensors are read from PyTorch's files, which can also be .safetensors.
Sizes are read from the weights; set other keys, such as --config.model.num_heads=8. Every tensor
must match a parameter, and every parameter a tensor.
"""

from pathlib import Path
from typing import Any

from jformer import cli
from jformer.config import Config, default_config, freeze
from jformer.errors import UserError

LAYOUTS = ("pytorch", "annotated", "marian")
OF_WORDS = ("vocabulary", "source_vocabulary", "specials", "names")


def add_flags(parser: cli.Parser) -> None:
    parser.add_path("--from", "FILE", "the weights; for marian the folder", required=True)
    parser.add_argument("--layout", required=True, choices=LAYOUTS, help="layout of the weights")
    parser.add_path("--workdir", "DIR", "the run directory to write", required=True)
    text = "a tokenizer.json, a SentencePiece .model, or a .txt with a token per line"
    parser.add_path("--vocabulary", "FILE", text)
    parser.add_path("--source_vocabulary", "FILE", "the vocabulary of the source, if different")
    add, text = parser.add_argument, "ids of the special tokens (default: found by their names)"
    add("--specials", default="", metavar="PAD,BOS,EOS", help=text)
    text = "names of model parts in the state dict"
    add("--names", default="", metavar="embedding=NAME,...", help=text)
    cli.add_keys(parser)


def main(args: Any) -> int:
    source = Path(getattr(args, "from"))
    if args.layout != "marian" and not args.vocabulary:
        raise UserError("--vocabulary is required: the file with the text of each id")
    for name in OF_WORDS:
        if args.layout == "marian" and getattr(args, name):
            raise UserError(f"--{name}: a Marian folder contains it; remove this flag")

    def overriding(values: dict[str, Any]) -> Config:
        config = default_config("given")
        config.name = source.stem
        config.update_from_flattened_dict({**values, **args.overrides})
        return freeze(config)

    from jformer.extras.interop.importing import import_run

    files = (args.source_vocabulary, args.vocabulary)
    import_run(
        source, args.layout, Path(args.workdir), files, args.specials, args.names, overriding
    )
    return 0
