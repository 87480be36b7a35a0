"""What is wrong with one host of two: it is told by its own error, and the other host works."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from distconsole.config.schema import Config
from distconsole.errors import (
    AuthError,
    ChangedHostKeyError,
    ConnectError,
    LinkLostError,
    NodeError,
    PythonError,
    StorageError,
)
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.outcome import Ok
from distconsole.rpc import conversation
from distconsole.rpc.link import NodeLink
from distconsole.session import Session
from fakes.sshd import wait_until
from testbed import HOME, Testbed
from testbed import Host as BedHost

pytestmark = pytest.mark.testbed

Fault = Callable[[BedHost], object]


@pytest.fixture(scope="module")
def new_bed(session_bed: Testbed) -> Iterator[Testbed]:
    """Two hosts on which no console has been before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Testbed, "fill_cache", None)
        session_bed.reset()
        yield session_bed
    session_bed.reset()


@pytest.fixture
def bed(new_bed: Testbed, nothing_left: None) -> Iterator[Testbed]:
    """Two hosts, of which the second is as if just switched on."""
    yield new_bed
    new_bed.reset(new_bed.hosts[1])


FAULTS: dict[str, tuple[Fault, type[NodeError], str]] = {
    "no keys": (BedHost.deny_keys, AuthError, "accepts none of our keys"),
    "no sshd": (BedHost.stop_sshd, ConnectError, "refused"),
    "another host key": (BedHost.change_host_key, ChangedHostKeyError, "not the one"),
    "no python": (lambda host: host.use_python(None), PythonError, "python3"),
    "a full /tmp": (BedHost.full_disk, StorageError, "/tmp"),
    "a full home": (lambda host: host.full_disk(HOME), StorageError, "No space left"),
    "a /tmp without exec": (BedHost.no_exec, StorageError, "noexec"),
    "a read-only home": (lambda host: host.read_only(HOME), StorageError, "Read-only"),
    "a read-only /tmp": (BedHost.read_only, StorageError, "/tmp"),
}


def connects(link: NodeLink) -> bool:
    with suppress(NodeError):
        link.connect()
    return link.connected


def cluster(bed: Testbed, folder: Path, silent: str = "") -> Cluster:
    """The bed's hosts; one that is going to be silent is given up sooner than a person would like."""
    config = folder / "ssh_config"
    hurried = f"Host {silent}\nConnectTimeout 2\nHost *\n" if silent else ""
    config.write_text(hurried + Path(bed.ssh_config).read_text())
    return Cluster(tuple(Host(HostName(host.name)) for host in bed.hosts), str(config))


@contextmanager
def session(bed: Testbed, folder: Path, silent: str = "") -> Iterator[Session]:
    with Session(Config(), cluster(bed, folder, silent)) as opened:
        yield opened


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_error_and_stays_alone(bed: Testbed, tmp_path: Path, name: str) -> None:
    fault, kind, words = FAULTS[name]
    fault(bed.hosts[1])
    with session(bed, tmp_path) as opened:
        healthy, faulty = sorted(opened.connect_all(), key=lambda outcome: outcome.host)
        assert healthy.value.request("ping")["time_ns"] > 0
    assert type(faulty.error) is kind, faulty.error.message
    assert words in faulty.error.message
    assert faulty.error.hint


def test_a_silent_host_takes_its_own_timeout_only(bed: Testbed, tmp_path: Path) -> None:
    bed.hosts[1].link_down()
    with session(bed, tmp_path, bed.hosts[1].name) as opened:
        first, second = sorted(opened.connect_all(), key=lambda outcome: outcome.host)
    assert isinstance(first, Ok)
    assert isinstance(second.error, ConnectError)


def test_a_silent_cut_is_noticed_and_mended(
    bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "PING_SECONDS", 0.3)
    monkeypatch.setattr(conversation, "LOST_SECONDS", 1.0)
    with session(bed, tmp_path) as opened:
        opened.link("node1")
        link = opened.link("node2")
        agent = link.hello.agent_pid
        bed.hosts[1].cut_from_console()
        with pytest.raises(LinkLostError):
            link.request("ping", 20)
        bed.hosts[1].mend_to_console()
        wait_until(lambda: connects(link), 30)
        assert link.hello.agent_pid == agent
        assert link.request("ping")["time_ns"] > 0
        assert opened.link("node1").connected


def test_a_host_that_was_switched_off_and_on_is_found_again(
    bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "PING_SECONDS", 0.3)
    monkeypatch.setattr(conversation, "LOST_SECONDS", 1.0)
    with session(bed, tmp_path) as opened:
        link = opened.link("node2")
        before = time.time()
        bed.power_cut(bed.hosts[1])
        wait_until(lambda: not link.connected, 30)
        bed.hosts[1].power_on()
        wait_until(lambda: connects(link), 60)
        assert link.pushed
        assert link.request("ping")["time_ns"] > before * 1e9
