"""The GPU sampler over the real pynvml and a stand-in NVML: values, rhythm, MIG, and a driver that
fails, hangs or is reloaded.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract.protocol import GPU_FIELDS, XID_SECONDS
from distconsole_agent.telemetry.gpu import (
    DRIVER_RETRY_SECONDS,
    GPU_RETRY_SECONDS,
    STALE_SECONDS,
    GpuSampler,
)
from distconsole_agent.telemetry.mapping import ListedProcess, ProcessTable, RunningRank
from fakes import nvml as fake_nvml
from fakes.shims import wait_until

pytestmark = pytest.mark.skipif(
    fake_nvml.compiler() is None, reason="no C compiler to build the stand-in NVML"
)

GIB = 2**30
PATIENT_SECONDS = 20.0
MEASURED = {*GPU_FIELDS} - {"gpu", "uuid", "name", "mig", "xid", "rank", "processes", "age_s"}
PER_SAMPLE = {
    "nvmlDeviceGetUtilizationRates": 1,
    "nvmlDeviceGetMemoryInfo_v2": 1,
    "nvmlDeviceGetClockInfo": 2,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 1,
    "nvmlDeviceGetFieldValues": 1,
    "nvmlEventSetWait_v2": 1,
}


class Bench:
    """A sampler, the stand-in under it, and one clock that both follow."""

    def __init__(self, fake: fake_nvml.FakeNvml) -> None:
        self.fake = fake
        self.now = 1000.0
        self.table = HostTable()
        self.sampler = GpuSampler(lambda: self.now, PATIENT_SECONDS, self.table)
        self.ranks: list[RunningRank] = []
        fake.set_gpu_count(2)
        self.pass_seconds(0)

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds
        self.fake.set_time(int(self.now * 1000))

    def sample(self, after_seconds: float = 0.0) -> list[dict[str, Any]]:
        self.pass_seconds(after_seconds)
        return self.sampler.sample(self.ranks)

    def sample_for(self, seconds: int) -> list[dict[str, Any]]:
        """Sample once a second and return the last entries."""
        return [self.sample(after_seconds=1.0) for _ in range(seconds)][-1]

    def sample_until(self, wanted: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Sample until ``wanted`` holds; real time passes, the clock stands."""
        found: list[list[dict[str, Any]]] = []

        def sampled() -> bool:
            found.append(self.sample())
            return wanted(found[-1])

        wait_until("the sample", sampled)
        return found[-1]


