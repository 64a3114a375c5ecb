"""Count parameters, FLOPs by module and the memory of a train step, or plan a training run.

The train step is compiled for its memory.

--devices plans a run on other devices, which need not be here: FLOPs, tokens per second, hours of
train.steps (or with --hours the steps that fit), exchange of gradients, memory, storage, and the
first limit. The assumptions are printed with the plan.
"""

import re
from typing import TYPE_CHECKING, Any

from jformer import cli
from jformer.config import Config
from jformer.errors import UserError

if TYPE_CHECKING:
    from jformer.extras.plan import Assumptions

DEVICE_KIND = "NVIDIA H100 80GB HBM3"
OF_PLAN = ("hours", "pairs", "device_kind", "mfu", "link")


def add_flags(parser: cli.Parser) -> None:
    add, whole, number = parser.add_argument, cli.positive(int), cli.positive(float)
    for side in ("source", "target"):
        text = f"tokens of a {side} sentence, for a plan the mean (default: 32)"
        add(f"--{side}_length", default=32, type=whole, metavar="N", help=text)
    text = "find the largest train.batch_tokens that fits; for a plan the memory of a device"
    add("--memory", type=number, metavar="GB", help=text)
    parser.add_path("--plot", "FILE", "draw the learning rate per step, as .png or .svg")
    add("--devices", type=positive_ints, metavar="N[,N...]", help="plan a run on N devices")
    add("--hours", type=number, metavar="H", help="time of the planned run")
    add("--pairs", type=whole, metavar="N", help="training pairs of the planned run")
    text = f"JAX's name of the device, or its TFLOP/s (default: {DEVICE_KIND})"
    add("--device_kind", default="", type=device_kind, metavar="NAME", help=text)
    add("--mfu", type=share, metavar="X", help="share of the FLOP/s that is used (default: 0.4)")
    add("--link", type=number, metavar="GB", help="GB per second out of a device")
    cli.add_config_flags(parser)


def positive_ints(text: str) -> list[int]:
    return [cli.positive(int)(number) for number in text.split(",")]


def device_kind(text: str) -> str | float:
    """Return the name of a device, or its TFLOP/s."""
    return cli.positive(float)(text) if re.fullmatch(r"[-+.\d].*", text) else text


def share(text: str) -> float:
    if not 0 < float(text) <= 1:
        raise ValueError
    return float(text)


def main(args: Any) -> int:
    config = cli.config_of(args)
    for name in OF_PLAN:
        if getattr(args, name) and not args.devices:
            raise UserError(f"--{name} requires --devices, as in --devices=8")

    from jformer.extras.cost import summary
    from jformer.extras.views.schedule import write_schedule

    if args.plot:
        write_schedule(config, args.plot)
    lengths = args.source_length, args.target_length
    lines = plan(config, args) if args.devices else summary(config, *lengths, args.memory or 0.0)
    for line in lines:
        print(line)
    return 0


def compiled_how(config: Config) -> str:
    import jax

    return (
        f"the train step takes as much memory as compiled here: for {jax.default_backend()}, in "
        f"{config.model.compute_dtype}, in rows of {config.data.max_length}"
    )


def plan(config: Config, args: Any) -> list[str]:
    """Return lines of text: assumptions, a table with a column per number of devices, and limits.

    All flags are checked before a train step is compiled.
    """
    from jformer.extras.cost import run_sizes
    from jformer.extras.plan import describe, first_limit, make_plan, plan_table
    from jformer.training.sharding import checked_mesh_sizes

    meshes = [checked_mesh_sizes(config, number) for number in args.devices]
    lengths, given = (args.source_length, args.target_length), assumptions(config, args)
    plans = [
        make_plan(
            config,
            lengths,
            mesh,
            run_sizes(config, mesh),
            given,
            args.hours or 0.0,
            args.pairs or 0,
        )
        for mesh in meshes
    ]
    assumed = [*describe(config, lengths, given), compiled_how(config)]
    lines = [f"assumed: {line}" for line in assumed]
    return [*lines, "", plan_table(plans), "", *map(first_limit, plans)]


def assumptions(config: Config, args: Any) -> "Assumptions":
    """Return the assumptions of a plan with those of the flags."""
    from jformer.extras.plan import Assumptions

    values = {"mfu": (args.mfu, 1.0), "memory": (args.memory, 1e9), "link": (args.link, 1e9)}
    changed = {name: number * unit for name, (number, unit) in values.items() if number}
    return Assumptions(peak_flops(config, args.device_kind or DEVICE_KIND), **changed)


def peak_flops(config: Config, device_kind: str | float) -> float:
    """Return the FLOP/s of a device that is given by its name, or by its TFLOP/s."""
    from jformer.training.flops import sheet_flops

    if isinstance(device_kind, float):
        return 1e12 * device_kind
    if config.model.dtype == "float32":
        raise UserError(
            "config.model.dtype=float32: the peaks of devices are known for bfloat16; "
            "set --device_kind=TFLOPS to that of float32"
        )
    if peak := sheet_flops(device_kind):
        return peak
    raise UserError(
        f"--device_kind={device_kind}: unknown peak; set --device_kind=TFLOPS, or a name such as "
        f"{DEVICE_KIND!r}"
    )
