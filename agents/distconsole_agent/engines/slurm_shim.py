"""The shim of a node whose ranks Slurm accounts for: srun started it, and Slurm may end it.

Slurm signals every process of a step at once, the ranks as well as the shim. So a rank that ends by SIGTERM
or SIGKILL is judged a moment later, when it is known whether Slurm did that: by then SIGKILL has ended the shim too.
"""

from __future__ import annotations

import os
import signal
from functools import partial

from distconsole_agent.contract.requests import ShimRequest
from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.coordination import blame
from distconsole_agent.coordination.restarts import Restart
from distconsole_agent.engines.slurm_words import ask_slurm, has_srun, read_reason, read_srun_death
from distconsole_agent.supervisor import notes
from distconsole_agent.supervisor.control import Answer, Reply
from distconsole_agent.supervisor.processes import SLURMS_SIGNALS, RankProcess
from distconsole_agent.supervisor.shim import Shim
from distconsole_agent.system import steady
from distconsole_agent.system.loop import Loop

SUSPECT_SECONDS = 0.2
"""How long after a rank has died by such a signal Slurm may send the same one to the shim."""

WHY_SECONDS, SRUN_WHY_SECONDS, WHY_PACE_SECONDS = 2.0, 6.0, 0.02
"""How long to wait for srun's words and scontrol's, on the first node, on why Slurm ended the step; the second while
srun runs: it hears of a failed node after the ranks on the others have got the signal to end."""

ALONE_SECONDS = 8.0
"""A node that Slurm ended and that hears nothing from the first one for this long reports so itself: the
first one may still wait for srun."""

KILL_WAIT_SECONDS = 25.0
"""How long ranks that Slurm has signalled may write a checkpoint: Slurm's own KillWait is 30 s
unless configured otherwise, and then it kills them and us."""

SRUN_SECONDS = 0.5
"""How long after the loss of a node the end of a killed srun, which Slurm ends the step for, may take
to be noted on the first node."""

MAX_ERROR_CHARS = 500


