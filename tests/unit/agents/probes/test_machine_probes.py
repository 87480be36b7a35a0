"""What a node says of itself, read from files of other machines: ``tests/cases/facts``."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from distconsole.checks.facts.node import OsFacts
from distconsole_agent import probes
from distconsole_agent.probes import programs, scripts
from distconsole_agent.probes.host import kernel_log, machine, mounts
from distconsole_agent.probes.network import own_network
from distconsole_agent.probes.programs import Ended
from distconsole_agent.probes.standalone.reporting import LAST
from distconsole_agent.system.cgroup import tightest_limits
from suite.check_cases import cases_of_facts


def lay_out(files: dict[str, str], root: Path) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_a_machine_answers_every_fact_that_the_console_asks_of_it() -> None:
    assert machine.look(30.0).keys() >= set(OsFacts.__struct_fields__)


@pytest.mark.parametrize(
    "case", cases_of_facts("control_group"), ids=lambda case: str(case["name"])
)
def test_the_tightest_limit_of_control_groups_counts(case: dict[str, Any], tmp_path: Path) -> None:
    assert tightest_limits(lay_out(case["files"], tmp_path)) == case["facts"]


def test_memory_is_read_from_meminfo(tmp_path: Path) -> None:
    text = "MemTotal:  24684100 kB\nMemFree: 1 kB\nMemAvailable:  2048 kB\nSwapTotal: 0 kB\n"
    lay_out({"meminfo": text}, tmp_path)
    assert machine.memory(str(tmp_path)) == {
        "total": 24684100 * 1024,
        "available": 2048 * 1024,
        "swap_total": 0,
        "swap_free": None,
    }


def test_governors_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    base = "sys/devices/system/cpu/cpu"
    files = {f"{base}{number}/cpufreq/scaling_governor": "performance\n" for number in range(2)}
    files |= {f"{base}2/cpufreq/scaling_governor": "powersave\n"}
    files |= {f"{base}0/cpufreq/scaling_driver": "acpi-cpufreq\n"}
    assert machine.cpu_clocks(lay_out(files, tmp_path)) == {
        "governors": {"performance": 2, "powersave": 1},
        "driver": "acpi-cpufreq",
    }
    assert machine.cpu_clocks(str(tmp_path / "guest"))["governors"] == {}


@pytest.mark.parametrize(
    "case", cases_of_facts("kernel_log"), ids=lambda case: str(case["output"])[:40]
)
def test_lines_of_the_kernels_log_are_sorted_into_kinds(case: dict[str, Any]) -> None:
    events = kernel_log.events_of([(100.0, case["output"])], 160.0)
    if case["facts"] is None:
        assert events == []
        return
    (event,) = events
    assert {name: event[name] for name in case["facts"]} == case["facts"]
    assert (event["age_seconds"], event["count"], event["text"]) == (60.0, 1, case["output"])


def test_lines_of_one_kind_and_place_are_counted_and_the_last_one_told() -> None:
    lines = [(float(at), f"NVRM: Xid (PCI:0000:0f:00): 31, pid={at}") for at in range(5)]
    lines.append((7.0, "NVRM: Xid (PCI:0000:0e:00): 31, pid=9"))
    events = kernel_log.events_of(lines, 10.0)
    assert [(each["on"], each["count"], each["age_seconds"]) for each in events] == [
        ("0000:0f:00", 5, 6.0),
        ("0000:0e:00", 1, 3.0),
    ]


def test_a_server_that_answers_again_is_no_event() -> None:
    lines = [(1.0, "nfs: server a not responding, still trying"), (2.0, "nfs: server a OK")]
    assert kernel_log.events_of(lines, 3.0) == []


def test_a_kernel_record_is_read_and_what_programs_write_is_not_believed() -> None:
    record = "4,1234,5000000,-;NVRM: Xid (PCI:0000:0f:00): 79\n SUBSYSTEM=pci\n"
    assert kernel_log.parse_record(record) == (5.0, "NVRM: Xid (PCI:0000:0f:00): 79")
    assert kernel_log.parse_record("12,1,5,-;NVRM: Xid (PCI:0000:0f:00): 79") is None
    assert kernel_log.parse_record("noise") is None


def test_an_unreadable_log_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "KMSG", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = probes.run("kernel", {}, 5.0)
    assert (facts["source"], facts["events"]) == ("", [])
    assert "No such file" in facts["error"]


def test_without_kmsg_the_journal_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "journalctl"
    line = "[   12.500000] node1 kernel: nfs: server 10.0.0.9 not responding, still trying"
    program.write_text(f"#!/bin/sh\necho '{line}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(kernel_log, "KMSG", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = probes.run("kernel", {}, 10.0)
    assert facts["source"] == "journal"
    assert [(each["kind"], each["on"]) for each in facts["events"]] == [("nfs", "10.0.0.9")]


@pytest.mark.parametrize("case", cases_of_facts("rdma_ports"), ids=lambda case: str(case["name"]))
def test_rdma_ports_are_read_from_sysfs(case: dict[str, Any], tmp_path: Path) -> None:
    assert own_network.rdma_ports(lay_out(case["files"], tmp_path)) == case["facts"]


def test_a_machine_without_a_fabric_says_so() -> None:
    facts = probes.run("fabric", {}, 5.0)
    assert facts["switches"] == 0
    assert facts["fabric_manager"] is None


@pytest.mark.parametrize("case", cases_of_facts("mountinfo"), ids=lambda case: str(case["name"]))
def test_a_folder_lies_on_the_kernels_mount(case: dict[str, Any], tmp_path: Path) -> None:
    lay_out({"mountinfo": case["output"]}, tmp_path)
    every = mounts.read_mounts(str(tmp_path / "mountinfo"))
    for path, expected in case["places"].items():
        found = mounts.mount_of(path, every)
        assert [found.point, found.kind, found.source, found.network] == expected
    assert [mount.point for mount in mounts.network_mounts(every)] == case["network"]


def test_a_folder_says_where_it_lies_and_which_it_is(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/shm")
    facts = probes.run("os", {"paths": [str(link)]}, 10.0)["filesystems"]
    assert facts[str(link)]["mount"]["point"] == "/dev/shm"
    assert facts[str(link)]["inode"] == Path("/dev/shm").stat().st_ino
    assert facts["/dev/shm"]["mount"]["kind"] == "tmpfs"


def test_a_mount_that_hangs_is_told_and_one_that_is_closed_to_us_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = [mounts.Mount(f"/net/{name}", "nfs4", f"f:/{name}", "rw") for name in ("dead", "shut")]
    said = [["folder /net/shut", {"error": "Permission denied", "code": "EACCES"}]]

    def some(*_: Any, **__: Any) -> Ended:
        return Ended(None, "\n".join(map(json.dumps, said)), "", 1.0)

    monkeypatch.setattr(mounts, "read_mounts", lambda: table)
    monkeypatch.setattr(scripts, "run_program", some)
    found = {
        mount["point"]: mount["error"] for mount in probes.run("os", {}, 1.0)["network_mounts"]
    }
    assert found == {"/net/dead": "did not answer in 1.0 s", "/net/shut": ""}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        # Asleep for ever, as on a dead server.
        ("time.sleep(600)", {"error": "did not answer in"}),
        # Slow, but at work: on a busy machine that is no filesystem's fault.
        ("[None for _ in iter(lambda: time.monotonic() < due, False)]", {"real": "/a"}),
    ],
)
def test_a_filesystem_is_accused_where_it_sleeps_and_not_where_it_is_slow(
    answers: str, expected: dict[str, str]
) -> None:
    script = f"""
