"""The parent of a run's ranks on one node: starts them, notes their ends, takes them down.

Processes that start and end together are an attempt; with ``--max-restarts`` another may follow.

One per run and node, one thread (PR_SET_PDEATHSIG belongs to the thread that forked).
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Callable

from distconsole_agent.contract import records
from distconsole_agent.contract.protocol import ErrorCode
from distconsole_agent.contract.refusal import Refusal, bad_request, start_failed
from distconsole_agent.contract.requests import ShimRequest
from distconsole_agent.contract.runspec import RunSpec, clamp_grace
from distconsole_agent.coordination import blame
from distconsole_agent.coordination.channel import times_for
from distconsole_agent.coordination.coordinator import Coordinator
from distconsole_agent.coordination.link import LinkEvents
from distconsole_agent.coordination.peer import Peer
from distconsole_agent.coordination.rendezvous import MeetingPoint
from distconsole_agent.coordination.restarts import ENV_CHECKPOINT, Restart, last_checkpoint
from distconsole_agent.node_folder.folders import NodeFolders, this_program
from distconsole_agent.supervisor import notes
from distconsole_agent.supervisor.containers import (
    forget_scripts,
    make_script_folder,
    read_arrival,
)
from distconsole_agent.supervisor.control import Answer, Reply, ShimSocket
from distconsole_agent.supervisor.killing import Kills, count_kills
from distconsole_agent.supervisor.processes import (
    Places,
    Processes,
    RankProcess,
    make_places,
    make_rank,
)
from distconsole_agent.supervisor.proctree import descendants, program_names, send
from distconsole_agent.supervisor.rank_output import RankOutput
from distconsole_agent.supervisor.runlog import RunEnding, RunLog, keep_endpoint
from distconsole_agent.supervisor.spawning import AgentWatch
from distconsole_agent.supervisor.teardown import Rounds, Teardown
from distconsole_agent.system import steady
from distconsole_agent.system.line_pipe import LinePipe
from distconsole_agent.system.loop import Loop
from distconsole_agent.system.room import DiskWatch

PREPARED_SECONDS = 900.0
"""A run without a start is given up after this long."""


class Shim:
    """One run on one node, from ``prepared`` to ``ended``."""

    def __init__(self, loop: Loop, run_dir: str, spec: RunSpec) -> None:
        self._loop = loop
        self._run_dir = run_dir
        self._first_spec = self._spec = spec  # the first attempt's, and this one's
        self._rank_spec = spec  # by which ends are judged: an engine such as mpirun changes it
        self._master_port: int | None = None
        self._state = "prepared"
        self._log = RunLog(loop, run_dir)
        self._ranks = Processes(loop, self._settled, self._ended, self._reaped)
        self._arrivals = LinePipe(loop, self._arrived)
        self._output = RankOutput(
            loop,
            run_dir,
            spec.log_bytes,
            lambda logs, over: self._note(notes.output_loss(spec.host, logs, over=over)),
        )
        self._disk_watch = DiskWatch(
            loop, run_dir, lambda disk: self._note(notes.disk_low(spec.host, run_dir, disk))
        )
        self._restart = 0
        self._rounds = Rounds(loop, spec)
        self._kills = Kills(None, None)
        self._stop: blame.StopRequest | None = None
        self._ending = RunEnding(loop, self._log, self._end)
        self._reply_to_start: Reply | None = None
        self._start_refused = False
        self._refused: Refusal | None = None
        self._events = self._make_link_events()
        self._times = times_for(spec.lost_after)
        self._meeting = MeetingPoint(loop, spec, self._note, self._refuse_port)
        self._coordinator = self._prepare()
        self._link: Coordinator | Peer | None = self._coordinator
        self._prepare_attempt()
        folders = NodeFolders(os.path.dirname(os.path.dirname(run_dir)), this_program().tag)
        self._agent = AgentWatch(loop, folders, spec.agent_argv)
        self._control = ShimSocket(loop, os.path.join(run_dir, "shim.sock"), self._answer)
        loop.watch_signals({signal.SIGCHLD: self._ranks.reap, signal.SIGTERM: self._terminated})
        loop.call_later(PREPARED_SECONDS, self._give_up_waiting)
        self._look_at_clock()

    def _make_link_events(self) -> LinkEvents:
        return LinkEvents(
            self._stop_from_link,
            self._ending.judged,
            self._note,
            self._ending.finish,
            self._command,
            self._command_ended,
            renew=self._renew,
            restart=self._tell_restart,
            again=self._again,
            outlived=self._outlived,
            node_lost=self._node_lost,
        )

    def _look_at_clock(self) -> None:
        steady.look()
        self._loop.call_later(steady.LOOK_SECONDS, self._look_at_clock)

    @property
    def exit_code(self) -> int:
        """Exit code of the process once the run is over."""
        return 0

    def close(self) -> None:
        self._agent.close()
        self._control.close()
        if self._link is not None:
            self._link.close()
        self._meeting.close()
        self._disk_watch.end()
        self._arrivals.close()
        self._output.close()
        self._log.close()

    def crashed(self, told: str) -> None:
        """End the run at once, because the shim itself is broken: no process may outlive it."""
        with contextlib.suppress(OSError):
            for pid, stat in descendants(os.getpid()).items():
                send(pid, stat, signal.SIGKILL)
        self._note(notes.supervisor_break(self._spec.host, told))
        if self._ending.verdict is None:
            self._log.write_verdict(blame.RunVerdict("failed", 1, None))
        self._log.write("ended")

    # Requests

    def _answer(self, request: ShimRequest, reply: Reply) -> Answer | None:
        op = request.op
        if op == "status":
            return self._status()
        if op == "start":
            self._start(request, reply)
            return None
        if op == "stop":
            if request.reason not in blame.STOP_EXIT_CODES:
                why = f"a run is not stopped for {request.reason!r}"
                raise bad_request(why, "user, sigint or sigterm")
            given = self._spec.grace if request.grace is None else clamp_grace(request.grace)
            self._request_stop(request.reason, given)
            return {"ok": True, "stopping": True}
        if op == "kill":
            self._request_stop(self._stop.reason if self._stop else blame.USER, 0.0)
            return {"ok": True, "killing": True}
        raise Refusal(ErrorCode.UNKNOWN_OP, f"a shim cannot {op!r}")

    def _status(self) -> Answer:
        if self._refused is not None:
            raise self._refused
        endpoint = self._coordinator.endpoint if self._coordinator is not None else None
        return {
            "ok": True,
            "pid": os.getpid(),
            "state": self._state,
            "restart": self._restart,
            "coordinator": endpoint and {"address": endpoint[0], "port": endpoint[1]},
            "master_port": self._meeting.port,
        }

    # Starting

    def _prepare(self) -> Coordinator | None:
        if self._spec.node_index != 0:
            return None
        address = self._spec.nodes[0].address
        try:
            coordinator = Coordinator(self._loop, self._spec, self._events, self._times)
            self._meeting.open(coordinator)
        except OSError as error:
            why = f"cannot listen on {address}: {error.strerror or error}"
            hint = f"{address} must be an address of {self._spec.host}; --nic names the interface"
            self._refused = start_failed(why, hint)
            self._loop.call_later(PREPARED_SECONDS, self._loop.stop)
            return None
        return coordinator

    def _start(self, request: ShimRequest, reply: Reply) -> None:
        if self._refused is not None:
            raise self._refused
        if self._state != "prepared":
            raise bad_request(f"the run is {self._state} already")
        port = self._meeting.port or request.master_port
        if self._link is None:
            endpoint = request.coordinator
            if endpoint is None:
                raise bad_request(
                    "the start of this node needs the coordinator's address and port"
                )
            keep_endpoint(self._run_dir, endpoint)
            self._link = Peer(self._loop, self._spec, endpoint, self._events, self._times)
        self._link.begin()
        self._reply_to_start = reply
        self._disk_watch.begin()
        self._output.watch_loss()
        self._begin_attempt(port)
        load_late()

    def _answer_start(self, answer: Answer) -> None:
        reply, self._reply_to_start = self._reply_to_start, None
        if reply is not None:
            self._start_refused = isinstance(answer, Refusal)
            reply(answer)

    def _begin_attempt(self, port: int | None) -> None:
        self._state = "starting"
        self._kills = count_kills()
        self._master_port = port
        self._start_ranks(port)

    def _start_ranks(self, port: int | None) -> None:
        if told := self._meeting.look():
            self._cannot_start(told, "start the run again: it takes another port")
            return
        self._meeting.watch()
        try:
            places = self._make_places()
            self._ranks.start(
                [make_rank(self._spec, rank, port, places) for rank in self._spec.ranks]
            )
        except OSError as error:
            self._cannot_start(f"the ranks cannot start: {error}", "see the limits: ulimit -a")
        else:
            if not self._ranks.all:
                self._settle_start()
                self._end_leftovers()

    def _make_places(self) -> Places:
        if self._spec.enter:
            self._arrivals.open(make_script_folder(self._run_dir))
        return make_places(self._spec, self._run_dir, self._output)

    def _cannot_start(self, why: str, hint: str) -> None:
        self._note(notes.fail("run.start", why, hint))
        self._answer_start(start_failed(why, hint))
        self._fail(self._own_failure(why))

    def _own_failure(self, error: str, exit_code: int = 126) -> blame.Failure:
        """Return a failure of this node's that no rank of its own has; the first one stands for it."""
        index = self._spec.node_index
        rank = (self._spec.nodes[index].ranks or (0,))[0]
        return blame.Failure(index, rank, 0, steady.now_ns(), exit_code, None, error, "")

    def _prepare_attempt(self) -> None:
        self._teardown = Teardown(
            self._loop,
            self._ranks,
            self._run_dir,
            self._gone,
            lambda pids: self._note(notes.unkillable(self._spec.host, pids)),
            self._end_linger,
        )

    def _refuse_port(self, told: str) -> None:
        """End the run before its ranks connect to a stranger."""
        if self._teardown.begun or not self._ranks.alive:
            return
        self._note(notes.port_stranger(told))
        self._fail(self._own_failure(told, 1))

    def _settled(self, rank: RankProcess) -> None:
        failure = rank.spawn_failure
        if failure is None:
            if not rank.script:
                self._tell_started(rank)
        else:
            where = f"rank {rank.spec.rank} on {self._spec.host}: {failure.error}"
            self._note(notes.fail("run.start", where, failure.hint, rank=rank.spec.rank))
            self._answer_start(start_failed(where, failure.hint))
        if not self._ranks.starting:
            self._settle_start()

    def _tell_started(self, rank: RankProcess) -> None:
        self._log.started(rank)

    def _arrived(self, line: bytes) -> None:
        """Take the word of a process that it runs in its container now."""
        script, inner = read_arrival(line) or ("", 0)
        rank = next((one for one in self._ranks.all if one.script == script), None)
        if rank is None or not rank.is_outside:
            return
        rank.arrive(inner, self._run_dir)
        self._tell_started(rank)
        if self._teardown.begun:
            self._teardown.terminate_late(rank.pid)

    def _settle_start(self) -> None:
        if self._state == "starting":
            self._state = "running"
        self._answer_start({"ok": True, "started": True})

    # Ends

    def _ended(self, rank: RankProcess) -> None:
        self._output.flush()  # its last words are looked for in its log
        self._arrivals.read()
        if rank.is_outside and rank.ended is not None and rank.ended.exit_code != 0:
            what, hint = rank.explain_outside(self._spec.container, self._run_dir)
            if hint and not self._teardown.begun:
                self._note(notes.fail("run.start", what, hint, rank=rank.spec.rank))
        self._exited(rank)

    def _exited(self, rank: RankProcess) -> None:
        self._log.exited(rank, terminated=rank.pid in self._teardown.terminated)
        # An engine of containers reports an end late: a rank killed before the stop may end behind it.
        number = rank.ended and rank.ended.signal
        killed = rank.script and number == signal.SIGKILL and not self._teardown.kills
        before = rank.pid in self._teardown.over and number != signal.SIGTERM
        self._judge(rank, None if killed or before else self._teardown.begun_ns)

    def _judge(self, rank: RankProcess, stopped_ns: int | None) -> None:
        """Report how a rank failed, if it did, as of the time when it ended."""
        from distconsole_agent.supervisor import postmortem  # late: ``load_late``

        errors = os.path.join(self._run_dir, "errors")
        failure = postmortem.find_failure(
            self._rank_spec, rank, errors, stopped_ns=stopped_ns, kills=self._kills
        )
        if failure is not None:
            self._fail(failure)
        elif told := postmortem.find_swallowed(rank, errors):
            self._note(notes.swallowed(*told))
        elif hidden := postmortem.find_hidden(self._rank_spec, rank, errors):
            self._note(notes.hidden_failure(*hidden))

    def _fail(self, failure: blame.Failure) -> None:
        failure = self._rounds.explained(failure)
        if self._start_refused:
            failure = failure._replace(final="it could not be started")
        self._log.write("failed", **failure.as_json())
        assert self._link is not None
        # First: without processes to end, this node is at its end in the next line.
        self._link.failed(failure)
        self._begin_stop(blame.FAILURE, self._spec.failure_grace)

    def _reaped(self, pids: list[int]) -> None:
        self._agent.reaped(pids)
        self._teardown.check()
        self._end_leftovers()

    def _end_leftovers(self) -> None:
        """Once every rank has ended, nothing that they started may stay."""
        if self._teardown.begun or self._state == "prepared" or self._ranks.alive:
            return
        if self._teardown.is_waiting():
            self._state = "lingering"
        else:
            self._teardown.begin(self._spec.grace)

    def _end_linger(self, left: list[int]) -> None:
        if left and not self._teardown.begun:
            self._note(notes.leftover(left, program_names(left)))
        self._end_leftovers()

    # Stopping

    def _request_stop(self, reason: str, grace_seconds: float) -> None:
        stop = blame.StopRequest(self._spec.node_index, steady.now_ns(), reason)
        self._read_ends()
        if self._state == "prepared":
            self._stop = stop
            self._state = "stopping"
            self._log.write("stopping", reason=reason)
            self._ending.gone = True
            self._ending.judged(blame.RunVerdict("stopped", blame.STOP_EXIT_CODES[reason], None))
            self._ending.finish()
            return
        if self._ending.gone and self._ending.verdict is not None:
            return
        assert self._link is not None
        self._stop = self._stop or stop
        self._begin_stop(reason, grace_seconds)
        self._link.stopping(stop, grace_seconds)

    def _command(self, _name: str, _command: str) -> None:
        """Refuse: only nodes of a run that an engine steers get commands."""

    def _command_ended(self, _node: int, _name: str, _exit_code: int) -> None:
        """No command was sent."""

    def _outlived(self, failure: blame.Failure) -> None:
        """Note it: only an engine can decide that the run goes on."""
        assert self._coordinator is not None
        self._coordinator.failed(failure)

    def _node_lost(self, node: int) -> None:
        self._rounds.node_lost(node)

    def _stop_from_link(self, reason: str, grace_seconds: float) -> None:
        self._read_ends()
        self._begin_stop(reason, grace_seconds)

    def _read_ends(self) -> None:
        """Judge ends from before a stop first: a late look would attribute them to the stop."""
        self._ranks.reap()

    def _begin_stop(self, reason: str, grace_seconds: float) -> None:
        if self._state == "ended":
            return
        if self._state != "stopping":
            self._state = "stopping"
            self._meeting.end_watch()
            self._log.write("stopping", reason=reason)
        if not self._ending.gone:
            self._teardown.begin(grace_seconds)

    def _terminated(self) -> None:
        self._request_stop(blame.SIGTERM, self._spec.grace)

    def _give_up_waiting(self) -> None:
        if self._state == "prepared":
            self._note(notes.missing_start(PREPARED_SECONDS / 60))
            self._request_stop(blame.USER, 0.0)

    # Another attempt

    def _call_in_attempt(
        self, seconds: float, do: Callable[[], None], unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Do something later, unless another attempt runs by then."""
        restart = self._restart

        def do_now() -> None:
            if restart == self._restart and not unless():
                do()

        self._loop.call_later(seconds, do_now)

    def _renew(self) -> tuple[int, str | None]:
        """Give a rendezvous that no rank of an earlier attempt knows, and the checkpoint."""
        assert self._coordinator is not None
        port = self._meeting.open(self._coordinator)
        checkpoint = last_checkpoint(self._run_dir)
        return port, checkpoint or self._first_spec.env.get(ENV_CHECKPOINT)

    def _tell_restart(
        self, restart: Restart, failed: blame.RunVerdict, pause_seconds: float
    ) -> None:
        first = failed.first_failure and records.write(failed.first_failure)
        pause = round(pause_seconds, 3)
        self._log.write("restart", **restart.as_json(), pause=pause, first_failure=first)

    def _again(self, restart: Restart) -> None:
        """Restart the ranks, unless this node alone has a request to stop."""
        self._log.write("attempt", **restart.as_json())
        self._forget_attempt(restart)
        if self._has_to_end():
            self._state = "stopping"
            self._gone()
        else:
            self._begin_attempt(restart.port)

    def _forget_attempt(self, restart: Restart) -> None:
        """Let nothing of the attempt that is over be taken for the next one's."""
        self._restart = restart.number
        self._rank_spec = self._spec = restart.applied(self._first_spec)
        self._ranks.all = []
        self._teardown.close()
        self._prepare_attempt()
        self._ending.gone = False

    def _has_to_end(self) -> bool:
        return self._stop is not None

    # The run's end

    def _gone(self) -> None:
        if not self._ending.gone:
            forget_scripts(self._run_dir)
            self._output.flush()
            self._output.tell_loss(over=True)
            self._ending.gone = True
            assert self._link is not None
            self._link.ended()
            self._ending.check()

    def _end(self) -> None:
        self._state = "ended"
        self._disk_watch.end()
        self._output.end_watch()

    def _note(self, note: notes.RunNote) -> None:
        self._log.write("note", **records.write(note))


def load_late() -> None:
    """Load modules that only ends need, while the ranks start: no start waits for it."""
    with contextlib.suppress(ImportError, OSError):
        from distconsole_agent.supervisor import postmortem  # noqa: F401
