"""With the fast path and without it, the same steps come out."""

import contextlib
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from distconsole_agent.journal.rings import Ring
from distconsole_training import guard, records
from distconsole_training.identity import Identity
from distconsole_training.process import Process, whole
from distconsole_training.recorder import Recorder
from distconsole_training.torch_hook import (
    fast_path,
    step_records,
    torch_loss,
    torch_steps,
    waits,
    wrapped_calls,
)
from distconsole_training.torch_hook.fast_path import OUTSIDE, FastPath
from distconsole_training.torch_hook.torch_steps import TorchSteps
from distconsole_training.torch_hook.wrapped_calls import (
    NextAndTell,
    backward_that_tells,
    hook_after_step,
    hook_before_step,
)


class FailsError(Exception):
    """What a backward of the script may raise."""


class Script:
    """Makes the calls that torch makes, on listeners of its own; torch itself is not touched."""

    def __init__(self) -> None:
        self.watch = TorchSteps(torch)
        self.began, self.ended = hook_before_step(self.watch), hook_after_step(self.watch)
        self.fails = False
        self.now = 10**15
        self.backward = backward_that_tells(self._like_torch(), self.watch)
        original = torch.utils.data.dataloader._BaseDataLoaderIter.__next__
        self.following = NextAndTell(original, self.watch)
        self.batches = {source: self.loader(source) for source in (1, 2)}
        self.optimizers = {one: object() for one in (7, 8)}

    def loader(self, source: int) -> Any:
        return iter(DataLoader(torch.zeros(20, 1), batch_size=3 + source))

    def fetches(self, source: int) -> None:
        try:
            self.following.__get__(self.batches[source])()
        except StopIteration:
            self.batches[source] = self.loader(source)
            self.following.__get__(self.batches[source])()

    def _like_torch(self) -> Any:
        def backward(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: Any = None,
            create_graph: Any = False,
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> None:
            self.now += 3
            if self.fails:
                raise FailsError

        return backward

    def backs(self, loss: float, gradient: Any = None) -> None:
        self.backward(torch.tensor(loss, dtype=torch.float64), gradient)

    def steps(self, one: int) -> None:
        self.began(self.optimizers[one], (), {})
        self.now += 2
        self.ended(self.optimizers[one], (), {})

    def odd_move(self, moves: random.Random) -> None:
        match moves.randrange(7):
            case 0:
                self.fetches(moves.randint(1, 2))
            case 1:
                self.backs(moves.random(), torch.ones(()))
            case 2:
                self.steps(moves.randint(7, 8))
            case 3:
                self.fails = True
                with pytest.raises(FailsError):
                    self.backs(moves.random())
                self.fails = False
            case 4:
                self.watch.scaler_updates(torch.amp.GradScaler("cpu"))
            case 5:
                self.watch.scaled(torch.ones(()), torch.ones(()))
            case _:
                for _ in range(3):
                    self.fetches(2)

    def play(self, seed: int) -> int:
        """Play, and return how often the thread was on the fast path."""
        moves = random.Random(seed)
        on_fast_path = 0
        for _ in range(200):
            if moves.randrange(30):
                if seed % 3:
                    self.fetches(1)
                self.backs(moves.random())
                self.steps(7)
            else:
                self.odd_move(moves)
            on_fast_path += self.watch.fast.place != OUTSIDE
        self.watch.finish()
        return on_fast_path


@pytest.mark.parametrize("seed", range(40))
def test_the_short_way_and_the_long_way_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[Any] = []

    def emit(ended: int, flags: int, samples: int, *times_and_loss: Any) -> None:
        *times, loss = times_and_loss
        emitted.append((flags, samples, [math.isnan(time) for time in times], str(loss)))

    monkeypatch.setattr(torch_steps, "write_step", emit)
    on_fast_path = Script().play(seed)
    assert on_fast_path or not seed % 3
    short_way, emitted = emitted, []
    monkeypatch.setattr(FastPath, "enter", lambda _: None)
    assert Script().play(seed) == 0
    assert len(emitted) > 150
    assert short_way == emitted


def ordinary_records(
    folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, str]]:
    """Return kind and text of the records of steps of ``script``, whose clock is its own."""
    folder.mkdir()
    process = Process()
    for home in (fast_path, wrapped_calls, step_records, waits):
        monkeypatch.setattr(home, "process", process)
    for home in (wrapped_calls, torch_steps, waits):
        monkeypatch.setattr(home, "monotonic_ns", lambda: script.now)
    process.made = recorder = Recorder(str(folder), Identity(0, 0, 1), 1, 1, capacity=32)
    for number in range(50):
        script.now += number
        script.fetches(1)
        script.now += 7
        script.watch.waits.add(script.now - 3, script.now - 1)
        script.backs(number / 8 if number % 7 else math.nan)
        script.now += 1
        script.steps(7)
    with contextlib.closing(Ring(recorder.path)) as ring:
        found = [*ring.read(), *ring.read()]
    recorder.close()
    # A float of 32 bits has seven digits.
    return [(each[3], " ".join(f"{field:.6g}" for field in each)) for each in found]


