"""The hosts of one operation, a link to each that it asks for, and the same thing asked of several at once."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from distconsole import errors
from distconsole.config.hosts import resolve_cluster
from distconsole.config.load import load_config
from distconsole.config.schema import Config
from distconsole.errors import ConsoleError, UnreachableError, UsageError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName, count_text
from distconsole.model.outcome import Failed, Ok, Outcome, failed
from distconsole.model.requests import Where
from distconsole.rpc.fanout import iter_outcomes
from distconsole.ssh.asking import PERSON
from distconsole.ssh.transport import Connection, Transport

if TYPE_CHECKING:
    from distconsole.rpc.link import NodeLink
    from distconsole.ssh.choosing import ChosenTransport

T = TypeVar("T")

CONNECT_SECONDS = 120.0
"""Each node's deadline for everything up to the hand-shake, the push of the agent included."""

OWN_DESCRIPTORS, HOST_DESCRIPTORS = 256, 8
"""What the program has open for itself, and for a host: sockets and pipes of SSH, and those of a login."""

ANSWER_SECONDS = 2.0
"""What the answer of a probe takes beside its own time."""

NAMED_FAILURES = 8
"""Hosts that an error names one by one."""


_NOT_REACHED = (
    errors.ResolveError,
    errors.ConnectError,
    errors.AuthError,
    errors.UnknownHostKeyError,
    errors.ChangedHostKeyError,
    errors.LinkLostError,
)


