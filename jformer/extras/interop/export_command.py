"""Write a run in the format of another program, with its vocabulary.

The format jformer is a run directory with only the served parameters, for sharing a model.
The folder is removed if the export fails or Ctrl-C stops it.
"""

from pathlib import Path
from typing import Any

from jformer import cli
from jformer.errors import UserError
from jformer.files import new_folder

FORMATS = ("ctranslate2", "ctranslate2:int8", "transformers", "safetensors", "jformer")


def add_flags(parser: cli.Parser) -> None:
    parser.add_argument("--format", required=True, choices=FORMATS, help="format of the export")
    text = "dtype of the parameters with --format=jformer"
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help=text)
    parser.add_path("--output", "FOLDER", "new folder to write", required=True)
    text = "with --format=transformers, for a run imported from M2M100 or NLLB: the imported folder"
    parser.add_path("--original", "FOLDER", text)
    cli.add_run_flags(parser, ensemble=False)


def main(args: Any) -> int:
    if args.dtype != "float32" and args.format != "jformer":
        raise UserError(f"--dtype={args.dtype}: requires --format=jformer")
    cli.config_of(args)  # raises for a run that cannot be opened, before any work

    from jformer.extras.interop import ctranslate2, hugging_face, run_directory, safetensors
    from jformer.run import load

    folder = new_folder("output", args.output)
    run = load(args.workdir, args.checkpoint, plugins=args.plugins)
    if args.format == "jformer":
        run_directory.export(run, folder, args.dtype)
    elif args.format == "transformers" and args.original:
        hugging_face.export_m2m100(run, Path(args.original), folder)
    elif args.format == "transformers":
        hugging_face.export(run, folder, args.format)
    elif args.format == "safetensors":
        safetensors.export(run, folder, args.format)
    else:
        ctranslate2.export(run, folder, args.format)
    return 0
