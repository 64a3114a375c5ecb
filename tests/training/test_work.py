"""Work that does not grow: counts of operations, bytes and programs, which need no clock.

The budgets are what jax 0.10.2 needed when they were written, and a quarter more.
"""

import json
import re
import subprocess
import sys

import pytest

from configs import tiny
from jformer.config import freeze
from jformer.extras.cost import abstract_step
from jformer.training import step as step_module
from jformer.training.flops import step_flops

pytestmark = pytest.mark.process

TINY = freeze(tiny.get_config("phrases"))
COUNT = """
import collections, json, sys
import jax
import jformer

programs = collections.Counter()

def listen(event, seconds, fun_name=None, **_):
    if event.endswith("backend_compile_duration"):
        programs[fun_name] += 1

jax.monitoring.register_event_duration_secs_listener(listen)
pairs = [("1 2 3 " * (n % 7 + 1), "one two three " * (n % 7 + 1)) for n in range(200)]
keys = {
    "compilation_cache": "off", "data.vocabulary_size": 300, "data.num_buckets": 3,
    "model.num_layers": 1, "model.d_model": 16, "model.d_ff": 24, "model.num_heads": 2,
    "train.batch_tokens": 256, "train.steps": 30,
}
jformer.train(jformer.get_config("tiny:given", **keys), pairs, pairs[:4], sys.argv[1])
print(json.dumps(programs))
"""


@pytest.fixture(scope="module")
def compiled():
    """The train step of `tiny` for 32 rows of 32 + 32 positions."""
    with pytest.MonkeyPatch.context() as patch:
        # One chunk for the loss: XLA counts what is in a loop once, however often it runs.
        patch.setattr(step_module, "loss_chunks", lambda *_: 1)
        step, arguments = abstract_step(TINY, 32, 32)
        return step.lower(*arguments).compile()


def test_a_step_has_few_operations_beside_those_that_the_model_needs(compiled):
    ratio = compiled.cost_analysis()["flops"] / step_flops(TINY, 32, 32, 32)
    assert 1 <= ratio < 1.05  # 1.032


def test_a_step_moves_and_holds_no_more_bytes_than_its_budget(compiled):
    assert compiled.cost_analysis()["bytes accessed"] < 1.25 * 617e6
    assert compiled.memory_analysis().temp_size_in_bytes < 1.25 * 78.3e6


def test_a_run_compiles_a_train_step_for_each_shape_and_few_programs_in_all(tmp_path):
    command = [sys.executable, "-c", COUNT, str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    [shapes] = re.findall(r"\bbatches .*?\b(\d+) compiled", " ".join(result.stderr.split()))
    programs = json.loads(result.stdout.splitlines()[-1])
    assert int(shapes) > 1
    assert programs["jit(step_with_request)"] == int(shapes)
    assert sum(programs.values()) - int(shapes) <= 24  # 19
