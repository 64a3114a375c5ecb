"""Checkpoints by orbax, one directory a step, each with four items.

    params, optimizer_state   arrays
    position                  JSON: the data iterator's state and the sums of the log's open window
    metadata                  JSON: the config and the vocabulary's hash

Orbax writes into a temporary directory and renames it, so a kill at any moment leaves the previous
step as it was.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jformer.config import Config, UserError
from jformer.training.step import TrainState


class Checkpoints:
    """The checkpoints of one run directory; close it, or leave its `with`, to finish a save."""

    def __init__(self, workdir: Path, keep: int | None = None):
        """Keep the last `keep`; with None, only read."""
        self._workdir = workdir
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=keep is not None)
        self._manager = ocp.CheckpointManager((workdir / "checkpoints").absolute(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, position: dict, config: Config, vocabulary_hash: str) -> None:
        """Copy to the host now, write in the background."""
        metadata = {"config": dataclasses.asdict(config), "vocabulary_hash": vocabulary_hash}
        self._manager.save(
            int(state.step),
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                optimizer_state=ocp.args.StandardSave(state.optimizer_state),
                position=ocp.args.JsonSave(position),
                metadata=ocp.args.JsonSave(metadata),
            ),
        )

    def restore(self, step: int, like: TrainState) -> tuple[TrainState, dict]:
        """The state, with the shapes and on the devices of `like`, and the position."""
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(abstract(like.params)),
                optimizer_state=ocp.args.StandardRestore(abstract(like.optimizer_state)),
                position=ocp.args.JsonRestore(),
            ),
        )
        number = jax.device_put(np.int32(step), like.step.sharding)
        state = TrainState(number, restored.params, restored.optimizer_state)
        return state, restored.position

    def check_vocabulary(self, step: int, vocabulary_hash: str) -> None:
        """Raise `UserError` where the ids of these parameters mean other words."""
        item = ocp.args.Composite(metadata=ocp.args.JsonRestore())
        if self._manager.restore(step, args=item).metadata["vocabulary_hash"] != vocabulary_hash:
            raise UserError(
                f"{self._workdir}/vocabulary.json: not the vocabulary that the checkpoints beside "
                f"it were trained with; put that one back, or choose another --workdir"
            )

    def average_params(self, like: Any, steps: list[int]) -> Any:
        """The mean of the parameters of these steps (Section 6.1), shaped and placed as `like`."""
        total = None
        for step in steps:
            params = self._manager.restore(
                step, args=ocp.args.Composite(params=ocp.args.StandardRestore(abstract(like)))
            ).params
            total = params if total is None else jax.tree.map(lambda a, b: a + b, total, params)
        return jax.tree.map(lambda x: x / len(steps), total)


def abstract(tree: Any) -> Any:
    """Shapes, dtypes and placement: orbax restores onto these devices, whatever saved it."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
