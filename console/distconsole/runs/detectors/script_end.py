"""Checks that a launcher in a shell script reached its end: the shell may exit with 0 even if the launcher failed."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.model.run_events import RankState, RunFinding
from distconsole.model.run_summary import FirstFailure
from distconsole.rpc import frames
from distconsole.runs.detectors.ranks import RanksSeen

LAUNCHERS = (
    "torchrun",
    "torch.distributed",
    "accelerate",
    "deepspeed",
    "horovod",
    "mpirun",
    "mpiexec",
)
"""Prefixes of launchers' programs and modules."""


class ScriptEndWatch:
    """Judges a run of a script that starts a launcher.

    Args:
        starts: The launcher, by name; empty if the processes of the run are the ranks.
    """

    def __init__(self, ranks: RanksSeen, starts: str) -> None:
        self._ranks = ranks
        self._starts = starts
        self._failed: dict[int, str] = {}
        self._left: tuple[str, str] | None = None
        self._swallowed: dict[int, tuple[str, str]] = {}
        self._seen = False

    def noted(self, host: str, entry: frames.NoteEntry) -> None:
        """Take a note of a host; one on processes that outlived their rank names programs."""
        if entry.check == "run.launcher_failed" and entry.rank is not None and entry.seen:
            self._swallowed[entry.rank] = (host, entry.seen)
        programs = (entry.seen or "").split(", ") if entry.check == "run.leftover" else []
        left = next((each for each in programs if each.startswith(LAUNCHERS)), None)
        if left is not None and self._left is None:
            self._left = (host, left)

    def rank_is(self, rank: int, host: str, state: RankState) -> None:
        """Take a rank's last state: one that failed may be started again."""
        self._failed.pop(rank, None)
        if state is RankState.FAILED:
            self._failed[rank] = host

    def saw_rank(self) -> None:
        self._seen = True

    def judge(self) -> FirstFailure | None:
        """Return the failure in a run that ended with 0."""
        if self._left is not None:
            host, left = self._left
            rank = min((rank for rank, its in self._ranks.hosts.items() if its == host), default=0)
            error = f"the script ended while {left} still ran, which was ended with it"
            return FirstFailure(rank=rank, host=host, exit_code=1, error=error)
        failed = self._failed or ({} if self._seen else self._swallowed)
        if self._starts and failed:
            rank = next(iter(failed))
            host, told = self._swallowed.get(rank, (self._failed.get(rank, ""), ""))
            error = f"{told or 'an error'}, and the script that started {self._starts} ended with 0 all the same"
            return FirstFailure(rank=rank, host=host, exit_code=1, error=error)
        return None

    def unseen(self, t: float) -> Iterator[RunFinding]:
        """Yield that no rank was seen of a run that ended with 0."""
        if not self._starts or self._seen:
            return
        yield self._ranks.finding(
            t,
            "run.no_ranks",
            f"the script ended with 0, and no rank of {self._starts} was seen: whether it trained is not known",
            hosts=tuple(sorted(set(self._ranks.hosts.values()))),
            expected=f"{self._starts} starts ranks that import torch",
            hint=f"distconsole logs {self._ranks.run}; ranks cannot be seen where the script sets PYTHONPATH "
            "without $PYTHONPATH in it, or starts them in a container",
        )
