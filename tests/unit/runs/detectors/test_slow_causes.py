"""Why a slow rank is slow: what its GPU, its processors or its host say at that time, and the others' do not."""

from typing import Any

import pytest
from msgspec import structs

from distconsole.model.run_events import NodeSample, RunFinding
from distconsole.runs.detectors.ranks import RanksSeen
from distconsole.runs.detectors.slow_causes import TELLING_SECONDS, Load
from fakes import scenes
from fakes.blank import blank

T = scenes.START + 30


def cause(
    gpu: dict[str, Any] | None = None,
    node: dict[str, Any] | None = None,
    window: dict[str, Any] | None = None,
    age: float = 0.0,
) -> tuple[str, str] | None:
    """Return word and words of the cause, where rank 3 on node2 and its GPU or host say this besides."""
    load, windows = Load(RanksSeen(scenes.RUN)), {}
    for number in range(4):
        mine = number == 3
        own = structs.replace(scenes.window(number, 99, T), cpu_wait=1.0, disk_wait=0.0)
        windows[number] = structs.replace(own, **(window or {})) if mine else own
        sample = structs.replace(
            scenes.gpu(number, T - age),
            sm_clock_mhz=1980.0,
            throttle=(),
            util=90.0,
            pcie=(16, 16, 5, 5),
        )
        host = blank(
            NodeSample,
            t=T - age,
            run=scenes.RUN,
            host=f"node{number // 2 + 1}",
            cpu=40.0,
            mem_used=50,
            mem_total=100,
            cpus=64,
            swap_in_s=0.0,
            disk_wait=1.0,
            net_errors_s=0.0,
            net_resent_s=2.0,
            cpu_mhz=3400.0,
            cpu_model="EPYC 9654",
        )
        sample = structs.replace(sample, **(gpu or {})) if mine else sample
        host = structs.replace(host, **(node or {})) if mine else host
        samples: list[Any] = [sample, host]
        assert list(load.taken(iter(samples)))[-2:] == samples
    found = load.cause_of((3,), windows, T)
    return None if found is None else (found.kind, found.text)


@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        ({"gpu": {"throttle": ("hw_thermal",), "temp_c": 91.0}}, "throttled", "held back (hw_thermal) at 91 °C"),
        ({"gpu": {"strangers": ("77 eve train.py",)}}, "gpu_shared", "shared with pid 77 eve train.py"),
        ({"gpu": {"ecc_uncorrected": 3}}, "ecc", "counts 3 uncorrected memory errors"),
        ({"gpu": {"sm_clock_mhz": 1200.0}}, "clocks", "runs at 1,200 MHz where 1,980 is usual"),
        ({"gpu": {"xid": 94}}, "xid", "the driver reports Xid 94 of GPU 1 of node2"),
        ({"gpu": {"pcie": (8, 16, 5, 5)}}, "pcie", "GPU 1 of node2 uses 8 of its 16 PCIe lanes"),
        ({"gpu": {"pcie": (16, 16, 1, 5)}}, "pcie", "runs PCIe of generation 1 where 5 is possible"),
        ({"window": {"cpu_wait": 38.0}}, "processors", "waits for a processor 38 % of the time, the others 1 %"),
        ({"node": {"cpu": 99.0}}, "processors", "processors of node2 are 99 % in use, the others' 40 %"),
        ({"window": {"disk_wait": 60.0}}, "disk", "it waits for a disk 60 % of the time, the others 0 %"),
        ({"window": {"workers": (4, 3.0, 75.0)}}, "disk", "75 % of its 4 DataLoader workers wait for a disk"),
        ({"window": {"workers": (1, 97.0, 0.0)}}, "workers",
         "its 1 DataLoader worker uses a processor, and 38 of 64 of node2 are idle"),
        ({"window": {"workers": (2, 97.0, 0.0)}}, "workers", "its 2 DataLoader workers use a processor each"),
        ({"node": {"swap_in_s": 2.5e7}}, "swap", "node2 reads 25.0 MB/s back from swap, the others 0.0"),
        ({"node": {"disk_wait": 70.0}}, "disk", "something on node2 waits for a disk 70 % of the time, on the others 1 %"),
        ({"node": {"net_errors_s": 30.0}}, "network", "network of node2 has 30 errors and drops a second, the others' 0"),
        ({"node": {"net_resent_s": 400.0}}, "network", "node2 sends 400 TCP segments again a second, the others 2"),
        ({"node": {"cpu_mhz": 2100.0}}, "cpu_clock", "of node2 run at 2,100 MHz at most, the others' at 3,400 (EPYC 9654)"),
        ({"node": {"cpu_model": "Xeon 4110"}}, "cpu_model", "processors of node2 are Xeon 4110, the others' EPYC 9654"),
        ({"node": {"mem_used": 98}}, "memory", "memory of node2 is 98 % in use, the others' 50 %"),
    ],
)  # fmt: skip
def test_what_is_told_of_it_alone_is_the_cause(
    told: dict[str, Any], kind: str, words: str
) -> None:
    found = cause(**told)
    assert found[0] == kind
    assert words in found[1]
    if "window" not in told:
        assert cause(**told, age=TELLING_SECONDS + 1) is None, "that was before"


