"""Where the time went, on a clock whose hands the test moves."""

import re
import time

import pytest

from jformer.training.clock import Clock, percentages


@pytest.fixture
def wait(monkeypatch):
    """`wait(5)` takes five seconds of the clock's, and none of ours."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_seconds_of_a_name_add_up_and_what_has_none_is_other(wait):
    clock = Clock()
    wait(1)
    for seconds in (2, 5):
        with clock("step"):
            wait(seconds)
    assert clock.seconds == {"other": 1, "step": 7}


def test_what_is_inside_is_not_counted_in_what_is_outside(wait):
    clock = Clock()
    with clock("evaluation"):
        wait(2)
        with clock("input"):
            wait(3)
            with clock("evaluation"):
                wait(7)
        wait(11)
    assert clock.seconds == {"other": 0, "evaluation": 20, "input": 3}


def test_an_exception_passes_through_and_ends_what_it_leaves(wait):
    clock = Clock()

    def fail():
        wait(2)
        raise KeyError("of the body")

    with pytest.raises(KeyError, match="of the body"), clock("step"), clock("input"):
        fail()
    wait(3)
    assert clock.seconds == {"other": 3, "step": 0, "input": 2}


def test_seconds_hold_what_still_runs(wait):
    clock = Clock()
    with clock("step"):
        wait(2)
        assert clock.seconds["step"] == 2
        wait(3)
    assert clock.seconds["step"] == 5


def test_the_report_has_shares_by_size_and_other_last(wait):
    clock = Clock()
    for name, seconds in (("input", 2), ("step", 142), ("compilation", 24)):
        with clock(name):
            wait(seconds)
    wait(32)
    assert "03:20" in clock.report()
    shares = re.findall(r"(\w+) (\d+) %", clock.report())
    assert shares == [("step", "71"), ("compilation", "12"), ("input", "1"), ("other", "16")]


def test_shares_sum_to_100_where_rounding_each_would_not():
    assert percentages([1 / 3, 1 / 3, 1 / 3]) == [34, 33, 33]
    assert percentages([0.495, 0.495, 0.005, 0.005]) == [50, 50, 0, 0]
    assert percentages([0.994, 0.006]) == [99, 1]
    for parts in range(1, 60):
        assert sum(percentages([1 / parts] * parts)) == 100


def test_a_report_at_once_is_a_line_too():
    assert re.search(r"00:00.*other 100 %$", Clock().report())
