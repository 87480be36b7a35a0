"""Horovod's own elastic driver, with hosts from the run's coordinator and ranks started by the shims.

Comments mark each change from Horovod 0.28. Only the driver's program imports it: it needs the
node's Horovod.

The driver decides, as in horovodrun, which ranks run and how to react to
a failure. It starts no process and listens nowhere: the shim names the hosts, the shims start the
ranks, and the ranks ask the shim's key-value store.
Both directions carry one JSON object a line:

===========  ==========================================  ========================================
from         message                                     means
===========  ==========================================  ========================================
shim         ``hosts: [[name, slots], ...], min_hosts``  the hosts there are now, in order
shim         ``ended: [host, slot, exit code]``          a rank has ended
shim         ``ask: id, host, slot``                     a rank begins and asks for its place
driver       ``start: [host, slot], env``                start this rank
driver       ``end: [host, slot]``                       end this rank: its host is not used any more
driver       ``round: [host, ...], size``                the ranks are placed on these hosts
driver       ``answer: id, place``                       the place that the rank asked for
driver       ``outlived: [host, slot]``                  this rank's failure does not end the run
driver       ``over: reason``                            the run is over; empty when it succeeded
===========  ==========================================  ========================================
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from horovod.runner.elastic.discovery import HostDiscovery, HostManager
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.registration import FAILURE, SUCCESS, WorkerStateRegistry
from horovod.runner.gloo_run import create_slot_env_vars

from distconsole_agent.engines.elastic import DRIVER_SOCKET
from distconsole_agent.supervisor.proctree import ENV_RUN_DIR
from distconsole_agent.system.unix import connect


class ShimLine:
    """The line to the shim, for any thread: hosts and slots, ``min_hosts``; ``on_ask`` gets id, host, slot."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._ends: dict[tuple[str, int], Exited] = {}
        self.hosts: dict[str, int] = {}
        self.min_hosts = 1
        self.on_ask: Callable[[int, str, int], None] = lambda _ask, _host, _slot: None

    def send(self, **message: Any) -> None:
        """Tell the shim; one that is gone ends this process anyway."""
        with self._sending:
            self._sock.sendall(json.dumps(message).encode("ascii") + b"\n")

    def expect(self, host: str, slot: int) -> Exited:
        """Return the event that is set at the end of a rank, which is started next."""
        end = self._ends[host, slot] = Exited()
        return end

    def running(self, host: str) -> list[int]:
        """Return the slots of a host whose ranks were started and have not ended."""
        ends = list(self._ends.items())
        return sorted(slot for (where, slot), end in ends if where == host and not end.is_set())

    def take(self, message: dict[str, Any]) -> None:
        if "hosts" in message:
            self.min_hosts = int(message["min_hosts"])
            self.hosts = {str(name): int(slots) for name, slots in message["hosts"]}
        elif "ended" in message:
            host, slot, code = message["ended"]
            end = self._ends.get((host, slot))
            if end is not None:
                end.code = int(code)
                end.set()
        elif "ask" in message:
            self.on_ask(message["ask"], message["host"], message["slot"])


class Exited(threading.Event):
    """Set once a rank has ended; ``code`` is its exit code then."""

    code = 1


