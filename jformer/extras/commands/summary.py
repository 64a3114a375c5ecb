"""Count parameters, FLOPs by module and the memory of a train step, or plan a training run.

    summary --config=CONFIG[:DATASET] [--source_length=32] [--target_length=32] [--memory=GB]
            [--plot=FILE]
    summary --config=CONFIG[:DATASET] --devices=N[,N...] [--hours=H] [--pairs=N]
            [--device_kind=NAME] [--mfu=0.4] [--link=GB] [--source_length=32]
            [--target_length=32] [--memory=80]

The train step is compiled for its memory. --memory asks for the largest train.batch_tokens that
fits; --plot draws the learning rate of every step into a .png or .svg file.

--devices plans a run on so many devices, which need not be here: FLOPs, tokens a second, hours of
train.steps or with --hours the steps that fit, exchange of gradients, memory, storage, and what
breaks first. --pairs is the number of training pairs, for epochs and for the text. --device_kind is
the name that JAX has for the device, by default "NVIDIA H100 80GB HBM3", or its TFLOP/s; --mfu the
share of them that is used, --link the GB a second out of a device, --memory a device's GB, and the
lengths are means. The assumptions are printed with the plan.
"""

import re
from typing import TYPE_CHECKING, Any

from jformer.command_line import parse, positive
from jformer.config import Config
from jformer.errors import UserError

if TYPE_CHECKING:
    from jformer.extras.plan import Assumptions

LENGTHS = {"source_length": "32", "target_length": "32"}
PLAN = {"hours": "", "pairs": "", "device_kind": "", "mfu": "", "link": ""}
DEVICE_KIND = "NVIDIA H100 80GB HBM3"


def main(arguments: list[str]) -> int:
    general = {**LENGTHS, "memory": "", "plot": ""}
    flag, config = parse(arguments, {**general, "devices": "", **PLAN})
    S, T = (positive(name, flag[name].value, int) for name in LENGTHS)
    gigabytes = positive("memory", flag.memory, float) if flag.memory else 0.0
    for name in PLAN:
        if flag[name].value and not flag.devices:
            raise UserError(f"--{name} is of a plan; it needs --devices, as in --devices=8")

    from jformer.extras.cost import summary
    from jformer.extras.views.schedule import write_schedule

    if flag.plot:
        write_schedule(config, flag.plot)
    lines = plan(config, flag, (S, T)) if flag.devices else summary(config, S, T, gigabytes)
    for line in lines:
        print(line)
    return 0


def compiled_how(config: Config) -> str:
    import jax

    return (
        f"the train step takes as much memory as compiled here: for {jax.default_backend()}, in "
        f"{config.model.compute_dtype}, in rows of {config.data.max_length}"
    )


def plan(config: Config, flag: Any, lengths: tuple[int, int]) -> list[str]:
    """Return lines of text: assumptions, a table with a column a number of devices, and limits.

    All flags are checked before a train step is compiled.
    """
    from jformer.extras.cost import run_sizes
    from jformer.extras.plan import describe, first_limit, make_plan, plan_table
    from jformer.training.parallel import checked_mesh_sizes

    numbers = [positive("devices", number, int) for number in flag.devices.split(",")]
    meshes = [checked_mesh_sizes(config, number) for number in numbers]
    given = assumptions(config, flag)
    hours = positive("hours", flag.hours, float) if flag.hours else 0.0
    pairs = positive("pairs", flag.pairs, int) if flag.pairs else 0
    plans = [
        make_plan(config, lengths, mesh, run_sizes(config, mesh), given, hours, pairs)
        for mesh in meshes
    ]
    told = [*describe(config, lengths, given), compiled_how(config)]
    assumed = [f"assumed: {line}" for line in told]
    return [*assumed, "", plan_table(plans), "", *map(first_limit, plans)]


def assumptions(config: Config, flag: Any) -> "Assumptions":
    """Return the assumptions of a plan, changed as the flags say."""
    from jformer.extras.plan import Assumptions

    changed = {
        name: positive(name, flag[name].value, float)
        for name in ("mfu", "memory", "link")
        if flag[name].value
    }
    if changed.get("mfu", 0) > 1:
        raise UserError(f"--mfu={flag.mfu}: is a share, at most 1")
    for name in ("memory", "link"):
        if name in changed:
            changed[name] *= 1e9
    return Assumptions(peak_flops(config, flag.device_kind or DEVICE_KIND), **changed)


def peak_flops(config: Config, device_kind: str) -> float:
    """Return the FLOP/s of a device that is given by its name, or by its TFLOP/s."""
    from jformer.training.flops import sheet_flops

    if re.fullmatch(r"[-+.\d].*", device_kind):
        return 1e12 * positive("device_kind", device_kind, float)
    if config.model.dtype == "float32":
        raise UserError(
            "config.model.dtype=float32: the peaks of devices are known for bfloat16; "
            "set --device_kind=TFLOPS to that of float32"
        )
    if peak := sheet_flops(device_kind):
        return peak
    raise UserError(
        f"--device_kind={device_kind}: its peak is not known; set --device_kind=TFLOPS, or a name "
        f"such as {DEVICE_KIND!r}"
    )
