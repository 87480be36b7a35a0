from pathlib import Path
from typing import Any

import msgspec
import pytest

from distconsole.checks.engine.baseline import (
    MAX_CHANGES,
    Baseline,
    Baselines,
    differences,
    marks_of,
)
from distconsole.config.hosts import demo_cluster
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.reports import ChangeReport, CheckOutcome, CheckReport, HostReport
from distconsole.text.check import changes_text
from fakes.blank import blank

T0 = 1_790_000_000.0


def facts(**groups: Any) -> dict[str, Any]:
    return {
        "os": {
            "kernel": "6.1",
            "limits": {"nofile": [1024, 4096]},
            "memory": {"total": 64, "available": 5},
            "sysctl": {"boot_id": "b1", "somaxconn": "4096", "clocksource": "tsc"},
            "filesystems": {"/tmp": {"free": 3}},
        },
        "torch": {"present": True, "version": "2.13.0", "cuda": None},
        "python": {"packages": {"numpy": "2.4.6"}, "seconds": 0.3},
        "net": {
            "interfaces": {"eth0": {"mtu": 9000, "state": "up"}, "veth12": {"mtu": 1500}},
            "addresses": [
                {"iface": "eth0", "address": "10.0.0.1", "prefix": 24},
                {"iface": "eth0", "address": "fd00::1", "prefix": 64},
                {"iface": "eth0", "address": "fe80::1", "prefix": 64},
                {"iface": "docker0", "address": "172.17.0.1", "prefix": 16},
            ],
        },
        "gpu": {"gpus": [{"uuid": "GPU-1", "mem_total": 80, "mem_used": 3, "processes": [1]}]},
        "clock": {"offset_seconds": 0.1},
        **groups,
    }


def test_what_lasts_is_kept_and_what_changes_by_itself_is_not() -> None:
    marks = marks_of(facts())
    assert marks["os.limits.nofile"] == "[1024, 4096]"
    assert marks["torch.version"] == "2.13.0"
    assert marks["python.packages.numpy"] == "2.4.6"
    assert marks["net.interfaces.eth0.mtu"] == "9000"
    assert marks["net.addresses.10.0.0.1.prefix"] == "24"
    assert marks["net.addresses.fd00::1.iface"] == "eth0"
    assert marks["gpu.gpus.GPU-1.mem_total"] == "80"
    assert [mark for mark in marks if "sysctl" in mark] == ["os.sysctl.clocksource"]
    for passing in ("fe80", "veth", "docker"):
        assert not [mark for mark in marks if passing in mark], passing
    for passing in ("free", "available", "boot_id", "state", "mem_used", "processes", "seconds"):
        assert not [mark for mark in marks if mark.endswith(f".{passing}")], passing
    assert not [mark for mark in marks if mark.startswith("clock")]


def test_a_real_host_has_nothing_of_the_node_of_a_demo_that_is_called_alike(
    tmp_path: Path, home: Path
) -> None:
    demo, lab = tmp_path / "demo" / "ssh_config", Cluster((Host(HostName("node1")),), name="lab")
    Baselines.of(demo_cluster(demo, ["node1"])).keep("node1", facts(), T0)
    assert Baselines.of(lab).read("node1") is None
    Baselines.of(lab).keep("node1", facts(), T0 + 1)
    kept = Baselines.of(demo_cluster(demo, ["node1"])).read("node1")
    assert kept.t == T0


def test_a_change_names_what_was_and_what_is(tmp_path: Path) -> None:
    baselines = Baselines(tmp_path / "baselines")
    for host in ("a", "b"):
        baselines.keep(host, facts(), T0)
    older = facts(torch={"present": True, "version": "2.12.1"}, python={"packages": {"timm": "1"}})
    t, changes = baselines.since({"a": facts(), "b": older})
    assert t == T0
    assert changes == (
        ChangeReport(host="b", what="python.packages.numpy", was="2.4.6", now=""),
        ChangeReport(host="b", what="python.packages.timm", was="", now="1"),
        ChangeReport(host="b", what="torch.version", was="2.13.0", now="2.12.1"),
    )


def test_what_was_not_looked_at_is_neither_a_change_nor_forgotten(tmp_path: Path) -> None:
    baselines = Baselines(tmp_path)
    baselines.keep("a", facts(), T0)
    quick = {"os": facts()["os"]}
    assert baselines.since({"a": quick})[1] == ()
    baselines.keep("a", quick, T0 + 9)
    assert baselines.since({"a": facts()})[1] == ()
    assert baselines.since({"a": facts(torch={"version": "3"})})[0] == T0 + 9


