"""GPUs are measured while something is copied to them, over stand-ins of NVML and CUDA; none that is
in use is touched.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent import probes
from fakes import nvml

pytestmark = pytest.mark.skipif(nvml.compiler() is None, reason="no C compiler for the stand-ins")

GPUS = 2
TOKEN = "of most tests"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nvml.FakeNvml]:
    """Two idle GPUs with four NVLinks each."""
    made = nvml.FakeNvml(tmp_path / "control")
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    made.set_gpu_count(GPUS)
    for gpu in range(GPUS):
        made.set_idle(gpu)
        made.set(gpu, "GPU_LINKS", 4)
    yield made
    made.close()


def measured(seconds: float = 20.0, **args: Any) -> list[dict[str, Any]]:
    asked = {"token": TOKEN, **args}
    found: list[dict[str, Any]] = probes.run("gpu.load", asked, seconds)["gpus"]
    return found


def test_links_are_read_while_copies_go_on_and_everything_is_given_back(
    fake: nvml.FakeNvml,
) -> None:
    fake.set(0, "GPU_PCIE_WIDTH", 8)
    fake.set(0, "GPU_COPY_MB_S", 6000)
    fake.set(0, "GPU_PCIE_GENERATION", 3)
    fake.set(0, "GPU_PCIE_REPLAYS", 2)
    fake.set_throttle(1, 0x82)
    narrow, well = measured()

    assert (narrow["width"], narrow["width_max"]) == (8, 16)
    assert (narrow["generation"], narrow["generation_max"]) == (3, 4)
    assert narrow["to_device"] == pytest.approx(6e9, rel=0.05)
    assert narrow["counted"] == pytest.approx(6e9, rel=0.05)
    assert narrow["replays"] > 0
    # The stand-in is at generation 1 while nobody uses it.
    assert (well["width"], well["generation"], well["replays"]) == (16, 4, 0)
    assert well["from_device"] == pytest.approx(25e9, rel=0.05)
    assert (narrow["clock_reasons"], well["clock_reasons"]) == (0, 0x82)
    assert [fake.word(gpu, "GPU_USER") for gpu in range(GPUS)] == [0, 0]


def test_errors_of_nvlinks_are_what_copies_between_gpus_make_of_them(fake: nvml.FakeNvml) -> None:
    fake.set_link_errors(0, replays=1)
    fake.set(1, "GPU_LINKS_DOWN", 1 << 2)
    fake.set(1, "GPU_LINKS_DROPPING", 1 << 3)
    fake.set(1, "GPU_PEER_MB_S", 40_000)
    first, second = measured()

    assert (first["peer"], second["peer"]) == (1, 0)
    assert first["to_peer"] == pytest.approx(200e9, rel=0.05)
    assert second["to_peer"] == pytest.approx(40e9, rel=0.05)
    assert [link["replays"] > 0 for link in first["links"]] == [False, True, False, False]
    assert not any(link["recoveries"] for link in first["links"])
    states = [(link["up_before"], link["up"]) for link in second["links"]]
    assert states == [(True, True), (True, True), (False, False), (True, False)]


def test_a_copy_to_another_gpu_that_cuda_refuses_is_told_and_the_others_go_on(
    fake: nvml.FakeNvml,
) -> None:
    fake.set(0, "GPU_PEER_ERROR", 719)
    refused, other = measured()
    assert (refused["peer"], refused["peer_error"]) == (1, "cuMemcpyPeerAsync: error (719)")
    assert refused["to_device"]
    assert len(refused["links"]) == 4
    assert "to_peer" not in refused
    assert other["to_peer"]
    assert "peer_error" not in other


def test_links_of_the_fifth_generation_count_recoveries_by_a_field(fake: nvml.FakeNvml) -> None:
    fake.set(0, "GPU_LINKS_NEW", 1)
    fake.set_link_errors(0, replays=1)
    assert not any(link["recoveries"] for link in measured()[0]["links"])

    fake.set_link_errors(0, recoveries=1)
    first = measured()[0]["links"]
    assert [link["recoveries"] > 0 for link in first] == [False, True, False, False]
    assert "replays" not in first[1]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"GPU_MEMORY_USED": (3 << 30) + 1}, "3072 MiB are held by a process that is not to be"),
        ({"GPU_UTIL": 51}, "it is 50 % busy"),
        ({"GPU_COMPUTE_MODE": 3}, "exclusive"),
        ({"GPU_MIG_MODE": 1}, "MIG is on"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_gpu_that_may_be_wanted_by_others_is_left_alone(
    fake: nvml.FakeNvml, words: dict[str, int], why: str
) -> None:
    for word, value in words.items():
        fake.set(0, word, value)
    left, other = measured()

    assert why in left["skipped"]
    assert "to_device" not in left
    assert fake.word(0, "GPU_COPIES") == 0
    assert other["to_device"]
    assert "links" not in other  # there is no other GPU to copy to


def test_a_gpu_with_a_process_is_left_alone_and_the_process_named(fake: nvml.FakeNvml) -> None:
    fake.set_processes(1, [(os.getpid(), 1 << 30, 0, 0)])
    _, used = measured()

    assert used["skipped"] == "in use"
    assert (used["process"]["pid"], used["process"]["uid"]) == (os.getpid(), os.getuid())
    assert fake.word(1, "GPU_COPIES") == 0


def test_who_comes_while_it_is_measured_has_the_gpu_at_once(fake: nvml.FakeNvml) -> None:
    fake.set(0, "GPU_GUEST", os.getpid())
    left, other = measured()

    assert "came to it" in left["skipped"]
    assert left["process"]["pid"] == os.getpid()
    assert fake.word(0, "GPU_COPIES") == 1
    assert fake.word(0, "GPU_USER") == 0
    assert other["to_device"]


def test_a_gpu_that_this_session_may_not_see_is_left_alone(
    fake: nvml.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    hidden, seen = measured()
    assert "INVALID_DEVICE" in hidden["skipped"]
    assert seen["to_device"]
    assert [each["index"] for each in measured(uuids=[seen["uuid"]])] == [1]


def test_what_cuda_refuses_is_told_of_that_gpu(fake: nvml.FakeNvml) -> None:
    fake.set(0, "GPU_CUDA_ERROR", 802)
    refused, other = measured()
    assert refused["error"] == "cuDevicePrimaryCtxRetain: CUDA_ERROR_SYSTEM_NOT_READY (802)"
    assert other["to_device"]


def test_a_gpu_that_hangs_costs_its_deadline_and_nothing_of_the_others(
    fake: nvml.FakeNvml,
) -> None:
    fake.set(1, "GPU_CUDA_HANGS", 1)
    well, hung = measured(2.0)
    assert well["to_device"]
    assert "did not answer in 2." in hung["error"]


def test_it_ends_at_once_when_nobody_waits_for_it_any_more(fake: nvml.FakeNvml) -> None:
    fake.set(0, "GPU_CUDA_HANGS", 1)
    answers: list[list[dict[str, Any]]] = []
    asking = threading.Thread(target=lambda: answers.append(measured(60.0, token="mine")))
    asking.start()
    while not fake.calls("nvmlDeviceSetCpuAffinity"):  # it begins with the first GPU
        asking.join(0.01)
    assert probes.run("gpu.load.stop", {"token": "another"}, 5.0) == {"stopping": False}
    assert probes.run("gpu.load.stop", {"token": "mine"}, 5.0) == {"stopping": True}
    asking.join(20.0)
    assert [each["error"] for each in answers[0]] == ["the check was given up"]
    with pytest.raises(probes.ProbeError, match="given up"):
        measured(token="another")


@pytest.mark.gpu
def test_real_gpus_tell_their_links(tmp_path: Path) -> None:
    """On a machine with NVIDIA's driver, through the real libraries."""
    entries = measured(60.0)
    assert entries
    for entry in entries:
        assert entry.get("skipped") or not entry.get("error"), entry
        if "to_device" in entry:
            assert 1 <= entry["width"] <= entry["width_max"]
            assert 1 <= entry["generation"] <= entry["generation_max"]
            assert entry["to_device"] > 1e8
