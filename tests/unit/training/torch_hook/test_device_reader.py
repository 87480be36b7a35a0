"""Scalars on their way from devices: a stand-in for CUDA whose copies arrive when the test says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distconsole_training import records
from distconsole_training.process import Process
from distconsole_training.torch_hook import torch_loss, torch_verify, tracing
from distconsole_training.torch_hook.torch_loss import _SLOTS, _DeviceReader
from distconsole_training.torch_hook.torch_verify import Gathered


class Cuda:
    """Does what is queued on a device when asked; an event belongs to the device of its first record."""

    def __init__(self) -> None:
        self.queues: dict[str, list[Callable[[], Any]]] = {}
        self.captures = False
        self.calls: list[str] = []

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.captures

    def current_stream(self, device: str) -> str:
        return device

    def Event(self) -> Event:  # noqa: N802 - as torch.cuda names it
        return Event(self)

    def work(self, device: str) -> None:
        for task in self.queues.pop(device, []):
            task()

    def torch(self) -> Any:
        def zeros(*_size: Any, **_more: Any) -> Pinned:
            return Pinned(self, torch.zeros(_SLOTS))

        return SimpleNamespace(cuda=self, float32=torch.float32, zeros=zeros, empty=zeros)


class Event:
    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self._device, self._done = cuda, "", False

    def record(self, device: str) -> None:
        if self._device and self._device != device:
            raise RuntimeError("the event was made on another device")
        self._device = device
        self._cuda.queues.setdefault(device, []).append(lambda: setattr(self, "_done", True))

    def query(self) -> bool:
        self._cuda.calls.append("query")
        return self._done


class Pinned:
    """Pinned memory, in whose elements copies arrive late."""

    def __init__(self, cuda: Cuda, memory: torch.Tensor) -> None:
        self._cuda, self._memory = cuda, memory

    def data_ptr(self) -> int:
        return self._memory.data_ptr()

    def __getitem__(self, slot: int) -> Pinned:
        return Pinned(self._cuda, self._memory[slot])

    def copy_(self, scalar: Scalar, non_blocking: bool) -> None:
        assert non_blocking
        if scalar.device == "broken":
            raise RuntimeError("the device is lost")
        queue = self._cuda.queues.setdefault(scalar.device, [])
        queue.append(lambda: self._memory.fill_(scalar.value))


class Scalar:
    def __init__(self, value: float, device: str = "cuda:0") -> None:
        self.value, self.device = value, device

    def detach(self) -> Scalar:
        return self

    def reshape(self, _shape: Any) -> Scalar:
        return self


@pytest.fixture
def cuda() -> Cuda:
    return Cuda()


@pytest.fixture
def reader(cuda: Cuda) -> _DeviceReader:
    return _DeviceReader(cuda.torch())


def test_losses_on_two_devices_are_both_read(cuda: Cuda, reader: _DeviceReader) -> None:
    for number in range(_SLOTS + 1):
        reader.read(Scalar(number))
        cuda.work("cuda:0")
    first, second = (
        [reader.read(Scalar(value, device)) for value in (1.0, 2.0)]
        for device in ("cuda:0", "cuda:1")
    )
    cuda.work("cuda:1")
    assert [late.arrived() for late in first + second] == [False, False, True, True]
    cuda.work("cuda:0")
    assert [late.value() for late in first + second] == [1.0, 2.0, 1.0, 2.0]


def test_nan_arrives(cuda: Cuda, reader: _DeviceReader) -> None:
    late = reader.read(Scalar(float("nan")))
    assert not late.arrived()
    cuda.work("cuda:0")
    assert late.arrived()
    assert late.value() != late.value()


def test_a_late_copy_is_never_taken_for_a_newer_value(cuda: Cuda, reader: _DeviceReader) -> None:
    stuck = reader.read(Scalar(7.0, "cuda:1"))
    for number in range(1, _SLOTS):
        reader.read(Scalar(number))
    cuda.work("cuda:0")
    assert reader.read(Scalar(8.0)) is None, "its slot waits for the other device"
    cuda.work("cuda:1")
    assert (stuck.arrived(), stuck.value()) == (True, None)
    for number in range(1, _SLOTS):
        reader.read(Scalar(number))
    late = reader.read(Scalar(9.0))
    cuda.work("cuda:0")
    assert late.value() == 9.0


def test_a_copy_that_fails_costs_its_own_value_only(cuda: Cuda, reader: _DeviceReader) -> None:
    with pytest.raises(RuntimeError, match="lost"):
        reader.read(Scalar(1.0, "broken"))
    seen = [reader.read(Scalar(number)) for number in range(_SLOTS)]
    assert None not in seen


def test_nothing_calls_cuda_while_a_stream_captures(cuda: Cuda, reader: _DeviceReader) -> None:
    process, told = Process(), []
    for number in range(3):
        process.later(reader.read(Scalar(number)), told.append)
    process.deliver_late()
    cuda.captures = True
    process.deliver_late()
    assert (cuda.calls, told) == ([], [])
    assert reader.read(Scalar(5.0)) is None
    cuda.captures = False
    cuda.work("cuda:0")
    process.deliver_late()
    assert told == [0.0, 1.0, 2.0]


def test_sums_wait_while_a_stream_captures(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    coming = Gathered(torch, [[5]])
    event = cuda.Event()
    coming._coming.append(([0], torch.tensor([6]), event))
    monkeypatch.setattr(torch, "cuda", cuda)
    cuda.captures = True
    assert not coming.arrived()
    assert cuda.calls == []
    event.record("cuda:0")
    cuda.work("cuda:0")
    cuda.captures = False
    assert coming.arrived()
    assert coming.value() == [[6]]


def test_no_trace_begins_in_a_stream_capture(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", cuda)
    cuda.captures = True
    tracing.trace(SimpleNamespace(map=b""), 3)  # type: ignore[arg-type]
    assert tracing._going_on == []


def test_a_script_without_torch_is_traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    asked = SimpleNamespace(map=bytes(records.OFFSET_WANTED + 1), path=str(tmp_path / "ring"))
    with pytest.raises(FileNotFoundError, match="ring"):  # goes on to what was asked
        tracing.trace(asked, 3)  # type: ignore[arg-type]


def test_no_batch_is_summed_in_a_capture(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = torch_verify.Verifier(torch, 1)
    verifier._watch = SimpleNamespace(next_step=lambda: 4)  # type: ignore[assignment]
    monkeypatch.setattr(torch, "cuda", cuda)
    for cuda.captures in (True, False):
        verifier.arrived(SimpleNamespace(_num_yielded=2), torch.ones(2))
        assert bool(verifier._batches) != cuda.captures
    assert not torch_loss.is_capturing(SimpleNamespace(cuda=cuda))
