"""Count parameters, FLOPs by module and the memory of a train step.

The train step is compiled to measure its memory. --measure also runs it, and estimates how long the
training takes on this machine.
"""

from typing import Any

from jformer import cli


def add_flags(parser: cli.Parser) -> None:
    for side in ("source", "target"):
        text = f"tokens of a {side} sentence (default: 32)"
        parser.add_argument(f"--{side}_length", default=32, type=int, metavar="N", help=text)
    text = "also compile the train step for a device that may be absent, as h100 or v5e-8"
    parser.add_argument("--target", default="", metavar="DEVICE", help=text)
    text = "time three train steps on this machine, with batches of the corpus"
    parser.add_argument("--measure", action="store_true", help=text)
    cli.add_config_flags(parser)


def main(args: Any) -> int:
    config = cli.config_of(args)

    from jformer.backend import use_compilation_cache
    from jformer.extras import cost, targets

    target = targets.parse_target(args.target) if args.target else None
    if target:
        targets.described_devices(target)  # raises if its compiler is missing
    use_compilation_cache(config.compilation_cache)
    print(cost.table(config, args.source_length, args.target_length))
    print(cost.memory(config))
    if args.measure:
        print(cost.measure(config))
    if target:
        print(targets.describe(config, target))
    return 0
