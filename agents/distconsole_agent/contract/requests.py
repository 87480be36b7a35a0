"""The arguments of requests, as ``protocol`` lists them by op."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from distconsole_agent.contract import records
from distconsole_agent.contract.limits import CALL_SECONDS, MAX_CALL_SECONDS, MIN_CALL_SECONDS
from distconsole_agent.contract.records import Port, RecordError, Word
from distconsole_agent.contract.refusal import bad_request


class CoordinatorAddress(NamedTuple):
    """The address of a run's coordinator."""

    address: Word
    port: Port


class AgentRequest(NamedTuple):
    """A request to an agent: an op takes the arguments that ``protocol`` lists for it."""

    op: str = ""
    run: str = ""
    seconds: float = CALL_SECONDS
    # hello, probe, cancel, watch
    protocol: object = None
    group: str = ""
    args: Mapping[str, object] = MappingProxyType({})
    target: int = -1
    interval: float = 1.0
    # prepare, start, follow, stop
    spec: object = None
    coordinator: CoordinatorAddress | None = None
    master_port: Port | None = None
    after: int = 0
    journal: str | None = None
    grace: float | None = None
    reason: str = "user"
    # slurm
    do: str = ""
    argv: tuple[Word, ...] = ()
    job: str = ""
    held: bool = False
    # sync, sync_take
    manifest: str | None = None
    pieces: object = None
    data: str = ""
    # survey
    calls: bool = True
    logs: Mapping[str, object] | None = None
    # trace, trace_take
    wait: float = 0.0
    max_bytes: float = 0.0
    ranks: tuple[int, ...] | None = None
    start_ns: float = 0.0
    name: str = ""
    offset: float = 0.0

    @property
    def call_seconds(self) -> float:
        """Each rank's deadline in a roll call, within its bounds."""
        return min(max(self.seconds, MIN_CALL_SECONDS), MAX_CALL_SECONDS)


class ShimRequest(NamedTuple):
    """A request to a shim by its agent: ``status``, ``start``, ``stop``, ``kill``, or ``fail`` by srun's parent."""

    op: str = ""
    coordinator: CoordinatorAddress | None = None
    master_port: Port | None = None
    reason: str = "user"
    grace: float | None = None
    error: str = ""
    exit_code: int = 1


_Request = TypeVar("_Request", AgentRequest, ShimRequest)


def read_request(cls: type[_Request], message: object) -> _Request:
    """Return a request; raises Refusal (``bad_request``) with the argument that is wrong."""
    try:
        return records.read(cls, message)
    except RecordError as error:
        raise bad_request(str(error)) from None
