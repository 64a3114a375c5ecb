"""Which checkpoints of a run stay, and which of them are averaged: the regular ones.

A checkpoint is regular at a multiple of `train.checkpoint_every`, and at the step that a run ends
at. One that a signal or the clock asked for lies between: it is there to go on from, is neither
averaged nor counted among those to keep, and goes when the next one is whole. So a run that was
stopped serves the parameters of one that was not.
"""

from jformer.config import TrainConfig


def kept(steps: list[int], last: int, train: TrainConfig) -> set[int]:
    """The one written last, the last few regular ones, and for ever the multiples of `keep_every`.

    The last step of a run is regular too, until the run is extended.
    """
    regular = [s for s in steps if s % train.checkpoint_every == 0 or s == train.steps]
    few = regular[-(train.keep_checkpoints or train.average_checkpoints) :]
    for_ever = [s for s in regular if train.keep_every and s % train.keep_every == 0]
    return {last, *few, *for_ever}


def averaged(steps: list[int], ended: bool, train: TrainConfig) -> list[int]:
    """The last few regular ones, with the newest if the run has `ended` there.

    Before there is any regular one, the newest alone.
    """
    newest = steps[-1]
    regular = [step for step in steps if step % train.checkpoint_every == 0]
    if not regular or (ended and newest not in regular):
        regular.append(newest)
    return regular[-train.average_checkpoints :]
