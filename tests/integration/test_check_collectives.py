"""``check`` launches real torch ranks over two hosts, verifies them, and says who did not come."""

import json
from pathlib import Path
from typing import Any

import pytest

from suite.console import perform
from suite.lean_torch import LEAN_SITE
from suite.obstacles import mpirun_is, obstacle
from testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.torch_ranks]


def check(bed: Testbed, *words: str, hosts: str | None = None) -> tuple[int, dict[str, Any], str]:
    """Run ``distconsole check --json``; return exit code, report and stderr."""
    code, out, err = perform(bed, "check", "--json", *words, hosts=hosts)
    return code, json.loads(out) if out else {}, err


COUNTS_IMPORTS = """
import sys
from pathlib import Path
def note(event, words):
    if event == "import" and words[0] == "torch":
        with Path(__file__).with_name("imports").open("a") as file:
            file.write("torch\\n")
sys.addaudithook(note)
"""


def test_healthy_hosts_verify_their_collectives_and_exit_0(
    lean_bed: Testbed, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(COUNTS_IMPORTS + LEAN_SITE)
    slots = ",".join(f"{name}:{2 - index}" for index, name in enumerate(lean_bed.host_names))
    setup = f"export PYTHONPATH={tmp_path}"
    code, report, stderr = check(lean_bed, "--setup", setup, hosts=slots)
    assert (tmp_path / "imports").read_text() == "torch\n" * 2, "a host imports torch once"
    trouble = [found for found in report["findings"] if found["severity"] in ("warn", "fail")]
    assert (code, trouble) == (0, []), stderr
    assert set(report) >= {"ok", "hosts", "findings", "network", "collectives", "seconds"}
    assert report["ok"] is True
    assert {(pair["from"], pair["to"]) for pair in report["network"]["pairs"]} == {
        ("node1", "node2"),
        ("node2", "node1"),
    }
    largest = max(report["collectives"], key=lambda entry: entry["bytes"])
    assert (largest["launcher"], largest["backend"], largest["op"]) == (
        "torch",
        "gloo",
        "all_reduce",
    )
    assert (largest["size"], largest["ranks"], largest["bytes"]) == (3, [0, 1, 2], 4 << 20)
    assert largest["correct"] is True
    assert largest["busbw_gbs"] == pytest.approx(4 / 3 * largest["algbw_gbs"])
    engines = {(entry["launcher"], entry["backend"]) for entry in report["collectives"]}
    horovod = set() if obstacle("horovod") else {("horovod", "gloo")}
    assert engines == {("torch", "gloo"), ("mpi", "mpi"), *horovod}
    assert all(entry["correct"] for entry in report["collectives"])
    ways = {(way["engine"], way["from"], way["to"]): way for way in report["ways"]}
    assert ways["Gloo", "node1", "node2"]["devices"] == ["eth0"]
    if mpirun_is("Open MPI"):
        assert ways["Open MPI", "node2", "node1"]["via"] == ["tcp"]
        assert ways["Open MPI", "node1", "node1"]["via"] in (["vader"], ["sm"])  # of 4 and 5
    for host in lean_bed.hosts:
        runs = host.exec(["sh", "-c", "ls /tmp/distconsole-*/runs /dev/shm/distconsole-*"])
        assert [line for line in runs.stdout.split() if not line.endswith(":")] == []
        left = [" ".join(each.argv) for each in host.processes()]
        assert not [each for each in left if "distconsole-rank" in each or "/dev/fd/" in each]


@pytest.mark.horovod
def test_a_rank_that_horovod_waits_for_in_vain_is_named(lean_bed: Testbed) -> None:
    setup = '[ "${HOROVOD_RANK-}" != 1 ] || exit 7'
    code, report, stderr = check(lean_bed, "--only", "horovod.init", "--setup", setup)
    (found,) = report["findings"]
    assert (code, found["check"], found["hosts"]) == (1, "horovod.init", ["node2"]), stderr
    assert "rank 1 (node2) did not join the group of 2" in found["summary"]
    assert "rank 1 (node2): not started, exit code 7" in found["seen"]


def test_a_rank_whose_torch_does_not_import_is_named(lean_bed: Testbed, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libcudart.so.12: gone')\n")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.13.0+cpu'\n")
    setup = f"[ $(hostname) != node2 ] || export PYTHONPATH={tmp_path}"
    code, report, stderr = check(
        lean_bed, "--only", "coll.init", "--setup", setup, "--budget", "60"
    )
    (found,) = [each for each in report["findings"] if each["check"] == "coll.init"]
    assert code == 1, stderr
    assert found["hosts"] == ["node2"]
    assert "rank 1 (node2) did not join the group of 2" in found["summary"]
    assert "libcudart.so.12: gone" in found["summary"]


@pytest.mark.horovod
def test_bench_collectives_sweeps_what_horovod_has(lean_bed: Testbed) -> None:
    words = ("--launcher", "horovod", "--ops", "all_reduce,reduce,barrier", "--sizes", "4,64K")
    code, out, err = perform(lean_bed, "bench", "collectives", "--json", *words)
    assert code == 0, err
    event = json.loads(out)
    found = {(each["op"], each["bytes"]): each["correct"] for each in event["collectives"]}
    assert found == {("all_reduce", 4): True, ("all_reduce", 65536): True, ("barrier", 0): True}
    lacking = {each["op"] for each in event["verified"] if each["unsupported"]}
    assert "reduce" in lacking
    assert (event["launcher"], event["backend"], event["size"]) == ("horovod", "gloo", 2)


def test_hosts_that_cannot_be_reached_exit_3(lean_bed: Testbed) -> None:
    for host in lean_bed.hosts:
        host.deny_keys()
    code, report, _ = check(lean_bed, "--level", "quick")
    assert code == 3
    assert [found["check"] for found in report["findings"]] == ["ssh.auth", "ssh.auth"]
    assert report["ok"] is False


def test_a_failure_exits_1_and_a_word_that_means_nothing_2(lean_bed: Testbed) -> None:
    for host in lean_bed.hosts:
        host.wrong_etc_hosts()
    code, report, _ = check(lean_bed, "--level", "quick", "--only", "os.hostname_bindable")
    assert code == 1
    assert [found["hosts"] for found in report["findings"]] == [["node1"], ["node2"]]
    code, _, stderr = check(lean_bed, "--only", "nett")
    assert code == 2
    assert "--only nett" in stderr


def test_a_variable_set_on_one_host_is_found_by_its_ranks_and_written_down(
    bed: Testbed, tmp_path: Path
) -> None:
    bed.hosts[1].set_environment({"GLOO_SOCKET_IFNAME": "^lo,docker"})
    files = ("--junit", str(tmp_path / "j.xml"), "--emit-hostfile", str(tmp_path / "h"))
    code, report, _ = check(bed, "--level", "quick", "--only", "env", "--nproc", "4", *files)
    assert code == 1
    found = {each["check"]: each for each in report["findings"]}
    assert found["env.syntax"]["hosts"] == ["node2"]
    assert "GLOO_SOCKET_IFNAME" in found["env.syntax"]["summary"]
    assert (tmp_path / "h").read_text() == "node1 slots=4\n"
    assert "<failure message=" in (tmp_path / "j.xml").read_text()
