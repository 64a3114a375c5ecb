"""Benchmark the train step against other projects.

    python -m experiments.benchmarks.train [--config=base] [--vocabulary=37000] [--rows=8]
        [--length=64] [--rounds=5] [--steps=4] [--platform=cpu|gpu] [--contenders=marian,...]
        [--json=FILE] [--chart=FILE]

All contenders train a model of the same size on the same batches of random tokens, in which a
quarter of the positions are padding. They use the same loss (label smoothing) and Adam. A step is
the forward pass, the backward pass and the update. `config` is a name that `jformer --config`
accepts, such as `tiny:multi30k`.

The peers use PyTorch's fused Adam and its fused attention (SDPA). Names with `bf16` run under
autocast, and names with `compile` use `torch.compile`. The `peak` column compares the model FLOPs,
without padding, with the fastest matrix product by XLA in the same round and dtype.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import jformer
from experiments.benchmarks import turns
from jformer.components import arguments
from jformer.config import BOS, EOS, PAD, Config

BATCHES = 4
PEAK = "XLA's matrix product"
OURS = "jformer"
KINDS = ("torch", "marian")
VARIANTS = ("", " bf16", " compile", " bf16 compile")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="base")
    parser.add_argument("--vocabulary", type=int, default=37000)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4, help="steps per turn")
    turns.add_flags(parser, rounds=5)
    options = parser.parse_args()
    config = jformer.get_config(options.config, **{"data.vocabulary_size": options.vocabulary})
    work = (config, options.rows, options.length, options.steps, options.platform)
    contenders: dict[str, tuple[Callable, tuple]] = {
        OURS: (ours, work),
        **{
            kind + variant: (peer, (kind, variant, *work)) for kind in KINDS for variant in VARIANTS
        },
        PEAK: (peak, work),
    }
    contenders = turns.chosen(parser, contenders, options.contenders, (OURS, PEAK))
    results = turns.take_turns(contenders, options.rounds)
    batches = make_batches(config, options.rows, options.length)
    title = (
        f"Train step, {options.config}: {options.rows} x {options.length}+{options.length}, "
        f"V {config.data.vocabulary_size:,}, {options.platform}"
    )
    turns.publish(title, table(results, config, batches, options.steps), results, options, [PEAK])


def table(results: list, config: Config, batches: list, steps: int) -> str:
    from jformer.training.flops import multiply_adds

    by_name = {result.name: result for result in results}
    tokens = sum(int((batch["labels_BT"] != PAD).sum()) for batch in steps_of(batches, steps))
    flops = sum(
        6 * sum(multiply_adds(config, int(S), int(T)).values())
        for batch in steps_of(batches, steps)
        for S, T in zip(
            (batch["source_BS"] != PAD).sum(1), (batch["labels_BT"] != PAD).sum(1), strict=True
        )
    )
    rows = []
    for result in results:
        if result.error:
            rows.append([result.name, result.error, "", "", "", "", ""])
            continue
        if result.name == PEAK:
            continue
        peaks = [2 * 2048**3 * PRODUCTS / seconds for seconds in by_name[PEAK].seconds]
        shares = [
            flops / seconds / each for seconds, each in zip(result.seconds, peaks, strict=True)
        ]
        median = statistics.median(result.seconds)
        rows.append(
            [
                result.name,
                turns.spread(result.ratios(by_name[OURS])),
                f"{1000 * median / steps:.0f}",
                f"{tokens / median:,.0f}",
                turns.spread(shares),
                f"{result.first - median:.1f}",
                f"{result.memory / 1e6:,.0f}",
            ]
        )
    header = ["", "speed, jformer = 1", "ms per step", "target tokens per second", "peak",
              "seconds to compile", "host memory, MB"]  # fmt: skip
    return turns.markdown(header, rows)


def make_batches(config: Config, rows: int, length: int) -> list[dict]:
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(BATCHES):
        ids_BL = rng.integers(EOS + 1, config.data.vocabulary_size, (rows, 2, length + 1))
        lengths_B2 = rng.integers(length // 2, length + 1, (rows, 2, 1))
        positions_L = np.arange(length + 1)
        ids_B2L = np.where(positions_L < lengths_B2 - 1, ids_BL, PAD)
        ids_B2L = np.where(positions_L == lengths_B2 - 1, EOS, ids_B2L).astype(np.int32)
        target_BT = np.concatenate([np.full((rows, 1), BOS, np.int32), ids_B2L[:, 1, :-2]], 1)
        target_BT = np.where(ids_B2L[:, 1, :-1] == PAD, PAD, target_BT)
        batches.append(
            {
                "source_BS": ids_B2L[:, 0, :-1],
                "target_BT": target_BT,
                "labels_BT": ids_B2L[:, 1, :-1],
            }
        )
    return batches


def steps_of(batches: list[dict], steps: int) -> Iterator[dict]:
    return (batches[step % len(batches)] for step in range(steps))


def ours(config: Config, rows: int, length: int, steps: int, device: str) -> Callable[[], Any]:
    import jax

    jax.config.update("jax_platforms", turns.PLATFORMS[device])
    batches = make_batches(config, rows, length)
    train_step, state, place = ready_to_train(config)

    def turn() -> float:
        nonlocal state
        for batch in steps_of(batches, steps):
            state, metrics = train_step(state, *place(batch))
        return float(metrics["loss"])

    return turn


def ready_to_train(
    config: Config, devices: Sequence | None = None
) -> tuple[Callable, Any, Callable[[dict], tuple]]:
    """Return the jitted train step, a state, and a function that places a batch on devices."""
    import jax

    from jformer.model.transformer import Transformer
    from jformer.training import sharding
    from jformer.training.loop import from_config

    model = Transformer(config.model, config.data.vocabulary_size, config.data.vocabulary_size)
    _, create, step = from_config(config, model)
    mesh, key = sharding.make_mesh(config, devices), jax.random.key(0)
    shardings = sharding.state_shardings(jax.eval_shape(create, key), mesh)
    train_step = sharding.compile_train_step(step, mesh, shardings)
    state = jax.jit(create, out_shardings=shardings)(key)

    def place(batch: dict) -> tuple:
        return sharding.shard_batch(batch, mesh), key

    return train_step, state, place


def peer(
    kind: str, variant: str, config: Config, rows: int, length: int, steps: int, platform: str
) -> Callable[[], Any]:
    import torch
    from torch.nn import functional

    from experiments.benchmarks import peers

    batches = make_batches(config, rows, length)
    device = turns.PLATFORMS[platform]
    torch.manual_seed(0)
    make = {"torch": peers.TorchTransformer, "marian": peers.Marian}[kind]
    model = make(config, length).to(device).train()
    adam = arguments("optimizer", config.optimizer.name)
    betas, epsilon = (adam["beta1"], adam["beta2"]), adam["epsilon"]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=betas, eps=epsilon, fused=True)

    def loss_of(source, target, labels):
        with torch.autocast(device, torch.bfloat16, enabled="bf16" in variant):
            logits = model(source, target)
            return functional.cross_entropy(
                logits.flatten(0, 1),
                labels.flatten(),
                ignore_index=PAD,
                label_smoothing=config.train.label_smoothing,
            )

    if "compile" in variant:
        loss_of = torch.compile(loss_of)

    def turn() -> float:
        for batch in steps_of(batches, steps):
            ids = [torch.from_numpy(batch[key]).long() for key in batch]
            loss = loss_of(*(each.to(device, non_blocking=True) for each in ids))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    return turn


PRODUCTS = 5


def peak(config: Config, rows: int, length: int, steps: int, device: str) -> Callable[[], Any]:
    """Multiply square matrices with 2048 rows, in the compute dtype of the config."""
    import jax

    jax.config.update("jax_platforms", turns.PLATFORMS[device])
    x_NN = np.random.default_rng(0).standard_normal((2048, 2048), dtype=np.float32)
    x_NN = jax.device_put(x_NN.astype(config.model.compute_dtype))
    product = jax.jit(lambda x_NN: x_NN @ x_NN)

    def turn() -> None:
        for _ in range(PRODUCTS):
            product(x_NN).block_until_ready()

    return turn


if __name__ == "__main__":
    main()
