"""A plan of a training run, against the paper's own hours, real files and arithmetic by hand."""

import pytest

from configs import base, big
from jformer.config import freeze
from jformer.extras.plan import (
    Assumptions,
    Sizes,
    exchanged_bytes,
    first_limit,
    make_plan,
)

BASE, BIG = freeze(base.get_config("wmt14")), freeze(big.get_config("wmt14"))
PAIR = (32, 32)
MACHINE = {"data": 8, "fsdp": 1, "model": 1}
SIZES = Sizes(parameters=10**8, state=12 * 10**8, device_state=12 * 10**8, device_step=4 * 10**9)
P100 = 9.5e12  # single-precision FLOP/s, of which the paper's Table 2 takes all


def plan_of(config=BASE, mesh=MACHINE, sizes=SIZES, hours=0.0, corpus=0, **given):
    given = Assumptions(**{"peak": 1e14, **given})
    return make_plan(config, PAIR, mesh, sizes, given, hours, corpus)


# Section 5.2: seconds of a step and days on 8 P100; Table 2: FLOPs of the training, en-de.
@pytest.mark.parametrize(
    ("config", "seconds", "hours", "flops"),
    [(BASE, 0.4, 12, 3.3e18), (BIG, 1.0, 3.5 * 24, 2.3e19)],
    ids=["base", "big"],
)
def test_the_papers_hours_on_8_p100_have_the_flops_of_its_table_2(config, seconds, hours, flops):
    assert 8 * P100 * hours * 3600 == pytest.approx(flops, rel=0.01)
    full = plan_of(config, peak=P100, mfu=1.0, link=16e9)
    # The paper counts what the GPUs could have done: the model needs a quarter to a half of it.
    assert 0.2 < full.flops * full.steps / flops < 0.5
    mfu = full.flops / (8 * P100 * seconds)
    planned = plan_of(config, peak=P100, mfu=mfu, link=16e9)
    assert planned.steps * planned.step / 3600 == pytest.approx(hours, rel=0.1)
    assert planned.step == planned.compute  # gradients over PCIe are exchanged meanwhile


def test_a_step_takes_as_long_as_the_longest_of_computation_exchange_and_batches():
    slow = {
        "compute": plan_of(peak=1e12),
        "exchange": plan_of(link=1e6),
        "making_batch": plan_of(batch_time=1.0),
    }
    for name, plan in slow.items():
        parts = {each: getattr(plan, each) for each in slow}
        assert max(parts, key=parts.get) == name
        assert plan.step == parts[name]


def test_hours_are_filled_with_whole_steps():
    plan = plan_of(hours=12, corpus=4_500_000)
    assert plan.steps * plan.step <= 12 * 3600 < (plan.steps + 1) * plan.step
    assert plan.pairs * 32 == pytest.approx(plan.steps * plan.tokens)
    assert plan_of(hours=1e-6).steps == 0


def test_gradients_go_round_a_ring_and_fsdp_sends_parameters_twice_besides():
    def sent(**axes):
        return exchanged_bytes(100, {"data": 1, "fsdp": 1, "model": 1, **axes})

    assert sent() == 0
    assert sent(data=4) == 2 * 3 * 100  # 3 of 4 quarters, of 4 bytes each, and once more
    assert sent(fsdp=4) == 3 * 3 * 100
    assert sent(model=4) == 0
    assert sent(data=4, model=2) == sent(data=4) / 2
    assert sent(data=4, fsdp=2) == sent(data=4) / 2 + sent(fsdp=2)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"link": 1e6}, "exchange"),
        ({"memory": 1e6}, "memory"),
    ],
)
def test_what_breaks_first_is_the_limit_that_is_passed_by_most(changes, limit):
    calm = {"peak": 1e11, "least_tokens": 1, "memory": 1e15}
    assert "would" in first_limit(plan_of(corpus=1000, **calm))  # none is passed
    message = first_limit(plan_of(corpus=1000, **{**calm, **changes}))
    assert message.startswith(f"8 devices: {limit}")
    assert "would" not in message
