"""Benchmark the train step against other projects.

    python -m experiments.benchmarks.train [--config=base] [--keys=KEY=VALUE,...] [--rows=8]
        [--length=64] [--steps=4] [--variant=KEY=VALUE,...] [--rounds=5] [--platform=cpu|gpu]
        [--contenders NAME ...] [--json=FILE]

All contenders train a model of the same size on the same batches of random tokens. They use the
same loss (label smoothing) and Adam. A step is the forward pass, the backward pass and the update.
`config` is a name that `jformer --config` accepts, and `keys` changes its values. Each `variant`
adds jformer with more changes: `--variant=model.attention_kernel=cudnn`. A row of a batch has one
pair, with a quarter of the positions padded. With `data.batching=packed`, rows are packed with
pairs of up to 48 tokens, as in training; the peers cannot do this.

The contenders are `matrix product`, `jformer`, and the peers `torch` and `marian`, each also with
` bf16`, ` compile` and ` bf16 compile` in its name: `--contenders jformer "torch bf16 compile"`.
The peers use PyTorch's fused Adam and its fused attention (SDPA). With `bf16` they run under
autocast, and with `compile` they use `torch.compile`. `mfu` is defined as in metrics.jsonl: the
share of the peak that is spent on tokens, without padding. The peak is in the device's data sheet;
for other devices, it is the rate of a large matrix product by XLA in the same round.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import jformer
from experiments.benchmarks import turns
from jformer.components import arguments
from jformer.config import EOS, PAD, Config
from jformer.data.batches import Batch, Batches, Buckets, Packing
from jformer.data.tokens import Ragged, TokenPairs

BATCHES = 4
SHORTEST, LONGEST = 8, 48  # tokens of a text in a packed row
PRODUCT = "matrix product"
PRODUCTS = {"cpu": (5, 2048), "gpu": (50, 8192)}  # products per turn, width of the matrices
OURS = "jformer"
KINDS = ("torch", "marian")
VARIANTS = ("", " bf16", " compile", " bf16 compile")
PEERS = [kind + variant for kind in KINDS for variant in VARIANTS]


def main() -> None:
    parser = turns.make_parser(__doc__, rounds=5, contenders=[PRODUCT, OURS, *PEERS])
    parser.add_argument("--platform", choices=turns.PLATFORMS, default="cpu")
    parser.add_argument("--config", default="base")
    parser.add_argument("--keys", default="", help="changes of the config")
    parser.add_argument("--variant", action="append", default=[], help="changes of a contender")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4, help="steps per turn")
    options = parser.parse_args()
    config = turns.make_config([f"--config={options.config}"], options.keys)
    batches = make_batches(config, options.rows, options.length)
    contenders: dict[str, turns.Contender] = {}
    for name in options.contenders:
        if name == PRODUCT:
            contenders[name] = (product, (config, *PRODUCTS[options.platform]))
        elif name == OURS:
            contenders[name] = (ours, (config, batches, options.steps))
        else:
            contenders[name] = (peer, (name, config, batches, options.steps, options.platform))
    for keys in options.variant:
        changed = turns.make_config([f"--config={options.config}"], f"{options.keys},{keys}")
        contenders[f"{OURS} {keys}"] = (ours, (changed, batches, options.steps))
    results = turns.take_turns(contenders, options.rounds, options.platform)
    title = f"Train step, {options.config} {options.keys}, {options.platform}, "
    title += f"{options.rows} x {options.length}+{options.length}"
    turns.publish(title, table(results, config, batches, options), results, options)


def table(
    results: list[turns.Result], config: Config, batches: list[Batch], options: argparse.Namespace
) -> str:
    from jformer.training.flops import step_flops

    taken = [batches[step % BATCHES]["labels_BT"] != PAD for step in range(options.steps)]
    tokens = sum(float(real_BT.sum()) for real_BT in taken)
    flops = sum(
        float(real_BT.mean()) * step_flops(config, *real_BT.shape, real_BT.shape[1])
        for real_BT in taken
    )
    steps, peaks, line = results, [math.nan] * options.rounds, ""
    for result in results:
        if result.name == PRODUCT and not result.error:
            peaks, line = peak_rates(result, *PRODUCTS[options.platform])
            steps = [each for each in results if each is not result]

    def cells(result: turns.Result) -> list[str]:
        rates = [flops / seconds for seconds in result.seconds]
        mfu = [rate / peak for rate, peak in zip(rates, peaks, strict=True)]
        return [
            f"{1000 * result.median / options.steps:.1f}",
            f"{tokens / result.median:,.0f}",
            turns.spread(mfu) if line else "",
            f"{result.first - result.median:.1f}",
            f"{result.memory / 1e6:,.0f}",
            f"{result.answer:.4f}",
        ]

    header = ["ms per step", "target tokens per second", "mfu", "seconds to compile"]
    return line + turns.table([*header, "memory, MB", "loss"], steps, cells)


def peak_rates(product: turns.Result, number: int, width: int) -> tuple[list[float], str]:
    """Return the peak operations per second in each round, and a line about the product."""
    measured = [number * 2 * width**3 / seconds for seconds in product.seconds]
    sheet, tera = product.answer["sheet_flops"], [rate / 1e12 for rate in measured]
    line = f"{PRODUCT} on {product.answer['device']}: {turns.spread(tera)} TFLOP/s"
    if sheet:
        line += f", {sheet / 1e12:.0f} in the data sheet"
    return [sheet or rate for rate in measured], f"{line}\n\n"


def make_batches(config: Config, rows: int, length: int) -> list[Batch]:
    """Return batches of random pairs, arranged as in training."""
    rng = np.random.default_rng(0)
    packed, V = config.data.batching == "packed", config.data.vocabulary_size
    number, shortest, longest = BATCHES * rows, length // 2, length
    if packed:
        shortest, longest = min(SHORTEST, length), min(LONGEST, length)
        number = (BATCHES + 2) * rows * length // ((shortest + longest) // 2)
    sides = []
    for _ in range(2):
        lengths = rng.integers(shortest, longest + 1, number)
        flat = rng.integers(EOS + 1, V, lengths.sum(), np.int32)
        flat[np.cumsum(lengths) - 1] = EOS
        sides.append(Ragged(flat, lengths))
    pairs, everything = TokenPairs(*sides), np.arange(number)
    S, T = pairs.lengths(everything)
    if packed:
        layout = Packing(S, T, rows * length, length, length)
    else:
        layout = Buckets(S, T, rows * length, 1, length)
    batches = Batches(pairs, everything, layout, seed=0)
    made = [batches.batch(0, each) for each in range(len(batches.epoch(0)))]
    # A batch of packed rows may be incomplete.
    return sorted(made, key=lambda batch: -np.count_nonzero(batch["labels_BT"]))[:BATCHES]


def ours(config: Config, batches: list[Batch], steps: int) -> Callable[[], float]:
    import jax

    from jformer.model.transformer import Transformer
    from jformer.training import sharding
    from jformer.training.loop import from_config

    jax.config.update("jax_enable_compilation_cache", False)
    V, key = config.data.vocabulary_size, jax.random.key(0)
    create, step = from_config(config, Transformer(config.model, V, V))
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    shardings = sharding.state_shardings(jax.eval_shape(create, key), mesh)
    train_step = sharding.compile_train_step(step, mesh, shardings)
    state = jax.jit(create, out_shardings=shardings)(key)

    def turn() -> float:
        nonlocal state
        for number in range(steps):
            batch = sharding.shard_batch(batches[number % BATCHES], mesh)
            state, metrics = train_step(state, batch, key)
        return float(metrics["loss"] / metrics["tokens"])

    return turn


def peer(
    name: str, config: Config, batches: list[Batch], steps: int, platform: str
) -> Callable[[], float]:
    import torch

    from experiments.benchmarks import peers

    if config.data.batching == "packed":
        raise jformer.UserError("cannot train on packed rows")
    device = turns.PLATFORMS[platform]
    torch.manual_seed(0)
    kind, *variant = name.split()
    make = {"torch": peers.TorchTransformer, "marian": peers.Marian}[kind]
    model = make(config, batches[0]["source_BS"].shape[1]).to(device).train()
    adam = arguments("optimizer", config.optimizer.name)
    betas, epsilon = (adam["beta1"], adam["beta2"]), adam["epsilon"]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=betas, eps=epsilon, fused=True)
    smoothing, bf16 = config.train.label_smoothing, "bf16" in variant

    def loss_of(*texts: torch.Tensor) -> torch.Tensor:
        return peers.loss_of(model, texts, smoothing, bf16)

    if "compile" in variant:
        loss_of = torch.compile(loss_of)

    def turn() -> float:
        for number in range(steps):
            batch = batches[number % BATCHES]
            texts = (batch[name] for name in ("source_BS", "target_BT", "labels_BT"))
            ids = (torch.from_numpy(text).long() for text in texts)
            loss = loss_of(*(each.to(device, non_blocking=True) for each in ids))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    return turn


def product(config: Config, number: int, width: int) -> Callable[[], dict[str, Any]]:
    """Multiply large square matrices in the compute dtype of the config."""
    import jax

    from jformer.training.flops import sheet_flops

    dtype, kind = config.model.compute_dtype, jax.devices()[0].device_kind
    x_NN = np.random.default_rng(0).standard_normal((width, width), dtype=np.float32)
    x_NN = jax.device_put(x_NN.astype(dtype))
    multiply = jax.jit(lambda x_NN: x_NN @ x_NN)

    def turn() -> dict[str, Any]:
        for _ in range(number):
            result_NN = multiply(x_NN)
        result_NN.block_until_ready()
        return {"device": kind, "sheet_flops": sheet_flops(kind, dtype)}

    return turn


if __name__ == "__main__":
    main()