class SlurmShim(Shim):
    """A ``Shim`` that is a task of a step."""

    def __init__(self, loop: Loop, run_dir: str, spec: RunSpec) -> None:
        self._suspects: list[RankProcess] = []
        self._ended_ns: int | None = None
        self._explained = False
        self._told_to_stop = False
        self._srun_failed = False
        self._asks_srun = False
        self._gone_waits = False
        super().__init__(loop, run_dir, spec)
        for number in set(SLURMS_SIGNALS) - {signal.SIGTERM}:  # they are meant for the ranks
            # A handler and not SIG_IGN, which would be inherited.
            signal.signal(number, lambda _number, _frame: None)

    @property
    def exit_code(self) -> int:
        """The run's, so that Slurm's accounting has it too."""
        return self._ending.verdict.exit_code if self._ending.verdict is not None else 1

    def _answer(self, request: ShimRequest, reply: Reply) -> Answer | None:
        if request.op != "fail":
            return super()._answer(request, reply)
        if self._state == "prepared":
            self._request_stop(blame.USER, 0.0)
        elif self._ending.verdict is None and (
            self._asks_srun or not self._teardown.begun or self._between_attempts
        ):
            self._fail_by_srun(request.error[:MAX_ERROR_CHARS], request.exit_code)
        return {"ok": True}

    def _fail_by_srun(self, error: str, exit_code: int) -> None:
        if not self._srun_failed:
            self._srun_failed = True
            self._fail_by_slurm(error, exit_code, None, steady.now_ns())

    def _note(self, note: notes.RunNote) -> None:
        super()._note(note)
        if note.check == notes.NODE_LOST and self._spec.node_index == 0 and not self._asks_srun:
            self._asks_srun = True
            self._ask_srun(self._loop.clock() + SRUN_SECONDS)

    def _ask_srun(self, deadline: float) -> None:
        """Find out if a node was lost because Slurm ends the step of a killed srun."""
        death = read_srun_death(self._run_dir)
        if death is None and self._loop.clock() < deadline and not self._srun_failed:
            self._loop.call_later(WHY_PACE_SECONDS, partial(self._ask_srun, deadline))
            return
        if death is not None:
            self._fail_by_srun(*death)
        self._asks_srun = False
        self._release()

    @property
    def _between_attempts(self) -> bool:
        return self._ending.gone and self._ending.verdict is None and self._spec.max_restarts > 0

    # Signals

    def _terminated(self) -> None:
        """Slurm ends the step, unless we are ending it ourselves."""
        if self._state == "prepared":
            super()._terminated()
            return
        ending = self._teardown.begun and not self._suspects and not self._between_attempts
        if self._ended_ns is not None or ending:
            return
        self._ended_ns = steady.now_ns()
        self._suspects.clear()
        self._teardown.told = True
        self._begin_stop(blame.FAILURE, self._spec.failure_grace)
        if self._spec.node_index == 0:
            self._look_for_why(self._loop.clock(), asked=ask_slurm(self._run_dir))
        else:
            self._explained = True

            def explain() -> None:
                if not self._told_to_stop and self._ending.verdict is None:
                    self._explain()

            self._loop.call_later(ALONE_SECONDS, explain)

    def _begin_stop(self, reason: str, grace_seconds: float) -> None:
        if self._ended_ns is not None and reason == blame.FAILURE:
            grace_seconds = max(grace_seconds, KILL_WAIT_SECONDS)
        super()._begin_stop(reason, grace_seconds)

    def _look_for_why(self, since: float, *, asked: bool) -> None:
        seconds = SRUN_WHY_SECONDS if has_srun(self._run_dir) else WHY_SECONDS
        now = self._loop.clock()
        why = read_reason(self._run_dir, asked=asked and now < since + WHY_SECONDS)
        if not why and now < since + seconds:
            look = partial(self._look_for_why, since, asked=asked)
            self._loop.call_later(WHY_PACE_SECONDS, look)
            return
        self._explain(why)
        self._explained = True
        self._release()

    def _explain(self, why: str = "") -> None:
        why = why or f"Slurm ended the step on {self._spec.host} (SIGTERM)"
        assert self._ended_ns is not None
        number = int(signal.SIGTERM)
        self._fail_by_slurm(why, 128 + number, number, self._ended_ns)

    def _fail_by_slurm(self, error: str, exit_code: int, number: int | None, t_ns: int) -> None:
        failure = self._own_failure(error, exit_code)
        final = "Slurm has ended the step"
        self._fail(failure._replace(pid=os.getpid(), t_ns=t_ns, signal=number, final=final))

    def _stop_from_link(self, reason: str, grace_seconds: float) -> None:
        self._told_to_stop = True
        stop = partial(super()._stop_from_link, reason, grace_seconds)
        if reason == blame.FAILURE and grace_seconds > 0 and self._ended_ns is None:
            # Slurm signals node after node: the ranks here may be about to hear of it from Slurm.
            self._call_in_attempt(SUSPECT_SECONDS, stop)
        else:
            stop()

    # Another attempt

    def _forget_attempt(self, restart: Restart) -> None:
        super()._forget_attempt(restart)
        self._suspects.clear()
        self._told_to_stop = self._gone_waits = False

    def _has_to_end(self) -> bool:
        """Whether Slurm has ended the step here, and the first node did not know it yet."""
        if self._ended_ns is not None:
            self._explain()
        return self._ended_ns is not None or super()._has_to_end()

    # Ends

    def _judge(self, rank: RankProcess, stopped_ns: int | None) -> None:
        ended = rank.ended
        assert ended is not None
        if stopped_ns is None and ended.signal in (signal.SIGTERM, signal.SIGKILL):
            self._suspects.append(rank)
            self._loop.call_later(SUSPECT_SECONDS, partial(self._judge_suspect, rank))
        else:
            super()._judge(rank, stopped_ns)

    def _judge_suspect(self, rank: RankProcess) -> None:
        if rank in self._suspects:
            self._suspects.remove(rank)
            super()._judge(rank, None)
        self._release()

    def _gone(self) -> None:
        unexplained = self._ended_ns is not None and not self._explained
        if self._suspects or unexplained or self._asks_srun:
            self._gone_waits = True
            return
        super()._gone()

    def _release(self) -> None:
        if self._gone_waits:
            self._gone_waits = False
            self._gone()