import sys, time
from distconsole_agent.probes.standalone import slow_calls
due = time.monotonic() + 0.7
def folder(path):
    {answers}
    return {{"real": path}}
slow_calls.folder = folder
slow_calls.main(300.0, "localhost", 0.2, ["/a"])
"""
    ended = programs.run_program([sys.executable, "-c", script], 300.0, last=LAST.encode())
    assert ended.exit_code == 0
    lines = ended.out.replace("\n\n", "\n").strip().splitlines()
    assert lines.pop() == LAST.strip()
    facts = dict(map(json.loads, lines))
    assert set(facts) == {"resolution", "fqdn", "folder /a"}
    (word,) = expected
    assert facts["folder /a"][word].startswith(expected[word])


def test_a_program_that_said_its_last_word_is_not_waited_for() -> None:
    argv = ["sh", "-c", "echo first; echo over; exec sleep 600"]
    ended = programs.run_program(argv, 600.0, last=b"over\n")
    assert (ended.exit_code, ended.out) == (0, "first\nover\n")


SESSION = "0::/user.slice/user-7.slice/session-3.scope"


@pytest.mark.parametrize(
    ("group", "said", "expected"),
    [
        (SESSION, 'b true\nas 0\nas 1 "root"', True),
        ("1:name=systemd:/user.slice/user-7.slice/session-c3.scope\n0::/", "b true\nas 0\nas 0", True),
        (SESSION, 'b true\nas 0\nas 2 "root" "ann"', False),
        (SESSION, 'b true\nas 1 "bob"\nas 0', False),
        (SESSION, "b false\nas 0\nas 0", False),
        (SESSION, "no bus", None),
        (SESSION, "", None),
        (SESSION, None, None),
        ("0::/system.slice/slurmstepd.scope/job_7", "b true\nas 0\nas 0", False),
    ],
)  # fmt: skip
def test_logind_says_what_ends_with_a_session(
    group: str, said: str | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out({"proc/self/cgroup": group + "\n"}, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    if said is not None:  # where there is no busctl, nothing is known
        fails = "#!/bin/sh\nexit 1\n"
        answers = f"#!/bin/sh\ncat <<'SAID'\n{said}\nSAID\n" if said else fails
        (tmp_path / "busctl").write_text(answers)
        (tmp_path / "busctl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert machine.ends_at_logout("ann", 5.0, str(tmp_path)) is expected
