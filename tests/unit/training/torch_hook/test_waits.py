"""What of a thread's time was a wait for other ranks."""

import time
from pathlib import Path

import pytest
import torch

from distconsole_training import records
from distconsole_training.identity import Identity
from distconsole_training.process import Process
from distconsole_training.recorder import Recorder
from distconsole_training.torch_hook import waits as module
from distconsole_training.torch_hook.torch_steps import TorchSteps
from distconsole_training.torch_hook.waits import MOST, Waits, timed, write_waits


def test_only_waits_between_two_moments_count_and_one_inside_another_once() -> None:
    waits = Waits()
    waits.add(10, 20)
    waits.add(32, 35)
    waits.add(30, 50)
    assert [waits.between(0, 100), waits.between(20, 100), waits.between(0, 20)] == [30, 20, 10]
    waits.step_ended(20)
    assert [waits.between(20, 100), waits.between(50, 100)] == [20, 0]


def test_what_is_kept_of_a_script_without_steps_is_bounded() -> None:
    waits = Waits()
    for t in range(3 * MOST):
        waits.add(10 * t, 10 * t + 1)
    assert len(waits._ends) <= MOST
    assert waits.between(0, 10**9) <= MOST
    assert waits.between(10 * (3 * MOST - 5), 10**9) == 5


def test_a_call_that_blocks_is_timed_and_raises_as_it_would() -> None:
    class Work:
        def wait(self, timeout: int = 0) -> int:
            if timeout:
                raise TimeoutError
            return 5

    waits = Waits()
    waits.begin()
    wait = timed(Work.wait, waits)
    assert wait(Work()) == 5
    with pytest.raises(TimeoutError):
        wait(Work(), timeout=1)
    assert len(waits._ends) == 2
    waits.looks = False
    wait(Work())
    assert len(waits._ends) == 2


def test_fast_steps_are_not_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**12
    monkeypatch.setattr(module, "monotonic_ns", lambda: now)
    waits = Waits()
    waits.step_ended(now)
    assert not waits.looks, "there is nobody to wait for"
    waits.begin()
    looked = 0
    for _ in range(1000):  # of 1 ms
        now += 10**6
        waits.step_ended(now)
        looked += waits.covers(now)
    assert 15 <= looked <= 21
    for _ in range(10):  # of 80 ms
        now += 80 * 10**6
        waits.step_ended(now)
        assert waits.covers(now)
    assert not waits.covers(now - 10**9), "it began before that was looked at"


@pytest.mark.parametrize(("microseconds", "least", "most"), [(60, 19, 21), (600, 3, 6)])
def test_a_rank_for_which_a_look_is_dear_looks_less_often(
    microseconds: int, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10**12
    for clock in ("monotonic_ns", "thread_time_ns"):
        monkeypatch.setattr(module, clock, lambda: now)

    def event() -> None:
        nonlocal now
        now += 1000 * microseconds

    waits = Waits()
    waits.begin()
    told = module.meter(event, waits)
    looked = []
    for number in range(2000):  # of 1 ms
        began = now
        told()
        now = began + 10**6
        waits.step_ended(now)
        looked.append(waits.looks)
        if number == 1499:
            monkeypatch.setattr(module, "REST", 1)
    assert least <= sum(looked[500:1500]) <= most
    assert sum(looked[-100:]) == 2, "it is cheap by now"


def test_a_wait_says_how_rare_looks_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process = Process()
    monkeypatch.setattr(module, "process", process)
    process.made = recorder = Recorder(str(tmp_path), Identity(0, 0, 2), 1, 1, capacity=4)
    waits = Waits()
    for waits.period in (module.PERIOD_NS, 2 * module.PERIOD_NS, 8 * module.PERIOD_NS):
        write_waits(waits, 1, 0, 0, 0, 0, 0)
    raw = Path(recorder.path).read_bytes()[records.RECORDS_OFFSET :]
    recorder.close()
    assert [each[6] for each in records.RECORD.iter_unpack(raw)] == [0, 0, 400, 0]


def test_what_the_engine_does_after_the_last_gradient_is_a_wait() -> None:
    # DDP asks it so to wait for the last bucket.
    watch = TorchSteps(torch)
    watch.waits.begin()
    parameter = torch.ones(3, requires_grad=True)
    seen: list[int] = []

    def ready(_gradient: torch.Tensor) -> None:
        seen.append(time.monotonic_ns())
        torch.autograd.Variable._execution_engine.queue_callback(last)

    def last() -> None:
        seen.append(watch.waits.own_done)

    parameter.register_hook(ready)
    loss = (parameter * 2).sum()
    began = time.monotonic_ns()
    steps = watch.backward_began(loss, None)
    torch.autograd.backward(loss)
    watch.backward_ended(steps, False)
    ended = time.monotonic_ns()
    assert began < seen[0] <= seen[1]
    waited = watch.waits.between(began, ended)
    assert 0 < waited <= ended - seen[1]
    watch.backward_ended(watch.backward_began(torch.zeros(()), None), False)  # nothing to compute
    assert watch.waits.between(began, time.monotonic_ns()) == waited


def test_of_a_graph_that_is_kept_the_engine_is_asked_once_a_backward() -> None:
    watch = TorchSteps(torch)
    watch.waits.begin()
    told: list[int] = []
    watch._done = lambda: told.append(1)
    loss = (torch.ones(3, requires_grad=True) * 2).sum()
    for number in (1, 2, 3):
        watch.await_own(loss)
        loss.backward(retain_graph=True)
        assert len(told) == number
