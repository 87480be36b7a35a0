"""A session that begins to connect early: each host is tried once, and its outcome told where it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.config.schema import Config
from distconsole.errors import ConfigError, ConnectError, UsageError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.requests import Where
from distconsole.session import Session, SessionAhead
from distconsole.ssh.transport import Connection

HOSTS = tuple(Host(HostName(name)) for name in ("a", "b"))


class Refusing:
    """A transport that reaches nobody, once it is let; the one seam there is."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.go_on = threading.Event()
        self.closed = False

    def connect(self, host: Host) -> Connection:
        self.tried.append(host.name)
        assert self.go_on.wait(10)
        raise ConnectError(f"{host.name} is off")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def transport() -> Iterator[Refusing]:
    transport = Refusing()
    yield transport
    transport.go_on.set()


def test_each_host_is_tried_once_and_its_error_told_to_who_asks(transport: Refusing) -> None:
    with Session(Config(), Cluster(HOSTS), remote=transport) as session:
        session.begin()
        transport.go_on.set()
        for name in ("b", "a"):
            with pytest.raises(ConnectError, match=f"{name} is off"):
                session.link(name)
        assert sorted(transport.tried) == ["a", "b"]
        with pytest.raises(ConnectError):
            session.link("a")
        assert sorted(transport.tried) == ["a", "a", "b"]


def test_who_asks_while_it_is_being_tried_waits_for_that(transport: Refusing) -> None:
    with Session(Config(), Cluster(HOSTS), remote=transport) as session:
        session.begin()
        threading.Timer(0.0, transport.go_on.set).start()
        assert [type(each.error) for each in session.connect_all()] == [ConnectError] * 2  # type: ignore[union-attr]
        assert sorted(transport.tried) == ["a", "b"]


def test_what_breaks_unexpectedly_is_raised_where_the_links_are_asked_for() -> None:
    class Broken(Refusing):
        def connect(self, host: Host) -> Connection:
            raise ConfigError("no such file")

    with Session(Config(), Cluster(HOSTS), remote=Broken()) as session:
        session.begin()
        for name in ("a", "b"):
            with pytest.raises(ConfigError, match="no such file"):
                session.link(name)


def test_it_is_lent_once_and_only_for_its_hosts(
    monkeypatch: pytest.MonkeyPatch, transport: Refusing
) -> None:
    begun: list[Session] = []
    monkeypatch.setattr(Session, "begin", lambda session: begun.append(session))
    where = Where(hosts="a,b")
    ahead = SessionAhead(where, Config())
    assert len(begun) == 1
    with ahead(Where(hosts="c")) as other:
        assert other is not begun[0]
    with ahead(where) as lent:
        assert lent is begun[0]
    with ahead(where) as again:
        assert again is not begun[0]


def test_what_is_wrong_with_the_hosts_is_told_when_they_are_asked_for(tmp_path: Path) -> None:
    where = Where(hostfile=str(tmp_path / "missing"))
    ahead = SessionAhead(where, Config())
    with pytest.raises((UsageError, ConfigError)), ahead(where):
        pass
    ahead.close()


def test_this_machine_alone_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Session] = []
    monkeypatch.setattr(Session, "begin", lambda session: begun.append(session))
    SessionAhead(Where(), Config()).close()
    assert begun == []
