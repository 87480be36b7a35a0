"""Sessions of operations, and their first steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import ClassVar

from distconsole import errors
from distconsole.config.paths import expand_home
from distconsole.model.cluster import EMBEDDED, Cluster
from distconsole.model.events import Narration
from distconsole.model.names import HostName
from distconsole.model.requests import Where
from distconsole.runs.pace import find_late
from distconsole.session import Session

SessionSource = Callable[[Where], AbstractContextManager[Session]]
"""Opens a session on the hosts of ``where`` and closes it afterwards, or lends one: the full-screen console's own."""


def at_hand(sessions: SessionSource) -> bool:
    """Whether ``sessions`` lends an open session, whose hosts are asked even if the request names none."""
    return bool(getattr(sessions, "at_hand", False))


def lend(session: Session) -> SessionSource:
    """Return a source that lends ``session``, whatever hosts are named, and leaves it open."""
    return _Lent(session)


@dataclass(frozen=True, slots=True)
class _Lent:
    session: Session
    at_hand: ClassVar[bool] = True

    def __call__(self, _where: Where, /) -> AbstractContextManager[Session]:
        return nullcontext(self.session)


def say_alone(does: str, sessions: SessionSource, where: Where, cluster: Cluster) -> list[str]:
    """Return the note that a verb ``does`` something to this machine alone, if the request names no hosts; else nothing."""
    named = where.names_hosts or at_hand(sessions) or "SLURM_JOB_ID" in os.environ
    named = named or bool(cluster.origin) or not all(host.local for host in cluster.hosts)
    return [] if named else [f"{does} this machine only: no hosts are named (--hosts gpu1,gpu2)"]


def say_late(session: Session, cluster: Cluster) -> list[str]:
    """Return once which hosts of ``cluster`` took much longer to be reached than the others: all waited for them."""
    known = [host.name for host in cluster.hosts if host.name in session.reached_in]
    took = {name: session.reached_in.pop(name) for name in known}
    late, usual = find_late(took)
    return [
        f"{name} took {took[name]:.1f} s to log in and start its agent, the others {usual:.1f} s"
        for name in late
    ]


def hosts_of_run(session: Session, hosts: Sequence[str]) -> list[HostName]:
    """Return a run's hosts as the session knows them; raises UsageError if the session is on other hosts."""
    missing = [host for host in hosts if session.cluster.host(HostName(host)) is None]
    if missing:
        raise errors.UsageError(
            f"the run is on {', '.join(missing)}, which are not among the hosts given",
            f"give --hosts {','.join(hosts)}",
        )
    return [HostName(host) for host in hosts]


def absolute(where: Where) -> Where:
    """Return ``where`` with its files named absolutely, so that it means the same elsewhere."""
    files = {"hostfile": where.hostfile, "ssh_config": where.ssh_config}
    return replace(
        where, **{name: path and str(expand_home(path).absolute()) for name, path in files.items()}
    )


def lasting(where: Where, cluster: Cluster) -> Where:
    """Return ``where`` so that it means the hosts of ``cluster`` also elsewhere and later.

    Where nothing named them, the configuration's default cluster or a Slurm allocation did.
    """
    kept = absolute(replace(where, ssh_config=where.ssh_config or cluster.ssh_config))
    if where.names_hosts or all(host.local for host in cluster.hosts):
        return kept
    if cluster.name is not None:
        return replace(kept, cluster=cluster.name)
    return replace(kept, hosts=",".join(host.name for host in cluster.hosts))


def hosts_of(run: str, kept: Where, asked: Where) -> Where:
    """Return the hosts asked for, else those ``kept`` of ``run``; RunNotFoundError for a demo's nodes."""
    ssh_config = kept.ssh_config if kept.cluster == EMBEDDED else None
    if ssh_config is None or Path(ssh_config).exists():
        return asked.over(kept)
    if asked.names_hosts:
        return asked
    raise errors.RunNotFoundError(
        f"{run} ran on the nodes of a demo, which have ended with it",
        f"distconsole demo starts new ones; distconsole replay {run} shows what is kept; "
        f"distconsole rerun {run} --hosts HOST1,HOST2 runs its script on other hosts",
    )


def narrate(texts: Sequence[str]) -> Iterator[Narration]:
    for text in texts:
        yield Narration(text=text)


def drain(said: SimpleQueue[Narration]) -> Iterator[Narration]:
    """Yield messages that other threads have put there."""
    while not said.empty():
        yield said.get()