class HostTable(ProcessTable):
    """Pids as on a host where the pids of the driver are visible; ``parents`` decides kinship."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[int, int] = {}
        self.on_host = True

    def sees_host(self) -> bool:
        return self.on_host

    def look_up(self, pid: int, used_bytes: int | None) -> ListedProcess:
        if not self.on_host:
            return ListedProcess(pid, None, None, used_bytes, ())
        lineage = [pid]
        while lineage[-1] in self.parents:
            lineage.append(self.parents[lineage[-1]])
        return ListedProcess(pid, "ada", f"train {pid}", used_bytes, tuple(lineage))


def is_reading() -> bool:
    return any(thread.name == "gpu-reader" for thread in threading.enumerate())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with fake_nvml.installed(tmp_path) as fake:
        bench = Bench(fake)
        yield bench
        fake.release()
        bench.sampler.close(PATIENT_SECONDS)
        assert not is_reading()


def rank(number: int, pid: int, visible: str | None = None) -> RunningRank:
    return RunningRank(number, number, pid, visible)


def test_the_link_of_a_gpu_at_work_and_at_rest_is_told(bench: Bench) -> None:
    bench.fake.set(1, "GPU_PCIE_WIDTH", 8)
    bench.fake.set(1, "GPU_USER", 4711)
    assert [entry["pcie"] for entry in bench.sample()] == [[16, 16, 1, 4], [8, 16, 4, 4]]


def test_an_error_of_the_driver_is_told_for_some_seconds_with_its_gpu(bench: Bench) -> None:
    assert [entry["xid"] for entry in bench.sample()] == [None, None]
    bench.fake.set(1, "GPU_XID", 94)
    assert [entry["xid"] for entry in bench.sample(after_seconds=1.0)] == [None, 94]
    assert [entry["xid"] for entry in bench.sample_for(int(XID_SECONDS) - 1)] == [None, 94]
    assert [entry["xid"] for entry in bench.sample(after_seconds=1.0)] == [None, None]


def test_the_error_with_which_a_gpu_is_lost_is_told(bench: Bench) -> None:
    bench.sample()
    bench.fake.set(1, "GPU_XID", 79)
    bench.fake.lose(1)
    for _ in range(3):
        entries = bench.sample(after_seconds=1.0)
        assert [entry["xid"] for entry in entries] == [None, 79]
        assert entries[0]["util"] is not None, "the other GPU is well"


def test_without_events_there_is_no_error_and_all_else(bench: Bench) -> None:
    bench.fake.fail("nvmlEventSetCreate", 3)
    bench.fake.set(1, "GPU_XID", 94)
    entries = bench.sample()
    assert [entry["xid"] for entry in entries] == [None, None]
    assert entries[1]["util"] is not None


def test_entries_have_the_protocols_fields_and_the_drivers_values(bench: Bench) -> None:
    bench.fake.set_util(1, 73)
    bench.fake.set_ecc(1, 2)
    bench.fake.set_throttle(1, 0x4 | 0x40 | 0x1)
    first = bench.sample()
    entry = bench.sample(after_seconds=5.0)[1]
    assert tuple(entry) == GPU_FIELDS
    assert [one["gpu"] for one in first] == [0, 1]
    assert first[1]["power_w"] == 283.0, "no energy difference yet: the power of the moment"
    assert first[1]["nvlink_tx_s"] is None
    assert entry["uuid"] == "GPU-a0b0c001-fa4e-0000-0000-000000000001"
    assert entry["name"] == "NVIDIA H100 80GB HBM3 (fake)"
    assert entry["mig"] is None
    assert entry["util"] == 73
    assert 20 * GIB < entry["mem_used"] < 21 * GIB
    assert entry["mem_total"] == 80 * GIB
    assert 41 <= entry["temp_c"] <= 71
    assert entry["power_w"] == pytest.approx(260.0, rel=1e-3)
    assert entry["sm_clock_mhz"] == 1500 + 5 * 73
    assert entry["mem_clock_mhz"] == 2619
    assert entry["throttle"] == ["power_cap", "hw_thermal"]
    assert entry["ecc_uncorrected"] == 2
    assert entry["pcie_tx_s"] == pytest.approx(5.001e9, rel=1e-3)
    assert entry["pcie_rx_s"] == pytest.approx(5.0011e9, rel=1e-3)
    assert entry["nvlink_tx_s"] == pytest.approx(1001000 * 1024, rel=1e-3)
    assert entry["nvlink_rx_s"] == pytest.approx(1001100 * 1024, rel=1e-3)
    assert entry["rank"] is None
    assert entry["processes"] == []
    assert entry["age_s"] is None


def test_in_steady_state_no_process_is_listed_and_no_pcie_window_opened(bench: Bench) -> None:
    bench.ranks = [rank(0, 100), rank(1, 101)]
    bench.sample()
    before = bench.fake.all_calls()
    for _ in range(4):
        bench.sample(after_seconds=1.0)
    calls = {
        function: count - before.get(function, 0)
        for function, count in bench.fake.all_calls().items()
        if count != before.get(function, 0)
    }
    assert calls == {function: 2 * 4 * count for function, count in PER_SAMPLE.items()}


def test_over_two_minutes_each_tier_is_asked_at_its_own_pace(bench: Bench) -> None:
    for _ in range(120):
        bench.sample(after_seconds=1.0)
    calls = bench.fake.all_calls()
    assert calls["nvmlDeviceGetUtilizationRates"] == 2 * 120
    assert calls["nvmlDeviceGetTemperature"] == 2 * 24
    assert calls["nvmlDeviceGetTotalEccErrors"] == 2 * 2
    assert calls["nvmlDeviceGetMigMode"] == 2 * 2
    assert calls["nvmlDeviceGetUUID"] == calls["nvmlDeviceGetName"] == 2
    assert calls["nvmlDeviceGetComputeRunningProcesses_v3"] == 2 * 12
    assert calls["nvmlInitWithFlags"] == 1
    assert "nvmlDeviceGetPcieThroughput" not in calls


def test_what_a_gpu_does_not_have_is_null_and_asked_no_more(bench: Bench) -> None:
    bench.fake.set_unsupported_fields(0, [83, 186, 138, 139, 197, 198])
    for function in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTotalEccErrors"):
        bench.fake.fail(function, fake_nvml.NOT_SUPPORTED, gpu=0)
    entries = bench.sample_for(7)
    missing = {name for name in MEASURED if entries[0][name] is None}
    assert missing == {
        "util",
        "ecc_uncorrected",
        "pcie_rx_s",
        "pcie_tx_s",
        "nvlink_rx_s",
        "nvlink_tx_s",
    }
    assert entries[0]["power_w"] > 200, "without the fields the older call says it"
    assert not {name for name in MEASURED if entries[1][name] is None}
    assert bench.fake.calls("nvmlDeviceGetUtilizationRates") == 7 + 1


def test_an_older_driver_is_asked_for_memory_and_processes_in_its_own_way(bench: Bench) -> None:
    bench.fake.fail("nvmlDeviceGetMemoryInfo_v2", 13)
    entry = bench.sample()[0]
    assert entry["mem_used"] > 20 * GIB
    bench.sample(after_seconds=1.0)
    assert bench.fake.calls("nvmlDeviceGetMemoryInfo_v2") == 2, "once a GPU"


def test_a_pcie_counter_of_32_bits_gives_no_rate(bench: Bench) -> None:
    bench.fake.set_narrow_pcie_counters(0)
    entries = bench.sample_for(12)
    assert entries[0]["pcie_rx_s"] is None
    assert entries[1]["pcie_rx_s"] is not None


def test_a_driver_that_writes_past_the_fields_asked_for_hits_the_spare_entry(bench: Bench) -> None:
    bench.fake.touch_spare_field(0)
    entries = bench.sample_for(6)
    assert entries[0]["nvlink_tx_s"] == pytest.approx(1000000 * 1024, rel=1e-3)


def test_processes_are_named_and_those_below_a_rank_belong_to_it(bench: Bench) -> None:
    bench.ranks = [rank(0, 100), rank(1, 101)]
    bench.table.parents = {300: 200, 200: 100, 400: 1}
    bench.fake.set_processes(0, [(300, 5 * GIB, 0, 0), (400, GIB, 0, 0)])
    bench.fake.set_processes(1, [(101, 2**64 - 1, 0, 0)])
    entries = bench.sample()
    assert entries[0]["processes"] == [
        {"pid": 300, "user": "ada", "command": "train 300", "mem_used": 5 * GIB, "rank": 0},
        {"pid": 400, "user": "ada", "command": "train 400", "mem_used": GIB, "rank": None},
    ]
    assert entries[1]["processes"][0]["mem_used"] is None
    assert [entry["rank"] for entry in entries] == [0, 1]


def test_runs_and_a_watcher_share_one_reading_and_see_their_ranks(bench: Bench) -> None:
    bench.fake.set_processes(0, [(100, GIB, 0, 0)])
    bench.fake.set_processes(1, [(200, GIB, 0, 0)])
    mine, other = [rank(0, 100)], [rank(4, 200)]
    for _ in range(9):
        bench.pass_seconds(1.0)
        for ranks in (mine, other, []):
            bench.sampler.sample(ranks)
    bench.pass_seconds(1.0)
    of_mine, of_other, of_nobody = (bench.sampler.sample(one) for one in (mine, other, []))
    assert [entry["rank"] for entry in of_mine] == [0, None]
    assert [entry["rank"] for entry in of_other] == [None, 4]
    assert [entry["rank"] for entry in of_nobody] == [None, None]
    assert of_mine[1]["processes"][0]["rank"] is None, "of another run"
    assert of_other[0]["power_w"] == of_mine[0]["power_w"] == pytest.approx(250.0, rel=1e-3)
    assert bench.fake.calls("nvmlDeviceGetUtilizationRates") == 2 * 10
    calls = bench.fake.calls("nvmlDeviceGetComputeRunningProcesses_v3")
    assert calls == 2 * 2, "pynvml asks for the number first"


def test_a_rank_is_where_its_process_is_not_where_its_number_points(bench: Bench) -> None:
    bench.ranks = [rank(0, 100), rank(1, 101)]
    bench.fake.set_processes(0, [(101, GIB, 0, 0)])
    bench.fake.set_processes(1, [(100, GIB, 0, 0)])
    assert [entry["rank"] for entry in bench.sample()] == [1, 0]


def test_a_rank_is_on_no_gpu_until_its_process_is_listed(bench: Bench) -> None:
    bench.sample()
    bench.ranks = [rank(0, 100), rank(1, 101)]
    assert [entry["rank"] for entry in bench.sample(after_seconds=1.0)] == [None, None]
    bench.fake.set_processes(0, [(100, GIB, 0, 0)])
    bench.fake.set_processes(1, [(101, GIB, 0, 0)])
    assert [entry["rank"] for entry in bench.sample_for(10)] == [0, 1]


def test_a_rank_that_never_comes_to_a_gpu_is_put_on_none(bench: Bench) -> None:
    bench.ranks = [rank(0, 100)]
    entries = bench.sample_for(95)
    assert [entry["rank"] for entry in entries] == [None, None]


def test_in_a_container_ranks_are_mapped_by_their_variables_alone(bench: Bench) -> None:
    bench.table.on_host = False
    bench.ranks = [rank(0, 100), rank(1, 101)]
    bench.fake.set_processes(0, [(101, GIB, 0, 0)])
    entries = bench.sample_for(95)
    assert [entry["rank"] for entry in entries] == [0, 1]
    assert entries[0]["processes"] == [
        {"pid": 101, "user": None, "command": None, "mem_used": GIB, "rank": None}
    ]


def test_more_processes_than_the_first_buffer_holds_are_all_listed(bench: Bench) -> None:
    bench.fake.set_processes(0, [(1000 + at, GIB, 0, 0) for at in range(60)])
    bench.ranks = [rank(5, 1059)]
    entries = bench.sample()
    assert len(entries[0]["processes"]) == 32, "shown are a bounded number"
    assert entries[0]["rank"] == 5, "and mapped are all"


def test_instances_are_entries_of_their_own_with_the_gpus_heat_and_power(bench: Bench) -> None:
    bench.fake.set_mig(0, [(1, 0, 3, 3, 40960, 7 * GIB), (2, 0, 1, 1, 10240, GIB)])
    bench.fake.set_processes(0, [(100, GIB, 2, 0), (101, GIB, 1, 0)])
    bench.ranks = [rank(0, 100), rank(1, 101, visible="MIG-a0b0c000-fa4e-5000")]
    bench.sample()
    entries = bench.sample(after_seconds=5.0)
    assert [(entry["gpu"], entry["mig"]) for entry in entries] == [
        (0, "3g.40gb"),
        (0, "1g.10gb"),
        (1, None),
    ]
    first, second, whole = entries
    assert (first["mem_used"], first["mem_total"]) == (7 * GIB, 40 * GIB)
    assert (second["mem_used"], second["mem_total"]) == (GIB, 10 * GIB)
    assert first["util"] is None
    assert first["power_w"] == second["power_w"] == pytest.approx(250.0, rel=1e-3)
    assert first["temp_c"] == second["temp_c"]
    assert first["uuid"].startswith("MIG-")
    assert (first["rank"], second["rank"], whole["rank"]) == (1, 0, None)
    assert [one["pid"] for one in second["processes"]] == [100]
    assert [one["pid"] for one in first["processes"]] == [101]


def test_instances_made_later_are_found_within_a_minute(bench: Bench) -> None:
    assert len(bench.sample()) == 2
    bench.fake.set_mig(1, [(1, 0, 3, 3, 40960, 0)])
    assert [entry["mig"] for entry in bench.sample(after_seconds=60.0)] == [None, "3g.40gb"]


def test_a_lost_gpu_ages_and_goes_empty_while_the_others_go_on(bench: Bench) -> None:
    bench.sample()
    bench.fake.lose(0)
    lost, well = bench.sample(after_seconds=3.0)
    assert (lost["age_s"], well["age_s"]) == (3.0, None)
    assert lost["mem_total"] == 80 * GIB
    lost, well = bench.sample(after_seconds=STALE_SECONDS)
    assert lost["age_s"] == 3.0 + STALE_SECONDS
    assert not {name for name in MEASURED if lost[name] is not None}
    assert lost["uuid"] == "GPU-a0b0c000-fa4e-0000-0000-000000000000"
    assert well["util"] is not None


def test_a_lost_gpu_is_asked_again_only_now_and_then_and_comes_back(bench: Bench) -> None:
    bench.sample()
    bench.fake.lose(0)
    bench.sample(after_seconds=1.0)
    asked = bench.fake.calls("nvmlDeviceGetHandleByIndex_v2")
    for _ in range(20):
        bench.sample(after_seconds=1.0)
    assert bench.fake.calls("nvmlDeviceGetHandleByIndex_v2") == asked
    bench.fake.lose(0, False)
    assert bench.sample(after_seconds=GPU_RETRY_SECONDS)[0]["age_s"] is None


def test_a_gpu_that_was_lost_from_the_start_has_an_entry(bench: Bench) -> None:
    bench.fake.lose(0)
    lost, well = bench.sample()
    assert (lost["gpu"], lost["uuid"], lost["util"], lost["age_s"]) == (0, None, None, None)
    assert well["util"] is not None


def test_a_reloaded_driver_is_initialised_again(bench: Bench) -> None:
    bench.sample()
    bench.fake.reload_driver()
    assert [entry["age_s"] for entry in bench.sample(after_seconds=1.0)] == [1.0, 1.0]
    entries = bench.sample(after_seconds=DRIVER_RETRY_SECONDS)
    assert [entry["age_s"] for entry in entries] == [None, None]
    assert bench.fake.calls("nvmlInitWithFlags") == 2


def test_a_driver_that_is_not_there_yet_is_tried_again(bench: Bench) -> None:
    bench.fake.fail("nvmlInitWithFlags", 9)
    assert bench.sample() == []
    bench.fake.fail("nvmlInitWithFlags", 0)
    assert bench.sample(after_seconds=1.0) == []
    assert len(bench.sample(after_seconds=DRIVER_RETRY_SECONDS)) == 2


def test_a_passing_refusal_empties_one_value_for_one_sample(bench: Bench) -> None:
    bench.fake.fail("nvmlDeviceGetClockInfo", 999, gpu=0)
    assert bench.sample()[0]["sm_clock_mhz"] is None
    bench.fake.fail("nvmlDeviceGetClockInfo", 0, gpu=0)
    assert bench.sample(after_seconds=1.0)[0]["sm_clock_mhz"] is not None


def test_a_hung_driver_costs_one_deadline(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.sample()
    monkeypatch.setattr(bench.sampler, "_deadline_seconds", 0.05)
    bench.fake.hang_gpu("nvmlDeviceGetUtilizationRates", 1)
    well, hung = bench.sample(after_seconds=2.0)
    assert hung["age_s"] == 2.0
    assert hung["mem_total"] == 80 * GIB
    assert well["gpu"] == 0
    calls = bench.fake.all_calls()
    entries = [bench.sample(after_seconds=1.0) for _ in range(12)][-1]
    assert bench.fake.all_calls() == calls, "a driver that hangs is not asked more"
    assert [entry["age_s"] for entry in entries][1] == 14.0
    assert not {name for name in MEASURED if entries[1][name] is not None}
    bench.fake.hang_gpu("nvmlDeviceGetUtilizationRates", 1, False)
    bench.sample_until(lambda entries: all(entry["age_s"] is None for entry in entries))


def test_a_driver_hung_at_first_is_silent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.sampler, "_deadline_seconds", 0.02)
    bench.fake.hang("nvmlInitWithFlags")
    assert bench.sample() == []
    assert bench.sampler.driver(0.02) is None
    bench.fake.hang("nvmlInitWithFlags", False)
    assert len(bench.sample_until(lambda entries: len(entries) == 2)) == 2


def test_closing_does_not_wait_for_a_driver_that_hangs(bench: Bench) -> None:
    bench.sample()
    bench.fake.hang("nvmlShutdown")
    bench.sampler.close(0.05)
    bench.fake.hang("nvmlShutdown", False)
    wait_until("the end of the reader", lambda: not is_reading())


def test_a_reader_that_failed_for_a_reason_nobody_knew_starts_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.fake.set_processes(0, [(100, GIB, 0, 0)])
    reported: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_type))

    def fail(_pid: int, _used_bytes: int | None) -> ListedProcess:
        raise LookupError("as a bug would")

    with monkeypatch.context() as patch:
        patch.setattr(bench.table, "look_up", fail)
        bench.sample()
        wait_until("the report", lambda: reported == [LookupError])
    assert bench.sample(after_seconds=30.0)[0]["processes"][0]["command"] == "train 100"


def test_a_closed_sampler_starts_again(bench: Bench) -> None:
    bench.sample()
    bench.sampler.close(PATIENT_SECONDS)
    assert bench.fake.calls("nvmlShutdown") == 1
    assert len(bench.sample(after_seconds=1.0)) == 2


def test_the_driver_and_its_gpus_are_known_for_the_greeting(bench: Bench) -> None:
    driver = bench.sampler.driver(PATIENT_SECONDS)
    assert (driver.version, driver.gpus) == ("580.95.05", 2)


def test_without_nvml_no_entries_and_no_pynvml_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distconsole_agent.telemetry.nvml.LIBRARY", "libnvidia-ml-none.so.1")
    sampler = GpuSampler(deadline_seconds=PATIENT_SECONDS)
    try:
        assert sampler.sample() == []
        assert sampler.driver(PATIENT_SECONDS) is None
    finally:
        sampler.close()
