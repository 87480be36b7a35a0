"""Why a slow rank is slow: what its GPU, its processors or its host say at that time, and the others' do not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from distconsole.model.run_events import NodeSample
from distconsole.runs.detectors.slow_causes import TELLING_SECONDS, Load
from distconsole.runs.detectors.slowness import Straggler
from fakes import scenes

T = scenes.START + 30
SLOW = Straggler(3, "forward", 30.0, 20.0, 40.0)


def cause(
    gpu: dict[str, Any] | None = None,
    node: dict[str, Any] | None = None,
    cpu_wait: float | None = None,
    age: float = 0.0,
) -> tuple[str, str] | None:
    """Return word and words of the cause, where rank 3 on node2 and its GPU or host say this besides."""
    load, windows = Load(), {}
    for number in range(4):
        mine = number == 3
        windows[number] = structs.replace(
            scenes.window(number, 99, T), cpu_wait=cpu_wait if mine else 1.0
        )
        sample = structs.replace(scenes.gpu(number, T - age), sm_clock_mhz=1980.0, throttle=())
        host = NodeSample(
            t=T - age, run=scenes.RUN, host=f"node{number // 2 + 1}", cpu=40.0, mem_used=50,
            mem_total=100, net_rx_s=None, net_tx_s=None,
        )  # fmt: skip
        sample = structs.replace(sample, **(gpu or {})) if mine else sample
        host = structs.replace(host, **(node or {})) if mine else host
        samples: list[Any] = [sample, host]
        assert list(load.taken(iter(samples))) == samples
    found = load.cause_of(SLOW, windows, T)
    return None if found is None else (found.kind, found.text)


@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        ({"gpu": {"throttle": ("hw_thermal",), "temp_c": 91.0}}, "throttled", "held back (hw_thermal) at 91 °C"),
        ({"gpu": {"strangers": ("77 eve train.py",)}}, "gpu_shared", "shared with pid 77 eve train.py"),
        ({"gpu": {"ecc_uncorrected": 3}}, "ecc", "counts 3 uncorrected memory errors"),
        ({"gpu": {"sm_clock_mhz": 1200.0}}, "clocks", "runs at 1,200 MHz where 1,980 is usual"),
        ({"cpu_wait": 38.0}, "processors", "waits for a processor 38 % of the time, the others 1 %"),
        ({"node": {"cpu": 99.0}}, "processors", "processors of node2 are 99 % in use, the others' 40 %"),
        ({"node": {"mem_used": 98}}, "memory", "memory of node2 is 98 % in use, the others' 50 %"),
    ],
)  # fmt: skip
def test_what_is_told_of_it_alone_is_the_cause(
    told: dict[str, Any], kind: str, words: str
) -> None:
    found = cause(**told)
    assert found is not None
    assert found[0] == kind
    assert words in found[1]
    if "cpu_wait" not in told:
        assert cause(**told, age=TELLING_SECONDS + 1) is None, "that was before"


def test_where_nothing_tells_it_from_the_others_there_is_no_cause() -> None:
    assert cause(cpu_wait=1.5) is None
