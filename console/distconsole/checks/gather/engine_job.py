"""A short job by an engine other than torch, as a value: what is asked and what its ranks said.

It is started as ``run`` starts one: the check gets that as a ``StartJob``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from distconsole.model.cluster import Host
from distconsole.model.requests import LauncherName
from distconsole.session import Session


@dataclass(frozen=True, slots=True)
class EngineJob:
    """What to run.

    Attributes:
        launcher: ``horovod`` or ``mpi``.
        hosts: In the order of ranks; their ``slots`` say how many.
        work: What the ranks shall do (``collective_worker``).
        seconds: After so long what is left is killed.
        env: Added to every rank's environment.
        without: Variables that ``run`` sets by itself and this job shall not get, as if it were
            started by hand.
        given_up: Whether nobody waits for it any more.
        nic: The interface that every host shall use, where one was asked for.
    """

    launcher: LauncherName
    hosts: tuple[Host, ...]
    work: Mapping[str, Any]
    seconds: float
    env: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    given_up: Callable[[], bool] = lambda: False
    nic: str | None = None


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What came of it.

    Attributes:
        launcher: What it was started by: mpirun also starts a Horovod without Gloo.
        planned: The ranks of each host.
        ranks: What became of each host's ranks, as ``facts.RankReport`` has it.
        said: The last words of the engine itself, mpirun's for example.
    """

    launcher: str
    planned: Mapping[str, tuple[int, ...]]
    ranks: Mapping[str, tuple[dict[str, Any], ...]]
    said: tuple[str, ...] = ()


class StartJob(Protocol):
    """Starts a job, waits for its end, and leaves nothing of it on the hosts."""

    def __call__(self, session: Session, job: EngineJob, /) -> EngineAnswer:
        """Return what came of ``job``.

        Raises:
            PlanError: if ``run`` would refuse it.
            ConsoleError: if it cannot be started.
        """
        ...
