"""The shim of a run by elastic Horovod: starts and ends ranks as Horovod's driver on node 0 asks.

The driver's requests to other nodes go over the shims' own connection, so every rank is below
the shim of its node and ends with it. A node starts only processes of its own plan.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Mapping

from distconsole_agent.contract.runspec import RankSpec
from distconsole_agent.coordination import blame
from distconsole_agent.coordination.peer import Peer
from distconsole_agent.coordination.restarts import Restart
from distconsole_agent.engines.elastic import Elastic, ElasticEvents, Slot
from distconsole_agent.engines.kvstore import KeyValueStore
from distconsole_agent.node_folder.folders import this_program
from distconsole_agent.supervisor.failures import describe_exit, read_tail
from distconsole_agent.supervisor.postmortem import find_failure
from distconsole_agent.supervisor.processes import Places, RankProcess, make_rank
from distconsole_agent.supervisor.proctree import send_group
from distconsole_agent.supervisor.shim import Shim

AGENT_PLACEHOLDER = "{agent}"
"""Placeholder for this program in the driver's command, which names an interpreter."""

DRIVER = "Horovod's elastic driver"
NOT_STARTED_EXIT_CODE = 1

_VARIABLE = re.compile(r"^HOROVOD_(HOSTNAME|(LOCAL_|CROSS_)?(RANK|SIZE))$")
_VALUE = re.compile(r"^[0-9A-Za-z.-]{1,255}$")


