"""A link to a real agent on embedded nodes: asking, streaming, losing, finding again."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from distconsole.config.schema import Config
from distconsole.errors import ConnectError, LinkLostError, NodeError, RequestError, UsageError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.outcome import Ok
from distconsole.rpc.pack import agent_pack
from distconsole.session import Session
from distconsole.ssh.embedded import EmbeddedCluster
from fakes.shims import gone
from fakes.sshd import wait_until


@pytest.fixture(scope="module")
def standing_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Two nodes for all tests that leave them as they are."""
    with EmbeddedCluster(2, folder=tmp_path_factory.mktemp("standing") / "e") as cluster:
        yield cluster


@pytest.fixture
def session(standing_nodes: EmbeddedCluster) -> Iterator[Session]:
    with Session(Config(), standing_nodes.cluster) as session:
        yield session


def test_every_host_is_connected_and_says_who_it_is(session: Session) -> None:
    outcomes = list(session.connect_all())
    assert [type(outcome) for outcome in outcomes] == [Ok, Ok]
    links = [session.link(name) for name in ("node1", "node2")]
    for link in links:
        assert link.hello.uid == os.getuid()
        assert link.hello.node_dir.endswith(f"{link.name}/node")
        offset = link.clock_offset()
        assert abs(offset.seconds) <= offset.rtt_seconds, "the clocks of one machine agree"
    pids = {link.hello.agent_pid for link in links}
    assert len(pids) == 2


def test_a_next_session_finds_the_agent(standing_nodes: EmbeddedCluster, session: Session) -> None:
    first = session.link("node1")
    with Session(Config(), standing_nodes.cluster) as again:
        second = again.link("node1")
        assert not second.pushed
        assert second.hello.agent_pid == first.hello.agent_pid


def test_a_damaged_file_is_sent_again(standing_nodes: EmbeddedCluster, session: Session) -> None:
    pid = session.link("node1").hello.agent_pid
    file = standing_nodes.folder / "node1/cache/distconsole" / agent_pack().name
    damaged = bytearray(agent_pack().content)
    damaged[-1000] ^= 1  # the size stays, and the agent runs on
    file.write_bytes(damaged)
    with Session(Config(), standing_nodes.cluster) as again:
        link = again.link("node1")
        assert link.pushed
        assert link.hello.agent_pid == pid
        assert link.hello.archive_sha256 == agent_pack().sha256
    assert file.read_bytes() == agent_pack().content


def test_an_agent_whose_files_are_gone_is_replaced(
    standing_nodes: EmbeddedCluster, session: Session
) -> None:
    pid = session.link("node1").hello.agent_pid
    cache = standing_nodes.folder / "node1/cache/distconsole"
    for file in [None, *cache.iterdir()]:  # all of them, then each
        for each in [file] if file else cache.iterdir():
            each.unlink()
        with Session(Config(), standing_nodes.cluster) as again:
            link = again.link("node1")
            assert link.hello.archive_sha256 == agent_pack().sha256
            assert link.request("probe", group="os", args={})["facts"]
            assert (link.hello.agent_pid == pid) == (file is not None and file.suffix == ".pyz")
            pid = link.hello.agent_pid


def test_an_absent_host_delays_and_spoils_nothing(standing_nodes: EmbeddedCluster) -> None:
    hosts = (*standing_nodes.cluster.hosts, Host(HostName("gone"), port=1))
    cluster = Cluster(hosts, standing_nodes.cluster.ssh_config)
    with Session(Config(), cluster) as session:
        gone, first, second = sorted(session.connect_all(), key=lambda outcome: outcome.host)
        assert isinstance(first, Ok)
        assert isinstance(second, Ok)
        assert isinstance(gone.error, ConnectError)
        with pytest.raises(UsageError):
            session.link("nobody")


def test_an_unknown_op_and_bad_arguments_are_refused(session: Session) -> None:
    link = session.link("node1")
    with pytest.raises(RequestError) as caught:
        link.request("fly")
    assert caught.value.code == "unknown_op"
    with pytest.raises(RequestError) as caught:
        link.request("stop", run="no-such-run", grace=1, reason="user")
    assert caught.value.code == "no_such_run"


def test_many_threads_share_one_link(session: Session) -> None:
    link = session.link("node1")
    answers: list[int] = []

    def ask() -> None:
        answers.extend(link.request("ping")["time_ns"] for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 160


def test_samples_stream_until_they_are_cancelled(session: Session) -> None:
    link = session.link("node1")
    with link.stream("watch", interval=0.2) as samples:
        first, second = next(samples), next(samples)
    assert first.node.mem_total == second.node.mem_total > 0
    assert list(samples) == []
    assert link.request("ping")["time_ns"] > 0


def test_a_power_cut_ends_every_stream_and_no_other_node(tmp_path: Path) -> None:
    with (
        EmbeddedCluster(2, folder=tmp_path / "e") as embedded,
        Session(Config(), embedded.cluster) as session,
    ):
        links = [session.link(name) for name in ("node1", "node2")]
        link, other = links
        samples = link.stream("watch", interval=60)
        embedded.power_cut("node1")
        with pytest.raises(LinkLostError):
            list(samples)
        with pytest.raises(LinkLostError):
            link.request("ping")
        assert not link.connected
        assert other.connected
        with pytest.raises(NodeError):
            link.connect()
        pids = [each.hello.agent_pid for each in links]
        assert not gone(pids[1])
    wait_until(lambda: all(map(gone, pids)))  # one that is ending has lost its mark already


def test_a_link_of_a_closed_session_stays_closed(standing_nodes: EmbeddedCluster) -> None:
    with Session(Config(), standing_nodes.cluster) as session:
        link = session.link("node1")
    with pytest.raises(LinkLostError):
        link.request("ping")
    with pytest.raises(LinkLostError):
        link.connect()


def test_a_killed_agent_is_replaced_over_the_same_connection(session: Session) -> None:
    link = session.link("node1")
    connection, before = link._connection, link.hello.agent_pid
    psutil.Process(before).kill()
    wait_until(lambda: not link.connected)
    link.connect()
    assert link.hello.agent_pid != before
    assert link._connection is connection


def test_a_cut_connection_is_made_again(server) -> None:
    host = Host(HostName("node"), node_dir=str(server.node_dir))
    with Session(Config(), Cluster((host,), str(server.ssh_config))) as session:
        link = session.link("node")
        before = link.hello.agent_pid
        server.cut_sessions()
        wait_until(lambda: not link.connected)
        link.connect()
        assert link.hello.agent_pid == before
        assert link.request("ping")["time_ns"] > 0


def test_an_embedded_node_is_real_ssh(standing_nodes: EmbeddedCluster) -> None:
    command = ["ssh", "-F", str(standing_nodes.ssh_config), "node2", "cat; echo err >&2; exit 5"]
    done = subprocess.run(command, input=b"in", capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (5, b"in", b"err\n")


def test_an_embedded_node_has_one_user(standing_nodes: EmbeddedCluster, tmp_path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "k"], check=True
    )
    text = standing_nodes.ssh_config.read_text()
    config = tmp_path / "config"
    config.write_text(text.replace(str(standing_nodes.folder / "id_ed25519"), str(tmp_path / "k")))
    done = subprocess.run(
        ["ssh", "-F", str(config), "-o", "BatchMode=yes", "node1", "true"],
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 255
    assert b"Permission denied (publickey)" in done.stderr
