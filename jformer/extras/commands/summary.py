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
    text = "also compile the train step for a device that may be absent, as h100 or v5e-8"
    parser.add_argument("--target", default="", metavar="DEVICE", help=text)
    parser.add_path("--plot", "FILE", "draw the learning rate per step, as .png or .svg")
    cli.add_config_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)

    from jformer.extras import targets
    from jformer.extras.cost import summary
    from jformer.extras.plots import write_schedule

    target = targets.parse_target(args.target) if args.target else None
    if target:
        targets.require_compiler(target)
    if args.plot:
        write_schedule(config, args.plot)
    for line in summary(config, args.source_length, args.target_length):
        print(line)
    if target:
        print(targets.describe(config, target))
    return 0