@pytest.mark.parametrize(
    "told",
    [
        {"window": {"cpu_wait": 1.5, "disk_wait": 2.0}},
        {"window": {"workers": (1, 30.0, 0.0)}},
        {"window": {"workers": (1, 97.0, 0.0)}, "node": {"cpu": 98.5, "cpus": 64}},
        {"gpu": {"pcie": (16, 16, 1, 5), "util": 0.0}},
        {"gpu": {"pcie": (0, 0, 0, 0)}},
        {"node": {"net_resent_s": 49.0, "net_tx_s": 124e6}},
        {"node": {"net_resent_s": 9.0, "swap_in_s": 4096.0, "disk_wait": 9.0, "cpu_mhz": None}},
    ],
    ids=[
        "waits a little",
        "workers rest",
        "no idle processor",
        "pcie at rest",
        "pcie unknown",
        "few of many packets",
        "host",
    ],
)
def test_what_the_others_have_too_or_is_little_is_no_cause(told: dict[str, Any]) -> None:
    found = cause(**told)
    assert found is None or found[0] == "processors"


def test_swap_comes_before_the_wait_for_the_disk_that_it_is() -> None:
    found = cause(window={"disk_wait": 80.0}, node={"swap_in_s": 5e7})
    assert found[0] == "swap"


def test_of_several_slow_ranks_all_must_wait() -> None:
    windows = {
        rank: structs.replace(scenes.window(rank, 99, T), cpu_wait=40.0 if rank == 3 else 1.0)
        for rank in range(4)
    }
    assert Load(RanksSeen(scenes.RUN)).cause_of((3,), windows, T) is not None
    assert Load(RanksSeen(scenes.RUN)).cause_of((2, 3), windows, T) is None


@pytest.mark.parametrize(("others", "kind"), [("EPYC", "cpu_model"), ("Xeon", None)])
def test_processors_of_two_kinds_among_the_others_explain_nothing(
    others: str, kind: str | None
) -> None:
    load = Load(RanksSeen(scenes.RUN))
    windows = {}
    for rank, model in enumerate(("EPYC", others, "Xeon")):
        host = f"node{rank + 1}"
        sample = blank(NodeSample, t=T, run=scenes.RUN, host=host, cpu_model=model)
        assert list(load.taken(iter([sample])))
        windows[rank] = structs.replace(scenes.window(rank, 99, T), host=host)
    found = load.cause_of((2,), windows, T)
    assert (found.kind if found else None) == kind
    assert load.cause_by_host(windows, T) is None, "that was so in each earlier run"


def test_errors_of_a_network_are_told_beside_what_is_slow_and_not_alone() -> None:
    errs = [
        structs.replace(scenes.node("node2", T + at), net_errors_s=30.0, net_resent_s=400.0)
        for at in range(20)
    ]
    assert list(Load(RanksSeen(scenes.RUN)).taken(iter(errs))) == errs


def test_an_error_of_a_gpu_is_told_once_and_explains_what_is_slow_later() -> None:
    load = Load(RanksSeen(scenes.RUN))
    told = [
        structs.replace(scenes.gpu(3, T - 20 + at), xid=94 if at < 5 else None) for at in range(20)
    ]
    events = list(load.taken(iter(told)))
    (finding,) = [event for event in events if isinstance(event, RunFinding)]
    assert (finding.check, finding.rank, finding.hosts) == ("run.xid", 3, ("node2",))
    assert "Xid 94 of GPU 1 of node2, which rank 3 uses" in finding.summary
    assert "dmesg" in finding.hint
    assert [event for event in events if event is not finding] == told
    found = load.cause_of((3,), {rank: scenes.window(rank, 99, T) for rank in range(4)}, T)
    assert found.kind == "xid"
