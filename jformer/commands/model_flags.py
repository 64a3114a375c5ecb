"""The flags MODEL of the commands that open a run, and the formats of their output."""

import dataclasses
from typing import Any

from jformer.config import Config

FORMATS = ("text", "jsonl", "tsv")
OF_MODEL = {"checkpoint": "served", "ensemble": "", "plugins": ""}


def open_run(flag: Any, config: Config) -> Any:
    """Open the run of --workdir with those of --ensemble, and with `config` in place of its own."""
    from jformer.run import load

    ensemble = [name for name in flag.ensemble.split(",") if name]
    run = load(flag.workdir, flag.checkpoint, ensemble, config.plugin_files)
    return dataclasses.replace(run, config=config)
