"""What NCCL writes into a run's folder becomes a note: once, when the ways are settled."""

from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.journal.nccl_logs import FILES, QUIET_SECONDS, active_ports, describe_ways
from distconsole_agent.probes.collectives.engine_words import read_nccl
from fakes.drained_run import Run

SAID = """\
n1:7:9 [0] NCCL INFO NCCL version 2.27.6+cuda13.0
n1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA
n1:7:9 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels
"""


def ask_nccl(run: Run) -> None:
    run.collector.close()
    run.spec = run.spec._replace(env={"NCCL_DEBUG_FILE": f"{FILES}%h-%p"})
    run.journal.close()
    run.open()


def told(run: Run) -> list[dict[str, Any]]:
    return [note for note in run.entries("note") if note["check"] == "run.nccl"]


def test_the_ways_are_told_once_when_they_are_settled(run: Run) -> None:
    ask_nccl(run)
    run.start(0)
    log = run.folder / "nccl-n1-7"
    log.write_text(SAID[:200])
    run.tick(1.0)
    with log.open("a") as file:
        file.write(SAID[200:])
    run.tick(1.0)
    assert told(run) == []
    for _ in range(3):
        run.tick(QUIET_SECONDS)
    (note,) = told(run)
    assert note["severity"] == "info"
    assert note["summary"] == (
        "NCCL 2.27.6+cuda13.0 goes by NET/IB/GDRDMA between hosts over mlx5_0:1/IB, mlx5_1:1/IB; "
        "P2P/CUMEM within; 16 channels"
    )


def test_a_run_that_ends_early_still_tells_them(run: Run) -> None:
    ask_nccl(run)
    run.start(0)
    (run.folder / "nccl-n1-7").write_text(SAID)
    run.shim("ended", state="succeeded", exit_code=0, seconds=1.0, first_failure=None)
    run.tick(0.1)
    assert len(told(run)) == 1


def test_files_of_a_run_that_did_not_ask_are_not_read(run: Run) -> None:
    run.start(0)
    (run.folder / "nccl-n1-7").write_text(SAID)
    for _ in range(3):
        run.tick(QUIET_SECONDS)
    assert told(run) == []


@pytest.mark.parametrize(
    ("way", "ports", "severity", "words"),
    [
        ("NET/Socket/0", ["mlx5_0:1"], "warn", "though InfiniBand is there"),
        ("NET/Socket/0", [], "info", "NET/Socket between hosts"),
        ("NET/IB/0", ["mlx5_0:1"], "warn", "without GPUDirect RDMA"),
        ("NET/IB/0/GDRDMA", ["mlx5_0:1"], "info", "NET/IB/GDRDMA"),
    ],
)
def test_a_slow_way_is_a_warning(way: str, ports: list[str], severity: str, words: str) -> None:
    facts = read_nccl(f"n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via {way}\n")
    assert facts is not None
    note = describe_ways([facts], ports)
    assert (note.severity, words in note.summary) == (severity, True)


def test_only_ports_that_work_count(tmp_path: Path) -> None:
    for device, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        (tmp_path / device / "ports/1").mkdir(parents=True)
        (tmp_path / device / "ports/1/state").write_text(f"{state}\n")
    assert active_ports(str(tmp_path)) == ["mlx5_0:1"]