def in_thread(target: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()


def main(argv: list[str]) -> int:
    """Drive the run until it is over; return the exit code of this process."""
    run_dir = os.environ.get(ENV_RUN_DIR)
    if argv or not run_dir:
        sys.stderr.write("elastic-driver is started by the shim of a run\n")
        return 2
    logging.basicConfig(level=logging.ERROR, format="horovod: %(message)s")
    with connect(os.path.join(run_dir, DRIVER_SOCKET), None) as sock, sock.makefile("rb") as heard:
        line = ShimLine(sock)
        line.take(json.loads(heard.readline()))
        in_thread(_listen, line, heard)
        line.send(over=drive(line))
        # Threads of Horovod's wait for ranks that are not of interest any more.
        os._exit(0)


def _listen(line: ShimLine, lines: Iterable[bytes]) -> None:
    with contextlib.suppress(OSError):
        for text in lines:
            line.take(json.loads(text))
    os._exit(1)  # the shim is gone


def drive(line: ShimLine) -> str:
    """Run Horovod's driver until the job is over; return why it failed, or nothing."""
    keep_order(list(line.hosts))
    driver = HorovodDriver(line)
    line.on_ask = lambda *asked: in_thread(driver.answer, *asked)
    driver.start(sum(line.hosts.values()), driver.run_rank)
    driver.over.wait()
    return driver.why or ""


def keep_order(planned: Iterable[str]) -> None:
    """Have Horovod place ranks in the order of the plan: the oldest must keep the lowest ranks."""

    def in_order(available: set[str], _previous: list[str]) -> list[str]:
        return [host for host in planned if host in available]

    HostManager.order_available_hosts = staticmethod(in_order)


class CoordinatorsHosts(HostDiscovery):  # type: ignore[misc]
    """The hosts that the run's coordinator has; none that the plan lacks, none that is lost."""

    def __init__(self, line: ShimLine) -> None:
        self._line = line

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict(self._line.hosts)


class ShimsStore:
    """Stands in for the driver's rendezvous server: the key-value store in the shim."""

    def __init__(self, line: ShimLine) -> None:
        self._line = line

    def init(self, placed: list[Any]) -> None:
        hosts = list(dict.fromkeys(slot.hostname for slot in placed))
        self._line.send(round=hosts, size=len(placed))

    def stop(self) -> None:
        """Nothing: it lives as long as the run."""


class Hosts(HostManager):  # type: ignore[misc]
    """Horovod's list of its hosts; ends the ranks on a host that it gives up."""

    def __init__(self, discovery: HostDiscovery, line: ShimLine) -> None:
        super().__init__(discovery)
        self._line = line

    def blacklist(self, host: str) -> None:
        super().blacklist(host)
        for slot in self._line.running(host):
            self._line.send(end=[host, slot])


class States(WorkerStateRegistry):  # type: ignore[misc]
    """Horovod's count of ready, failed and ended ranks: once all are counted it goes on."""

    def __init__(self, driver: HorovodDriver, host_manager: HostManager, line: ShimLine) -> None:
        super().__init__(driver, host_manager)
        self._line = line

    def _wait(self, key: tuple[str, int], state: str, rendezvous_id: int) -> int:
        """See Horovod, which would count a rank twice that failed just before its question came."""
        if self._states.get(key) != state:
            raise RuntimeError(f"{key} is {self._states.get(key)}")
        if state == FAILURE:
            self._line.send(outlived=list(key))
        return int(super()._wait(key, state, rendezvous_id))


class HorovodDriver(ElasticDriver):  # type: ignore[misc]
    """Horovod's, which waits for no further hosts: there are none.

    Ranks do not register with it for changes of the hosts: hosts only go, which the
    ranks notice by themselves, and a notice to a rank 0 whose host does not answer holds Horovod's
    driver up for minutes.

    Attributes:
        why: Why the job failed; empty when it succeeded, None as long as it runs.
        over: Set when it does not run any more.
    """

    def __init__(self, line: ShimLine) -> None:
        self.why: str | None = None
        self._line = line
        self._failed_hosts: set[str] = set()
        discovery = CoordinatorsHosts(line)
        super().__init__(ShimsStore(line), discovery, 1, sum(line.hosts.values()))
        with self._wait_hosts_cond:  # its own thread looks for hosts already
            self._host_manager = Hosts(discovery, line)
            self._host_manager.update_available_hosts()
        self._worker_registry = States(self, self._host_manager, line)
        self.over: threading.Event = self._shutdown

    def run_rank(self, slot: Any, _events: list[threading.Event]) -> tuple[int, float]:
        """Have a rank started, wait for its end, and return its exit code and when that was."""
        place = slot.hostname, slot.local_rank
        end = self._line.expect(*place)
        self._line.send(start=place, env=create_slot_env_vars(slot))
        end.wait()
        return end.code, time.time()

    def answer(self, ask: int, host: str, slot: int) -> None:
        """Answer a rank that asks for its place, once all are there, unless it is ended."""
        try:
            self.record_ready(host, slot)
        except (RuntimeError, threading.BrokenBarrierError):
            return  # it failed while it waited
        if not self.finished() and self.has_rank_assignment(host, slot):
            place = self.get_slot_info(host, slot).to_response_string()
            self._line.send(answer=ask, place=place)

    def resume(self) -> None:
        """See Horovod; without enough hosts, the job is over."""
        if not self._too_few():
            super().resume()

    def stop(self, error_message: str | None = None) -> None:
        """See Horovod; the first call decides how the job ended."""
        if self.why is None:
            self.why = self._judge(error_message)
        super().stop(error_message)

    def _handle_worker_exit(self, slot_info: Any, exit_code: int, timestamp: float) -> None:
        """See Horovod, which gives up the host of a rank that fails; too few may be left at once."""
        host, slot = slot_info.hostname, slot_info.local_rank
        if exit_code and not self.finished() and self.has_rank_assignment(host, slot):
            self._failed_hosts.add(host)
            self._too_few()
        super()._handle_worker_exit(slot_info, exit_code, timestamp)

    def _too_few(self) -> bool:
        """Return whether fewer hosts are left than there must be; then the job is over."""
        left = len(self._line.hosts.keys() - self._failed_hosts)
        if left >= self._line.min_hosts:
            return False
        self.stop(f"of {self._line.min_hosts} hosts that it needs {left} are left")
        return True

    def _judge(self, error_message: str | None) -> str:
        if error_message:
            return error_message
        if self._worker_registry.count(FAILURE):
            return "ranks failed"
        return "" if self._worker_registry.count(SUCCESS) else "no rank is left"
