"""Write a run in the format of another program, with its vocabulary.

The folder is removed if the export fails or is stopped.
"""

from typing import Any

from jformer import cli
from jformer.files import new_folder

FORMATS = ("ctranslate2", "ctranslate2:int8", "transformers", "safetensors")


def add_flags(parser: cli.Parser) -> None:
    parser.add_argument("--format", required=True, choices=FORMATS, help="format of the export")
    parser.add_path("--output", "FOLDER", "folder to write; must be new or empty", required=True)
    cli.add_run_flags(parser, ensemble=False)


def main(args: Any) -> int:
    cli.config_of(args)  # raises for a run that cannot be opened, before any work

    from jformer.output import stopping
    from jformer.run import load

    with stopping(f"{args.output} is removed"), new_folder("output", args.output) as folder:
        run = load(args.workdir, args.checkpoint, plugins=cli.files_in(args.plugins))
        exporter(args.format).export(run, folder, args.format)
    return 0


def exporter(format: str) -> Any:
    """Return the module that writes a format."""
    from jformer.extras.interop import ctranslate2, safetensors, transformers

    modules = {"transformers": transformers, "safetensors": safetensors}
    return modules.get(format, ctranslate2)
