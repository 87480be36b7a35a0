"""The same thing asked of several nodes at once; every node is accounted for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from distconsole.errors import UnreachableError
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.model.outcome import Failed, Ok, Outcome, failed
from distconsole.rpc.fanout import fan_out
from distconsole.session import Session

if TYPE_CHECKING:
    from distconsole.rpc.link import NodeLink

T = TypeVar("T")

NAMED_FAILURES = 8
"""Hosts that an error names one by one."""


def on_every(
    session: Session,
    hosts: Sequence[HostName],
    act: Callable[[NodeLink], T],
    seconds: float | None = None,
) -> list[Outcome[T]]:
    """Return what ``act`` gave on each host, in order; a link that is down is connected first.

    ``act`` is done on a thread of its own for each host, and raises ``NodeError`` where the node
    cannot; ``seconds`` is each node's deadline, and None leaves it to ``act``.
    """
    wanted = [host for name in hosts if (host := session.cluster.host(name)) is not None]

    def act_on(host: Host) -> T:
        link = session.link(host.name)
        link.connect()
        return act(link)

    return fan_out(wanted, act_on, seconds=seconds)


def require_all(outcomes: Sequence[Outcome[T]], doing: str) -> list[T]:
    """Return the values if every node succeeded.

    Raises UnreachableError, naming the nodes that did not, and why.
    """
    failures = failed(outcomes)
    if failures:
        raise UnreachableError(f"{doing}: {_name_failures(failures)}", _hints(failures))
    return [outcome.value for outcome in outcomes if isinstance(outcome, Ok)]


def _name_failures(failures: Sequence[Failed]) -> str:
    # Some errors name their host already; once is enough.
    named = [
        f"{each.host}: {each.error.message.removeprefix(f'{each.host}: ')}"
        for each in failures[:NAMED_FAILURES]
    ]
    more = len(failures) - len(named)
    return "; ".join(named) + (f"; and {more} more hosts" if more else "")


def _hints(failures: Sequence[Failed]) -> str:
    hints = (each.error.hint for each in failures[:NAMED_FAILURES])
    return "\n".join(dict.fromkeys(hint for hint in hints if hint))
