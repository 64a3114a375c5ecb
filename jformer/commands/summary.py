"""Count parameters, multiply-adds and FLOPs by module, and the memory of a train step.

    summary --config=CONFIG[:DATASET] [--source_length=32] [--target_length=32] [--memory=GB]
            [--plot=FILE]

The train step is compiled for its memory. --memory asks for the largest train.batch_tokens that
fits; --plot draws the learning rate of every step into a .png or .svg file.
"""

from jformer.command_line import parse, positive


def main(arguments: list[str]) -> int:
    lengths = {"source_length": "32", "target_length": "32"}
    flag, config = parse(arguments, {**lengths, "memory": "", "plot": ""})
    S, T = (positive(name, flag[name].value, int) for name in lengths)
    gigabytes = positive("memory", flag.memory, float) if flag.memory else 0.0

    from jformer.training.cost import summary
    from jformer.views.schedule import write_schedule

    if flag.plot:
        write_schedule(config, flag.plot)
    for line in summary(config, S, T, gigabytes):
        print(line)
    return 0
