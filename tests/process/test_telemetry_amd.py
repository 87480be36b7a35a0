"""The GPU sampler over the real binding of libamd_smi and a stand-in library, with a sysfs beside it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent import probes
from distconsole_agent.contract.protocol import GPU_FIELDS
from distconsole_agent.probes.gpu import gpus
from distconsole_agent.telemetry import amd
from distconsole_agent.telemetry import gpu as gpu_module
from distconsole_agent.telemetry.gpu import DRIVER_RETRY_SECONDS, Driver, GpuSampler
from distconsole_agent.telemetry.mapping import RunningRank
from distconsole_agent.telemetry.nvml import Nvml, NvmlMissingError
from fakes import amd as fake_amd
from fakes import nvml as fake_nvml

pytestmark = pytest.mark.skipif(
    fake_nvml.compiler() is None, reason="no C compiler to build the stand-in libamd_smi"
)
PATIENT_SECONDS = 20.0


class Bench:
    """A sampler over the stand-in, and its clock."""

    def __init__(self, fake: fake_amd.FakeAmd) -> None:
        self.fake, self.now = fake, 1000.0
        self.sampler = GpuSampler(lambda: self.now, PATIENT_SECONDS)

    def sample(self, after_seconds: float = 0.0, **ranks: Any) -> list[dict[str, Any]]:
        self.now += after_seconds
        return self.sampler.sample([RunningRank(**ranks)] if ranks else [])


def refuse() -> Nvml:
    raise NvmlMissingError("no NVIDIA GPU")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    fake = fake_amd.FakeAmd(tmp_path)
    monkeypatch.setattr(amd, "FOLDERS", (f"{fake_amd.build()}/",))
    monkeypatch.setenv(fake_amd.CONTROL_VARIABLE, str(fake.control))
    monkeypatch.setattr(amd, "SYSFS", str(fake.sysfs))
    monkeypatch.setattr(gpu_module.Nvml, "open", refuse)
    bench = Bench(fake)
    yield bench
    bench.sampler.close()


def test_a_gpu_of_amds_has_the_fields_of_any_other(bench: Bench) -> None:
    bench.fake.set("util.0", 97)
    bench.fake.set("ecc.1", 3)
    bench.sample()
    bench.fake.set("energy.0", 65_534_000)  # of 15.259 uJ: 1000 J
    first, second = bench.sample(2.0)
    assert set(first) == set(GPU_FIELDS)
    assert (first["gpu"], second["gpu"]) == (0, 1)
    assert first["name"] == "AMD Instinct MI300X OAM"
    assert first["uuid"] != second["uuid"]
    assert (first["util"], first["temp_c"], first["power_w"]) == (97, 47, 500.0)
    assert (first["sm_clock_mhz"], first["mem_clock_mhz"]) == (2100, 1300)
    assert (first["mem_used"], first["mem_total"]) == (300 << 20, 192 << 30)
    assert (first["pcie"], second["pcie"]) == ([16, 16, 4, 5], [8, 16, 4, 5])
    assert (first["ecc_uncorrected"], second["ecc_uncorrected"]) == (0, 3)
    assert first["throttle"] is None
    assert bench.sampler.driver(PATIENT_SECONDS) == Driver("6.12.12", 2)


def test_rocm_7_has_longer_texts_and_the_same_numbers(bench: Bench) -> None:
    before = bench.sample()
    bench.fake.set("rocm", 7)
    bench.sampler.close(PATIENT_SECONDS)
    after = bench.sample(1.0)
    assert [gpu["name"] for gpu in after] == [gpu["name"] for gpu in before]


def test_processes_and_ranks_are_found_by_the_kernel(bench: Bench) -> None:
    bench.fake.compute(os.getpid(), 1, 5 << 30)
    ranks = {"rank": 7, "local_rank": 0, "pid": os.getpid(), "visible_devices": None}
    first, second = bench.sample(**ranks)
    assert first["processes"] == []
    (process,) = second["processes"]
    assert (process["pid"], process["mem_used"]) == (os.getpid(), 5 << 30)


def test_what_a_gpu_does_not_have_is_unknown_and_hides_nothing(bench: Bench) -> None:
    for function in ("amdsmi_get_clock_info", "amdsmi_get_gpu_total_ecc_count"):
        bench.fake.set(f"fail.{function}", 2)
    bench.fake.set("util.1", 0xFFFF)
    first, second = bench.sample()
    assert (first["sm_clock_mhz"], first["ecc_uncorrected"], second["util"]) == (None, None, None)
    assert first["mem_total"] == 192 << 30


def test_a_driver_that_is_gone_is_asked_again_later(bench: Bench) -> None:
    bench.fake.set("fail.amdsmi_init", 34)
    assert bench.sample() == []
    bench.fake.set("fail.amdsmi_init", 0)
    assert bench.sample(1.0) == []
    assert len(bench.sample(DRIVER_RETRY_SECONDS)) == 2


def test_a_library_without_a_gpu_is_a_node_without_gpus(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(amd, "SYSFS", str(tmp_path / "nothing"))
    bench.fake.set("fail.amdsmi_init", 34)
    assert bench.sample() == []
    with pytest.raises(NvmlMissingError):
        amd.Amd.open()
    assert bench.sampler.driver(PATIENT_SECONDS) is None


def test_the_check_lists_the_gpus_of_amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_amd.FakeAmd(tmp_path)
    fake.set("used.1", 7 << 30)
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    # Another test may have loaded the stand-in of NVIDIA's library in this process.
    monkeypatch.setattr(gpus, "LIBRARY", "libnone.so")
    facts = probes.run("gpu", {}, 20.0)
    assert (facts["present"], facts["vendor"], facts["count"]) == (True, "AMD", 2)
    assert [gpu["name"] for gpu in facts["gpus"]] == ["AMD Instinct MI300X OAM"] * 2
    assert [gpu["mem_used"] for gpu in facts["gpus"]] == [300 << 20, 7 << 30]