class Session:
    """Links to the hosts of one cluster, made when they are first asked for, and kept.

    May be used from any thread. Closing it closes the links; runs and agents go on.

    Args:
        remote: How hosts are reached; SSH if not given.
    """

    def __init__(
        self, config: Config, cluster: Cluster, *, remote: Transport | None = None
    ) -> None:
        self.config = config
        self.cluster = cluster
        self._remote = remote
        self._local: Transport | None = None
        self._lock = threading.Lock()
        self._links: dict[HostName, NodeLink] = {}
        self._begun: dict[HostName, Future[NodeLink]] = {}
        self._closed = False
        _allow_descriptors(len(cluster.hosts))
        self.reached_in: dict[HostName, float] = {}
        """Host -> the seconds of its first login and of its agent's start, without what a person took to answer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """Begin to connect to every host; who asks for its link hears what became of it; raises ConfigError."""
        for host in self.cluster.hosts:
            # Here, because two threads would only take turns at importing SSH.
            self._transport(host)
        if (chosen := self._chosen_transport()) is not None:
            chosen.prepare(self.cluster.hosts)
        begun: dict[HostName, Future[NodeLink]] = {h.name: Future() for h in self.cluster.hosts}
        self._begun = dict(begun)
        threading.Thread(
            target=self._connect_begun, args=(begun,), name="connect", daemon=True
        ).start()
        # While the nodes have yet to answer: what is needed only once they have.
        import_module("distconsole.rpc.link")
        from distconsole.rpc.pack import agent_pack  # noqa: PLC0415

        agent_pack()

    def connect_all(self) -> Iterator[Outcome[NodeLink]]:
        """Connect to every host in parallel; yield each outcome as soon as it is known."""
        return iter_outcomes(self.cluster.hosts, self._find_link, seconds=CONNECT_SECONDS)

    def link(self, name: str) -> NodeLink:
        """Return the link to host ``name``, connected if need be; raises UsageError or NodeError."""
        host = self.cluster.host(name)
        if host is None:
            known = ", ".join(each.name for each in self.cluster.hosts[:20])
            raise UsageError(f"there is no host '{name}' here", f"the hosts are: {known}")
        return self._find_link(host)

    def has_link(self, host: Host) -> bool:
        with self._lock:
            link = self._links.get(host.name)
        return link is not None and link.connected

    @property
    def entered(self) -> frozenset[HostName]:
        with self._lock:
            links = dict(self._links)
        return frozenset(name for name, link in links.items() if link.logged_in)

    def log_in(self) -> None:
        """Log in where ssh may ask a person, now that the terminal is there to ask in.

        A host that cannot be reached says so to whoever needs it. Raises ConfigError.
        """
        remote = self._chosen_transport()
        if remote is None:
            return
        hosts = [each for each in self.cluster.hosts if not each.local]
        asking = remote.who_may_ask(hosts)
        if not asking:
            return
        from distconsole.rpc.link import NodeLink  # noqa: PLC0415 - see begin

        hosts_by_name = {host.name: host for host in asking}
        for outcome in iter_outcomes(asking, remote.connect, seconds=CONNECT_SECONDS):
            if isinstance(outcome, Ok):
                host = hosts_by_name[outcome.host]
                self._links[host.name] = NodeLink(host, remote, outcome.value)

    def part(self, cluster: Cluster) -> Session | None:
        """Return a session on some of these hosts, which shares the links, or None if it cannot be.

        It is this one's: it needs no closing, and ends with this one. The hosts may have other slots.
        """
        own = {host.name: host for host in self.cluster.hosts}
        same = all(
            host.name in own and replace(own[host.name], slots=host.slots) == host
            for host in cluster.hosts
        )
        if not same or cluster.ssh_config != self.cluster.ssh_config:
            return None
        for host in cluster.hosts:
            self._transport(host)  # shared like the links
        shared = copy(self)
        shared.cluster = cluster
        return shared

    def close(self) -> None:
        """Close every link; may be called repeatedly."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
            remote = self._remote
        for link in links:
            link.close()
        if remote is not None:
            remote.close()
        if self._local is not None:
            self._local.close()

    def _connect_begun(self, begun: Mapping[HostName, Future[NodeLink]]) -> None:
        waited = [host for host in self.cluster.hosts if host.name in begun]
        try:
            for outcome in iter_outcomes(waited, self._reach_and_link, seconds=CONNECT_SECONDS):
                if isinstance(outcome, Failed):
                    begun[outcome.host].set_exception(outcome.error)
                else:
                    begun[outcome.host].set_result(outcome.value)
        except BaseException as error:  # noqa: BLE001 - raised where the links are asked for
            for each in begun.values():
                if not each.done():
                    each.set_exception(error)

    def _find_link(self, host: Host) -> NodeLink:
        with self._lock:
            begun = self._begun.pop(host.name, None)
        if begun is None:
            return self._make_link(host)
        link = begun.result()
        link.connect()  # it may have been lost since
        return link

    def _reach_and_link(self, host: Host) -> NodeLink:
        """As ``_make_link``; the host is reached while the code for what comes then is still imported."""
        began = PERSON.working_seconds()
        return self._make_link(host, self._transport(host).connect(host), began)

    def _make_link(
        self, host: Host, connection: Connection | None = None, began: float | None = None
    ) -> NodeLink:
        from distconsole.rpc.link import NodeLink  # noqa: PLC0415 - see begin

        began = PERSON.working_seconds() if began is None else began
        with self._lock:
            link = self._links.get(host.name)
            if link is None:
                link = NodeLink(host, self._transport(host), connection)
                self._links[host.name] = link
            elif connection is not None:
                connection.close()
            closed = self._closed
        if closed:
            link.close()
        link.connect()
        self.reached_in.setdefault(host.name, PERSON.working_seconds() - began)
        return link

    def _chosen_transport(self) -> ChosenTransport | None:
        """Return the SSH of the hosts; None where there is no such host, or another way was given."""
        from distconsole.ssh.choosing import ChosenTransport  # noqa: PLC0415 - see _transport

        remote = next(
            (self._transport(host) for host in self.cluster.hosts if not host.local), None
        )
        return remote if isinstance(remote, ChosenTransport) else None

    def _transport(self, host: Host) -> Transport:
        if host.local:
            if self._local is None:
                from distconsole.ssh.transport import LocalTransport  # noqa: PLC0415

                self._local = LocalTransport()
            return self._local
        if self._remote is None:
            # Imported late: SSH takes a tenth of a second, which this machine alone does not need.
            from distconsole.ssh.choosing import ChosenTransport  # noqa: PLC0415

            self._remote = ChosenTransport(self.cluster.ssh_config)
        return self._remote


@contextmanager
def open_session(where: Where, config: Config | None = None) -> Iterator[Session]:
    """Give a session on the hosts of ``where``, unconnected, and close it; raises UsageError, ConfigError."""
    config = load_config() if config is None else config
    cluster = resolve_cluster(where, config, os.environ)
    with Session(config, cluster) as session:
        yield session


