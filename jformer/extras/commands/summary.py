"""Count parameters, FLOPs by module and the memory of a train step.

The train step is compiled to measure its memory.
"""

from typing import Any

from jformer import cli


def add_flags(parser: cli.Parser) -> None:
    for side in ("source", "target"):
        text = f"tokens of a {side} sentence (default: 32)"
        parser.add_argument(
            f"--{side}_length", default=32, type=cli.positive(int), metavar="N", help=text
        )
    parser.add_path("--plot", "FILE", "draw the learning rate per step, as .png or .svg")
    cli.add_config_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)

    from jformer.extras.cost import summary
    from jformer.extras.plots import write_schedule

    if args.plot:
        write_schedule(config, args.plot)
    for line in summary(config, args.source_length, args.target_length):
        print(line)
    return 0