@pytest.mark.parametrize("grouped", [False, True])
def test_an_ordinary_step_is_written_as_every_other_is(
    grouped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "PERIOD_NS", 200)
    monkeypatch.setattr(waits, "LATE_NS", 0)
    script, other = Script(), Script()
    for each in (script, other) if grouped else ():
        each.watch.waits.begin()
    short_way = ordinary_records(tmp_path / "short", script, monkeypatch)
    assert script.watch.fast.place != OUTSIDE
    monkeypatch.setattr(FastPath, "enter", lambda _: None)
    assert short_way == ordinary_records(tmp_path / "long", other, monkeypatch)
    assert len(set(short_way)) == 31
    assert (records.WAIT in dict(short_way)) is grouped
    assert records.STEP in dict(short_way)


@pytest.mark.parametrize("takes_more", [False, True])
def test_a_backward_of_any_torch_counts(takes_more: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[Any] = []
    monkeypatch.setattr(torch_steps, "write_step", lambda *step: emitted.append(step))
    script = Script()
    if takes_more:

        def original(tensors: Any, grad_tensors: Any = None, *, more: Any = None) -> None: ...

        script.backward = backward_that_tells(original, script.watch)
    for number in range(5):
        script.fetches(1)
        script.backs(float(number))
        script.steps(7)
    assert [step[-1] for step in emitted] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert all(step[6] >= 0 for step in emitted)


def test_what_is_no_scalar_is_no_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[Any] = []
    monkeypatch.setattr(torch_steps, "write_step", lambda *step: emitted.append(step))
    script = Script()
    before = guard.tally.errors
    for number in range(6):
        script.fetches(1)
        script.backward(torch.ones(number % 3))
        script.steps(7)
    assert [step[-1] for step in emitted] == [None, 1.0, None] * 2
    assert guard.tally.errors == before


def test_a_next_that_is_kept_gives_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[Any] = []
    monkeypatch.setattr(torch_steps, "write_step", lambda *step: emitted.append(step))
    script = Script()
    iterator = script.loader(2)
    kept = script.following.__get__(iterator)
    for batch in (kept() for _ in range(4)):
        assert len(batch[0] if isinstance(batch, list) else batch) == 5
        script.backs(1.0)
        script.steps(7)
    with pytest.raises(StopIteration):
        kept()
    assert [step[2] for step in emitted] == [5] * 4
    assert all(0 <= step[4] <= step[3] for step in emitted[1:])


def test_a_step_that_cannot_be_written_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = guard.Tally()
    monkeypatch.setattr(guard, "tally", tally)
    written: list[Any] = []
    monkeypatch.setattr(torch_steps, "write_step", lambda *step: written.append(step))
    script = Script()

    def trains(times: int) -> None:
        for _ in range(times):
            script.fetches(1)
            script.backs(0.5)
            script.steps(7)

    trains(5)
    assert script.watch.fast.place != OUTSIDE

    def fails(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr(script.watch.fast, "emit", fails)
    monkeypatch.setattr(script.watch.fast.steps, "_emit", fails)
    trains(1)
    assert tally.errors == 1
    trains(2 * guard.MAX_ERRORS)
    assert tally.errors == guard.MAX_ERRORS


def test_no_device_is_waited_for_to_know_how_many_samples_there_were() -> None:
    on_device = torch.tensor(3).to("meta")  # whoever asks for its value gets an error
    assert [whole(value) for value in (None, 3, torch.tensor(3), on_device)] == [None, 3, 3, None]


@pytest.mark.parametrize("step_ms", [0.1, 1, 7, 16, 29, 100])
def test_losses_on_a_device_are_read_some_30_times_a_second(
    step_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0
    monkeypatch.setattr(torch_loss, "time", SimpleNamespace(monotonic_ns=lambda: now))
    thinning, steps = torch_loss._Thinning(), int(10_000 / step_ms)
    kept = []
    for step in range(2 * steps):
        now = int(step * step_ms * 1e6)
        kept.append(thinning.keeps(step))
    assert 70 <= sum(kept[steps:]) <= 340, "in ten seconds"