class SessionAhead:
    """Lends, once, a session that began to connect before the operation that needs it was even loaded.

    Args:
        where: The hosts that will be asked for; for others it opens a session as ``open_session``.
    """

    def __init__(self, where: Where, config: Config) -> None:
        self._where = where
        self._config = config
        self._session: Session | None = None
        # What is wrong is told by the operation, when it comes to it.
        with suppress(ConsoleError):
            cluster = resolve_cluster(where, config, os.environ)
            if all(host.local for host in cluster.hosts):
                # Quickly reached, and what is refused before it starts no agent here.
                return
            session = Session(config, cluster)
            session.begin()
            self._session = session

    def __call__(self, where: Where, /) -> AbstractContextManager[Session]:
        """Return the session on the hosts of ``where``; raises UsageError or ConfigError."""
        session = self._session
        if session is None or where != self._where:
            return open_session(where, self._config)
        self._session = None
        return session

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def _allow_descriptors(hosts: int) -> None:
    """Have as many descriptors allowed as ``hosts`` need, as far as the hard limit goes; often there are but 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OWN_DESCRIPTORS + HOST_DESCRIPTORS * hosts
    if resource.RLIM_INFINITY not in (soft, hard):
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has limits beside the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def each_outcome(
    session: Session,
    hosts: Sequence[HostName],
    act: Callable[[NodeLink], T],
    seconds: float | None = None,
) -> Iterator[Outcome[T]]:
    """Yield what ``act`` gave on each host, as it comes; a link that is down is connected first.

    ``act`` is done on a thread of its own for each host, and raises ``NodeError`` where the node
    cannot; ``seconds`` is each node's deadline, and None leaves it to ``act``.
    """
    wanted = [host for name in hosts if (host := session.cluster.host(name)) is not None]
    return iter_outcomes(
        wanted, lambda host: act(session.link(host.name)), seconds=seconds, linked=session.has_link
    )


def on_every(
    session: Session,
    hosts: Sequence[HostName],
    act: Callable[[NodeLink], T],
    seconds: float | None = None,
) -> list[Outcome[T]]:
    """Return what ``each_outcome`` yields, in the order of ``hosts``."""
    done = {outcome.host: outcome for outcome in each_outcome(session, hosts, act, seconds)}
    return [done[name] for name in hosts if name in done]


def request_every(
    session: Session,
    hosts: Sequence[HostName],
    op: str,
    seconds: float,
    own: Mapping[HostName, Mapping[str, Any]] | None = None,
    /,
    **arguments: Any,
) -> list[Outcome[dict[str, Any]]]:
    """Return each host's answer to the request ``op``, within ``seconds``; ``own`` has a host's own arguments."""

    def ask(link: NodeLink) -> dict[str, Any]:
        extra = own.get(link.host.name, {}) if own else {}
        return link.request(op, seconds, **arguments, **extra)

    return on_every(session, hosts, ask)


def connect_all(session: Session, cluster: Cluster | None = None) -> None:
    """Connect to every host of ``cluster``, or of the session; raises UnreachableError."""
    hosts = [host.name for host in (cluster or session.cluster).hosts]
    outcomes = on_every(session, hosts, lambda _link: None)
    failures = failed(outcomes)
    reached = any(not isinstance(each.error, _NOT_REACHED) for each in failures)
    what = "used" if reached else "reached"
    origin = f" (hosts of {session.cluster.origin})" if session.cluster.origin else ""
    count = count_text(len(hosts), "host")
    require_all(outcomes, f"{len(failures)} of {count}{origin} cannot be {what}")


def probe(link: NodeLink, group: str, seconds: float, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a node finds out of ``group`` within ``seconds``; nothing where that means nothing; raises NodeError."""
    given = {**args, "timeout": seconds}
    answer = link.request("probe", timeout=seconds + ANSWER_SECONDS, group=group, args=given)
    facts = answer.get("facts")
    return facts if isinstance(facts, dict) else {}


def require_all(outcomes: Sequence[Outcome[T]], doing: str) -> list[T]:
    """Return the values if every node succeeded; raises UnreachableError, naming the others and why."""
    failures = failed(outcomes)
    if failures:
        named, more = failures[:NAMED_FAILURES], len(failures[NAMED_FAILURES:])
        texts = [each.text for each in named]
        texts += [f"and {count_text(more, 'more host')}"] if more else []
        hints = dict.fromkeys(each.error.hint for each in named if each.error.hint)
        raise UnreachableError(f"{doing}: {'; '.join(texts)}", "\n".join(hints))
    return [outcome.value for outcome in outcomes if isinstance(outcome, Ok)]
