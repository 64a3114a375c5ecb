"""The choice of checkpoints to keep and to average: the regular ones.

A checkpoint is regular at a multiple of `train.checkpoint_every` and at the last step of a run.
Others, saved because of a signal or of `train.checkpoint_minutes`, serve only to resume from. They
are neither averaged nor counted among those to keep, and are deleted when the next one is complete.
So an interrupted run yields the same averaged parameters as an uninterrupted one.
"""

from jformer.config import TrainConfig


def kept(steps: list[int], last: int, train: TrainConfig) -> set[int]:
    """Return the steps to keep: `last`, the last few regular ones, and multiples of `keep_every`.

    `last` is the step written last. Step `train.steps` is regular as long as it is the last: 1,500
    in a run of 1,500 steps with a checkpoint every 1,000, and no more once `train.steps` is raised.
    """
    regular = [s for s in steps if s % train.checkpoint_every == 0 or s == train.steps]
    few = regular[-(train.keep_checkpoints or train.average_checkpoints) :]
    for_ever = [s for s in regular if train.keep_every and s % train.keep_every == 0]
    return {last, *few, *for_ever}


def averaged(steps: list[int], ended: bool, train: TrainConfig) -> list[int]:
    """Return the last few regular steps; the newest counts as regular if the run `ended` there.

    Before there is any regular one, return the newest alone.
    """
    newest = steps[-1]
    regular = [step for step in steps if step % train.checkpoint_every == 0]
    if not regular or (ended and newest not in regular):
        regular.append(newest)
    return regular[-train.average_checkpoints :]