class ElasticShim(Shim):
    """One node of a run by elastic Horovod."""

    def _prepare_attempt(self) -> None:
        """See ``Shim``; each attempt has a driver of its own, which has given up no host."""
        super()._prepare_attempt()
        self._workers: dict[int, RankProcess] = {}
        self._given_up: set[RankProcess] = set()
        self._driver: RankProcess | None = None
        self._places: Places | None = None
        events = ElasticEvents(self._ask, self._ask, self._note, self._driver_finished)
        self._elastic = Elastic(self._loop, self._spec, events)

    def close(self) -> None:
        self._elastic.close()
        super().close()

    # Starting

    def _start_ranks(self, port: int | None) -> None:
        try:
            self._places = self._make_places()
            if isinstance(self._meeting.held, KeyValueStore):
                self._elastic.open(self._run_dir, self._meeting.held)
                self._start_driver(port, self._places)
        except OSError as error:
            self._cannot_start(f"{DRIVER} cannot start: {error}", "see the limits: ulimit -a")
        else:
            if self._driver is None:
                self._settle_start()

    def _forget_attempt(self, restart: Restart) -> None:
        self._elastic.close()
        super()._forget_attempt(restart)

    def _start_driver(self, port: int | None, places: Places) -> None:
        _, *program = this_program().argv
        own = [word for word in program if word != "-I"]  # it needs PYTHONPATH as the ranks do
        words = [
            each
            for word in self._spec.driver
            for each in (own if word == AGENT_PLACEHOLDER else [word])
        ]
        spec = self._spec._replace(engine_ranks=False)
        rank = RankSpec(0, 0, tuple(words), {})
        unwatched = places._replace(hook=None)
        self._driver = make_rank(spec, rank, port, unwatched)
        self._ranks.start([self._driver])

    def _command(self, name: str, command: str) -> None:
        """Run a command of node 0 on a rank of this node: ``name`` is its local rank."""
        if not name.isdigit() or int(name) >= len(self._spec.ranks):
            return
        wanted = None
        with contextlib.suppress(ValueError):
            wanted = json.loads(command)
        self._start_or_end(int(name), wanted if isinstance(wanted, dict) else None)

    def _start_or_end(self, local_rank: int, given: Mapping[str, object] | None) -> None:
        if given is not None:
            self._start_worker(local_rank, given)
        else:
            self._end_worker(local_rank)

    def _start_worker(self, local_rank: int, given: Mapping[str, object]) -> None:
        if self._teardown.begun or local_rank in self._workers or self._places is None:
            self._tell_ended(local_rank, NOT_STARTED_EXIT_CODE)
            return
        planned = self._spec.ranks[local_rank]
        env = {
            name: value
            for name, value in given.items()
            if _VARIABLE.match(name) and isinstance(value, str) and _VALUE.match(value)
        }
        rank = planned._replace(env={**planned.env, **env})
        worker = make_rank(self._spec, rank, self._master_port, self._places)
        self._workers[local_rank] = worker
        try:
            self._ranks.start([worker])
        except OSError as error:
            failure = self._own_failure(f"rank cannot start: {error}")
            self._fail(failure._replace(rank=planned.rank))

    def _settled(self, rank: RankProcess) -> None:
        if rank.spawn_failure is not None or rank is not self._driver:
            super()._settled(rank)
        else:
            self._settle_start()

    # Requests of Horovod's driver, on node 0

    def _ask(self, slot: Slot, env: dict[str, str] | None = None) -> None:
        """Have the slot's node start a rank with ``env``, or end it without."""
        if slot.node == 0:
            self._start_or_end(slot.local_rank, env)
        elif self._coordinator is not None:
            self._coordinator.command(slot.node, str(slot.local_rank), json.dumps(env))

    def _driver_finished(self, why: str, failures: list[blame.Failure]) -> None:
        """End the remaining ranks after a success; else fail the run."""
        assert self._coordinator is not None
        if not why:
            for slot in sorted(self._elastic.running):
                self._ask(slot)
        elif failures or self._coordinator.has_outlived:
            self._coordinator.give_up(failures)
        else:
            self._fail_driver(1, None, f"{DRIVER} has ended the run: {why}")

    def _command_ended(self, node: int, name: str, exit_code: int) -> None:
        if name.isdigit():
            self._elastic.ended(Slot(node, int(name)), exit_code)

    def _outlived(self, failure: blame.Failure) -> None:
        self._elastic.failed(failure)

    def _node_lost(self, node: int) -> None:
        if self._spec.node_index == 0:
            self._elastic.node_lost(node)

    # Ends

    def _end_worker(self, local_rank: int) -> None:
        worker = self._workers.get(local_rank)
        if worker is None or worker.ended is not None or worker in self._given_up:
            return
        self._given_up.add(worker)
        send_group(worker.pid, signal.SIGTERM)
        send_group(worker.pid, signal.SIGCONT)

        def kill() -> None:
            if worker.ended is None:
                send_group(worker.pid, signal.SIGKILL)

        self._loop.call_later(self._spec.failure_grace, kill)

    def _exited(self, rank: RankProcess) -> None:
        if rank is self._driver:
            self._driver_exited(rank)
            return
        super()._exited(rank)
        assert rank.ended is not None
        self._tell_ended(rank.spec.local_rank, rank.ended.exit_code)

    def _judge(self, rank: RankProcess, stopped_ns: int | None) -> None:
        """Leave a failure to Horovod's driver, unless the run is being stopped anyway."""
        if rank in self._given_up:
            return
        if stopped_ns is not None:
            super()._judge(rank, stopped_ns)
            return
        errors = os.path.join(self._run_dir, "errors")
        failure = find_failure(self._spec, rank, errors, None, self._kills)
        if failure is None:
            return
        if isinstance(self._link, Peer):
            self._link.outlived(failure)
        else:
            self._elastic.failed(failure)

    def _tell_ended(self, local_rank: int, exit_code: int) -> None:
        if isinstance(self._link, Peer):
            self._link.command_ended(str(local_rank), exit_code)
        else:
            self._elastic.ended(Slot(0, local_rank), exit_code)

    def _driver_exited(self, driver: RankProcess) -> None:
        ended = driver.ended
        assert ended is not None
        self._elastic.read()  # the messages before its end
        if self._elastic.is_over or self._teardown.begun:
            return
        words = describe_exit(ended.exit_code, ended.signal, None)
        if driver.spawn_failure is not None:
            words = driver.spawn_failure.error
        self._fail_driver(ended.exit_code or 1, ended.signal, f"{DRIVER} {words}")

    def _fail_driver(self, exit_code: int, number: int | None, error: str) -> None:
        assert self._driver is not None
        told = read_tail(self._driver.command.stderr_path)
        if told.error and number is None:
            error = f"{error}: {told.error}"
        failure = self._own_failure(error, exit_code)
        self._fail(failure._replace(signal=number, traceback=told.traceback))

    def _end_leftovers(self) -> None:
        if self._workers or self._driver is not None:
            super()._end_leftovers()
