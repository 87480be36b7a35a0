"""What an operation holds while it works: the hosts, and a link to each that it asked for. It decides nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from distconsole.config import paths
from distconsole.config.hosts import resolve_cluster
from distconsole.config.load import load_config
from distconsole.config.schema import Config
from distconsole.errors import NodeError, UsageError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.outcome import Outcome
from distconsole.model.requests import Where
from distconsole.remote.fanout import as_done, fan_out
from distconsole.remote.link import Lost, NodeLink
from distconsole.remote.local_transport import LocalTransport
from distconsole.remote.transport import Clock, Transport

CONNECT_SECONDS = 120.0
"""Each node's deadline for everything up to the hand-shake, the push of the agent included."""


class Session:
    """Links to the hosts of one cluster, made when they are first asked for, and kept.

    May be used from any thread. Closing it closes the links; runs and agents go on.

    Args:
        config: Everything configured.
        cluster: The hosts.
        remote: How hosts are reached; SSH if not given.
        local: How this machine is reached; subprocesses if not given.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        *,
        remote: Transport | None = None,
        local: Transport | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.config = config
        self.cluster = cluster
        self._remote = remote
        self._local = local or LocalTransport(clock=clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._links: dict[HostName, NodeLink] = {}
        self._listeners: list[Lost] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def runs_dir(self) -> Path:
        """Where the stores of runs are."""
        return paths.runs_dir()

    def connect(self, hosts: Sequence[Host] | None = None) -> list[Outcome[NodeLink]]:
        """Connect to ``hosts`` (all of the cluster unless given) in parallel; every one is accounted for."""
        wanted = self.cluster.hosts if hosts is None else hosts
        return fan_out(wanted, self._connected, seconds=CONNECT_SECONDS, clock=self._clock)

    def connecting(self, hosts: Sequence[Host] | None = None) -> Iterator[Outcome[NodeLink]]:
        """As ``connect``, but each outcome as soon as it is known."""
        wanted = self.cluster.hosts if hosts is None else hosts
        return as_done(wanted, self._connected, seconds=CONNECT_SECONDS, clock=self._clock)

    def link(self, name: str) -> NodeLink:
        """Return the link to the host called ``name``, connected now if it was not.

        Raises:
            UsageError: if the cluster has no such host.
            NodeError: if it cannot be reached.
        """
        host = self.cluster.host(name)
        if host is None:
            known = ", ".join(each.name for each in self.cluster.hosts[:20])
            raise UsageError(f"there is no host '{name}' here", f"the hosts are: {known}")
        return self._connected(host)

    @property
    def links(self) -> Mapping[HostName, NodeLink]:
        """The links that stand, in the order of the cluster's hosts."""
        with self._lock:
            links = dict(self._links)
        return {
            host.name: links[host.name]
            for host in self.cluster.hosts
            if host.name in links and links[host.name].connected
        }

    def on_lost(self, listener: Lost) -> None:
        """Have ``listener`` called once for each link that is lost, on the link's reader thread."""
        with self._lock:
            self._listeners.append(listener)

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
        self._local.close()

    def _connected(self, host: Host) -> NodeLink:
        with self._lock:
            link = self._links.get(host.name)
            if link is None:
                link = NodeLink(host, self._transport(host), on_lost=self._lost, clock=self._clock)
                self._links[host.name] = link
            closed = self._closed
        if closed:
            link.close()
        link.connect()
        return link

    def _transport(self, host: Host) -> Transport:
        if host.local:
            return self._local
        if self._remote is None:
            # Imported late: paramiko takes a tenth of a second, which this machine alone does not need.
            from distconsole.remote.paramiko_transport import ParamikoTransport  # noqa: PLC0415

            self._remote = ParamikoTransport(self.cluster.ssh_config, self._clock)
        return self._remote

    def _lost(self, link: NodeLink, error: NodeError) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(link, error)


@contextmanager
def open_session(
    where: Where, config: Config | None = None, environ: Mapping[str, str] | None = None
) -> Iterator[Session]:
    """Give a session on the hosts of ``where``, connected to none yet, and close it afterwards.

    Raises:
        UsageError, ConfigError: if the hosts cannot be told.
    """
    config = load_config() if config is None else config
    cluster = resolve_cluster(where, config, os.environ if environ is None else environ)
    with Session(config, cluster) as session:
        yield session