def test_what_a_quicker_level_does_not_ask_is_neither_a_change_nor_forgotten(
    tmp_path: Path,
) -> None:
    baselines = Baselines(tmp_path)
    loaded = {"present": True, "version": "0.28.1", "built": {"mpi": True, "gloo": True}}
    baselines.keep("a", facts(horovod=loaded), T0)
    quick = facts(horovod={"present": True, "version": "0.28.1"})
    assert baselines.since({"a": quick})[1] == ()
    baselines.keep("a", quick, T0 + 9)
    without = facts(horovod={**loaded, "built": {"mpi": False, "gloo": True}})
    assert [change.what for change in baselines.since({"a": without})[1]] == ["horovod.built.mpi"]


def test_launches_are_compared_with_themselves_however_long_their_names(tmp_path: Path) -> None:
    script = "/shared/" + "project/" * 30 + "train.py"
    for launcher in ("mpi", "torchrun"):
        of_launch = Baselines(tmp_path, f"{launcher} {script}")
        of_launch.keep("a", {"env": {"variables": {"FOR": launcher}}}, T0)
    mpi = Baselines(tmp_path, f"mpi {script}")
    assert mpi.since({"a": {"env": {"variables": {"FOR": "mpi"}}}})[1] == ()


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    Baselines(tmp_path).keep("a", facts(), T0)
    assert list(tmp_path.iterdir()) == []


def test_hosts_that_failed_come_first_and_one_that_was_set_up_anew_is_bounded(
    tmp_path: Path,
) -> None:
    baselines = Baselines(tmp_path)
    for host in ("a", "b"):
        baselines.keep(host, facts(), T0)
    many = facts(python={"packages": {f"p{index}": "1" for index in range(500)}})
    changes = baselines.since({"a": many, "b": many}, ["b"])[1]
    assert [change.host for change in changes] == ["b"] * MAX_CHANGES + ["a"] * MAX_CHANGES


def test_a_variable_is_new_where_there_was_none_before(tmp_path: Path) -> None:
    baselines = Baselines(tmp_path)
    baselines.keep("a", facts(env={"variables": {}}), T0)
    now = facts(env={"variables": {"NCCL_DEBUG": "INFO"}})
    assert [change.what for change in baselines.since({"a": now})[1]] == [
        "env.variables.NCCL_DEBUG"
    ]


def test_what_an_older_baseline_knew_nothing_of_has_not_changed() -> None:
    older = Baseline(t=T0, marks={"os.kernel": "6.1", "python.packages.numpy": "2.4.6"})
    now = facts(python={"packages": {"numpy": "2.5"}, "executable": "/usr/bin/python3"})
    assert [change.what for change in differences("a", older, now)] == ["python.packages.numpy"]


@pytest.mark.parametrize("text", [b"", b"{", b'{"t": "x"}', b"[1]"])
def test_a_broken_baseline_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.json").write_bytes(text)
    baselines = Baselines(tmp_path)
    assert baselines.read("a") is None
    assert baselines.since({"a": facts()}) == (None, ())


def test_a_host_has_a_file_of_its_own_whatever_it_is_called(tmp_path: Path) -> None:
    baselines = Baselines(tmp_path)
    baselines.keep("../x/y", {"os": {"kernel": "1"}}, T0)
    assert [path.name for path in tmp_path.iterdir()] == ["..%2Fx%2Fy.json"]
    (change,) = baselines.since({"../x/y": {"os": {"kernel": "2"}}})[1]
    assert (change.what, change.was, change.now) == ("os.kernel", "1", "2")


def test_a_folder_that_cannot_be_made_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("somebody's")
    baselines = Baselines(tmp_path / "file" / "below")
    baselines.keep("a", facts(), T0)
    assert baselines.read("a") is None
    assert (tmp_path / "file").read_text() == "somebody's"


def report(*changes: ChangeReport, ok: bool = False, last: float | None = T0) -> CheckReport:
    return blank(
        CheckReport,
        ok=ok,
        outcome=CheckOutcome.HEALTHY if ok else CheckOutcome.FAILED,
        hosts={"a": HostReport(reachable=True, facts={})},
        seconds=1.0,
        changes=changes,
        last_passed=last,
        cells={"a": {"os.kernel": "passed"}} if changes else {},
    )


def test_the_first_line_of_a_failure_says_what_changed() -> None:
    changes = [
        ChangeReport(host="b", what=f"os.limits.l{index}", was="1", now="") for index in range(6)
    ]
    first, line = changes_text(report(*changes))
    assert first.startswith("changed since the last green check, 2026-09-")
    assert line.startswith("  b: os.limits.l0 1 -> nothing, ")
    assert line.endswith(", and 2 more")
    assert "nothing that was looked at has changed" in changes_text(report(*changes), ["a"])[0]
    away = {**report().hosts, "c": HostReport(reachable=False, facts={})}
    assert changes_text(msgspec.structs.replace(report(*changes), hosts=away), ["a"]) == []
    assert changes_text(report(*changes, ok=True)) == []
    assert changes_text(report(last=None)) == []
    assert changes_text(report()) == []  # nothing was looked at
