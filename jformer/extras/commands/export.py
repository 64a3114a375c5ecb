"""Write a run in the format of another program, with its vocabulary.

    export --workdir=DIR --output=FOLDER
           --format=ctranslate2|ctranslate2:int8|transformers|safetensors|stablehlo
           [--checkpoint=served] [--plugins=FILE,FILE]

FOLDER must be new or empty. It is removed if the export fails or is stopped.
"""

from typing import Any

from jformer.command_line import REQUIRED, one_of, parse
from jformer.files import new_folder

FORMATS = ("ctranslate2", "ctranslate2:int8", "transformers", "safetensors", "stablehlo")
OF_ONE_RUN = {"checkpoint": "served", "plugins": ""}


def main(arguments: list[str]) -> int:
    known = {"workdir": REQUIRED, "format": REQUIRED, "output": REQUIRED, **OF_ONE_RUN}
    flag, config = parse(arguments, known, of_run=True)
    one_of("format", flag.format, *FORMATS)

    from jformer.output import stopping
    from jformer.run import load

    with stopping(f"{flag.output} is removed"), new_folder("output", flag.output) as folder:
        run = load(flag.workdir, flag.checkpoint, plugins=config.plugin_files)
        exporter(flag.format).export(run, folder, flag.format)
    return 0


def exporter(format: str) -> Any:
    """Return the module that writes a format."""
    from jformer.extras.interop import ctranslate2, safetensors, stablehlo, transformers

    modules = {"transformers": transformers, "safetensors": safetensors, "stablehlo": stablehlo}
    return modules.get(format, ctranslate2)
