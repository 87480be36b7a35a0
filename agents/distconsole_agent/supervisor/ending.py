"""When a run is over on this node: nothing of it is left, and it is judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from distconsole_agent.coordination.blame import Verdict
    from distconsole_agent.supervisor.runlog import RunLog
    from distconsole_agent.system.loop import Loop

WRITTEN_SECONDS = 1.0
"""How often it is looked whether a full disk has taken the log."""


class Ending:
    """One run's, whose log it closes; then it stops the loop.

    Args:
        on_over: Called once when the run is over here; the other nodes may still have to hear of it.

    Attributes:
        gone: Whether nothing of the attempt is left here.
        verdict: How the run ended, once that is known.
    """

    def __init__(self, loop: Loop, log: RunLog, on_over: Callable[[], None]) -> None:
        self._loop = loop
        self._log = log
        self._on_over = on_over
        self._is_over = self._finished = self._leaves = False
        self.gone = False
        self.verdict: Verdict | None = None

    def judged(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self._log.write_verdict(verdict)
        self.check()

    def finish(self) -> None:
        """Take that every node has the verdict, or has had its time."""
        self._finished = True
        self.check()

    def check(self) -> None:
        """See whether the run is over; call it when ``gone`` has become true."""
        if self.verdict is None or not self.gone:
            return
        if not self._is_over:
            self._is_over = True
            self._on_over()
            self._log.write("ended")
        if self._finished and not self._leaves:
            self._leaves = True
            self._leave()

    def _leave(self) -> None:
        """Leave when the log is on the disk; a full one may become free again."""
        if self._log.written:
            self._loop.stop()
        else:
            self._loop.call_later(WRITTEN_SECONDS, self._leave)
