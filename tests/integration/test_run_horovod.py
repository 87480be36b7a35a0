"""Real Horovod over Gloo on two hosts of the testbed that cannot ssh to each other: what is its alone.

What every launcher does is in ``test_every_launcher``.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.errors import PlanError
from distconsole.model.requests import Run, Where
from distconsole.model.run_events import EndState, LogLine, PlanMade, RunFinding
from distconsole.session import open_session
from suite.driving import Operator
from suite.lean_torch import LEAN_TORCH
from suite.remains import gone
from testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.horovod]

TRAIN = f"""{LEAN_TORCH}
import horovod.torch as hvd
hvd.init()
rank = hvd.rank()

def total():
    return int(hvd.allreduce(torch.tensor([10 ** rank]), op=hvd.Sum).item())
"""


def request(bed: Testbed, folder: Path, text: str, setup: str | None = None) -> Run:
    path = folder / "train.py"
    path.write_text(TRAIN + text)
    where = Where(ssh_config=str(bed.ssh_config), hosts="node1:2,node2:1", setup=setup)
    return Run(str(path), where=where)


WAIT = """
import os, time
print("store", os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
print(total(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
hvd.shutdown()
hvd.init()
print("again", total())
"""

ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as sock:
    sock.settimeout(15)
    sock.sendall(b"PUT /" + sys.argv[3].encode() + b"/0 HTTP/1.1\\r\\nContent-Length: 5\\r\\n\\r\\nfalse")
    try:
        print(sock.recv(12).decode() or "nothing")
    except ConnectionResetError:
        print("nothing")
"""


def test_ranks_sum_on_hosts_of_different_size_and_another_user_gets_no_answer_from_their_store(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    """One name on loopback, among lower addresses, is in nobody's way."""
    go, node2 = tmp_path / "go", standing_bed.hosts[1]
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    asked = replace(request(standing_bed, tmp_path, WAIT), env=(("GO", str(go)),))
    node2.wrong_etc_hosts()
    try:
        with Operator(asked, open_session) as run:
            told = run.see(LogLine, lambda event: event.line.startswith("store ")).line
            run.see(LogLine, lambda event: event.line.startswith("111 "))
            for host in standing_bed.hosts[:2]:
                for user, scope, answer in (
                    (nobody, "global", "nothing"),
                    ([], "own", "HTTP/1.0 200"),
                ):
                    words = [*user, sys.executable, "-c", ASK, *told.split()[1:], scope]
                    found = host.exec(words, cwd="/").stdout.strip()
                    assert found == answer, (host.name, scope)
            go.touch()
            end = run.ended()
    finally:
        node2.mend_etc_hosts()
    assert (end.state, end.exit_code) == (EndState.SUCCEEDED, 0), run.lines()
    assert run.of(PlanMade)[0].launcher == "horovod"
    lines = {(e.rank, e.host, e.line) for e in run.of(LogLine) if e.stream == "out"}
    assert {each for each in lines if not each[2].startswith("store")} == {
        (0, "node1", "111 3 0 2 0 2"),
        (1, "node1", "111 3 1 2 0 1"),
        (2, "node2", "111 3 0 1 1 2"),
        *((rank, host, "again 111") for rank, host in enumerate(("node1", "node1", "node2"))),
    }
    refused = [found.summary for found in run.of(RunFinding) if found.check == "run.stranger"]
    assert len(refused) == 2, refused
    assert not gone(*standing_bed.hosts)


def test_names_that_mean_loopback_are_refused_before_anything_starts(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    for host in standing_bed.hosts:
        host.wrong_etc_hosts()
    try:
        with Operator(request(standing_bed, tmp_path, ""), open_session) as run:
            with pytest.raises(PlanError, match="node1: its own name means 127") as caught:
                run.finish()
            assert not run.of(PlanMade)
    finally:
        for host in standing_bed.hosts:
            host.mend_etc_hosts()
    assert f"{standing_bed.hosts[0].address} in /etc/hosts on node1" in caught.value.hint


def test_a_name_without_an_address_is_refused_though_the_ranks_are_on_one_host(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    asked = request(standing_bed, tmp_path, "")
    alone = replace(asked, where=replace(asked.where, hosts="node1:2"))
    node1 = standing_bed.hosts[0]
    node1.wrong_etc_hosts("127.0.0.1 localhost\n")
    try:
        with (
            Operator(alone, open_session) as run,
            pytest.raises(PlanError, match="node1: its own name has no address") as caught,
        ):
            run.finish()
    finally:
        node1.mend_etc_hosts()
    assert f"{node1.address} in /etc/hosts on node1" in caught.value.hint


def test_a_host_without_horovod_is_named(standing_bed: Testbed, tmp_path: Path) -> None:
    node2 = standing_bed.hosts[1]
    asked = request(standing_bed, tmp_path, "", setup="export PYTHONPATH=~/hides")
    hides = node2.path("/run/home/hides")
    hides.mkdir()
    (hides / "horovod.py").write_text("raise ImportError('none here')")
    with (
        Operator(asked, open_session) as run,
        pytest.raises(PlanError, match="Horovod is missing on node2") as caught,
    ):
        run.finish()
    assert "check --only horovod" in caught.value.hint
