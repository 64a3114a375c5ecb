"""Make a run directory of the weights of another program.

    import --from=FILE --layout=pytorch|annotated|marian --workdir=DIR [--vocabulary=FILE]
           [--source_vocabulary=FILE] [--specials=PAD,BOS,EOS] [--names=embedding=NAME,...]

pytorch is a state dict of `torch.nn.Transformer` with embeddings, annotated one of The Annotated
Transformer; FILE is PyTorch's, of which only tensors are read, or .safetensors. Of marian, the
format of Hugging Face, --from is the folder, which has the vocabulary, too. Elsewhere a vocabulary
is a tokenizer.json, a SentencePiece .model or a .txt with a token a line. Its special tokens are
found by their names, or --specials has their ids. Sizes are read from the weights; what cannot be
seen there is a key, as --config.model.num_heads=8. Every tensor must have a place, and every
parameter a tensor.
"""

from pathlib import Path
from typing import Any

from jformer.command_line import REQUIRED, one_of, own_flags, with_overrides
from jformer.config import Config, default_config, freeze
from jformer.errors import UserError
from jformer.schema import check_flags

LAYOUTS = ("pytorch", "annotated", "marian")
OF_WORDS = {"vocabulary": "", "source_vocabulary": "", "specials": "", "names": ""}


def main(arguments: list[str]) -> int:
    check_flags(Config(), arguments)
    known = {"from": REQUIRED, "layout": REQUIRED, "workdir": REQUIRED, **OF_WORDS}
    flag, rest = own_flags(arguments, known)
    with_overrides(default_config("given"), rest, known)  # a mistake is told before work
    one_of("layout", flag.layout, *LAYOUTS)
    source = Path(str(flag["from"].value))
    if flag.layout != "marian" and not flag.vocabulary:
        raise UserError("--vocabulary is missing; it says which text each id stands for")
    for name in OF_WORDS:
        if flag.layout == "marian" and flag[name].value:
            raise UserError(f"--{name}: is in the folder of a Marian model; leave it out")

    def overriding(values: dict[str, Any]) -> Config:
        config = default_config("given")
        config.name = source.stem
        config.update_from_flattened_dict(values)
        return freeze(with_overrides(config, rest, known))

    from jformer.extras.interop.importing import import_run

    files = (flag.source_vocabulary, flag.vocabulary)
    import_run(
        source, flag.layout, Path(flag.workdir), files, flag.specials, flag.names, overriding
    )
    return 0
