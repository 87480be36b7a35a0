"""A session that begins to connect early: each host is tried once, and its outcome told where it is asked for.
What is said when some nodes could not. It reaches no node.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.config.schema import Config
from distconsole.errors import ConfigError, ConnectError, PythonError, UnreachableError, UsageError
from distconsole.model import requests as ask
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.outcome import Failed
from distconsole.model.requests import Where
from distconsole.operations.sessions import lasting, lend, say_alone, say_late
from distconsole.session import Session, SessionAhead, open_session, require_all
from distconsole.ssh.transport import Connection
from distconsole.tui.session import ConsoleSession


def cluster(
    *names: str, local: str = "", name: str | None = None, ssh_config: str | None = None
) -> Cluster:
    hosts = tuple(Host(HostName(host), local=host == local) for host in names)
    return Cluster(hosts, ssh_config, name)


@pytest.mark.parametrize(
    ("where", "on", "kept"),
    [
        (Where(hosts="a:2,b"), cluster("a", "b"), Where(hosts="a:2,b")),
        (Where(), cluster("a", "b", name="lab"), Where(cluster="lab")),
        (Where(python="/py"), cluster("n1", "n2", local="n1"), Where(hosts="n1,n2", python="/py")),
        (Where(), cluster("here", local="here"), Where()),
        (Where(hosts="a"), cluster("a", ssh_config="/c"), Where(hosts="a", ssh_config="/c")),
    ],
)
def test_what_is_kept_with_a_run_means_its_hosts_elsewhere_too(
    where: Where, on: Cluster, kept: Where
) -> None:
    assert lasting(where, on) == kept


def test_this_machine_alone_is_said_where_nobody_named_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = cluster("here", local="here")
    (told,) = say_alone("runs on", open_session, Where(), here)
    assert "this machine only" in told
    assert "--hosts" in told
    assert say_alone("runs on", open_session, Where(hosts="here"), here) == []
    assert say_alone("runs on", open_session, Where(), cluster("a", "b", name="lab")) == []
    assert say_alone("runs on", lend(Session(Config(), here)), Where(), here) == []
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert say_alone("runs on", open_session, Where(), here) == []


def test_files_are_kept_by_their_whole_name(cwd: Path) -> None:
    assert lasting(Where(hostfile="hosts"), cluster("a")) == Where(hostfile=str(cwd / "hosts"))


def test_a_run_from_the_prompt_is_kept_with_the_hosts_of_the_sitting() -> None:
    started: list[ask.Request] = []

    def perform(request: ask.Request, *_: object) -> list[object]:
        started.append(request)
        return []

    session = ConsoleSession(Where(hosts="a,b:2", ssh_config="/c"), perform=perform)  # type: ignore[arg-type]
    for where in (Where(), Where(python="/py"), Where(hosts="c")):
        session.start(ask.Run("train.py", where=where), "run train.py").join(10)
    assert [request.where for request in started if isinstance(request, ask.Run)] == [
        Where(hosts="a,b:2", ssh_config="/c"),
        Where(hosts="a,b:2", ssh_config="/c", python="/py"),
        Where(hosts="c", ssh_config="/c"),
    ]


def test_a_host_whose_login_all_have_waited_for_is_told_once() -> None:
    session = Session(Config(), cluster("a", "b", "c", name="lab"))
    took = {HostName("a"): 0.4, HostName("b"): 0.5, HostName("c"): 12.04}
    session.reached_in.update(took)
    (told,) = say_late(session, session.cluster)
    assert told == "c took 12.0 s to log in and start its agent, the others 0.5 s"
    assert say_late(session, session.cluster) == []
    session.reached_in.update({**took, HostName("b"): 11.0})
    assert say_late(session, session.cluster) == [], "most were"


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


@pytest.mark.parametrize("message", ["gpu1: no python3", "no python3"])
def test_a_host_is_named_once(message: str) -> None:
    with pytest.raises(UnreachableError) as told:
        require_all([Failed(HostName("gpu1"), PythonError(message, "hint"))], "1 of 1 failed")
    assert told.value.message == "1 of 1 failed: gpu1: no python3"
