"""The flags MODEL of the commands that open a run, and the formats of their output."""

import dataclasses
import os
from typing import Any

from jformer.config import Config

FORMATS = ("text", "jsonl", "tsv")
OF_MODEL = {"checkpoint": "served", "ensemble": "", "plugins": ""}


def plugin_files(flag: Any) -> list[str]:
    return [name for name in flag.plugins.split(",") if name]


def open_run(flag: Any, config: Config) -> Any:
    """Open the run of --workdir with those of --ensemble, and with `config` in place of its own."""
    from jformer.run import load

    ensemble: list[str] = []
    for name in filter(None, flag.ensemble.split(",")):
        if ensemble and name.isdecimal() and not os.path.exists(name):
            ensemble[-1] += f",{name}"  # one more step of RUN@STEP,STEP
        else:
            ensemble.append(name)
    run = load(flag.workdir, flag.checkpoint, ensemble, plugin_files(flag))
    return dataclasses.replace(run, config=config)
