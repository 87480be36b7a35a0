"""How each fault is made on the hosts of a bed, and taken back. It judges nothing."""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from campaign.cases import Case, FaultError
from campaign.hostile import LOGIN, SHIM, strangers
from suite.console import Console
from suite.remains import AGENT
from testbed import Host, Process, Testbed
from testbed.injecting import stuck_folder
from testbed.keeper import wait_for

SHIMS_SECONDS = 60.0
FIRST_PORT, LAST_PORT = 1024, 65535


@contextmanager
def fault(
    case: Case, bed: Testbed, console: Console, make: Callable[[], object]
) -> Iterator[None]:
    """Make the case's fault, and take it back after its seconds, at the latest with the end of the block.

    Args:
        make: Makes the faults that ``prepared`` has prepared.
    """
    host = bed.hosts[case.host]
    match case.fault:
        case "rank_killed":
            rank_process(case, host, console, signal.SIGKILL)
        case "rank_halted":
            with halted([rank_process(case, host, console, signal.SIGSTOP)], case.seconds):
                pass
        case "agent_killed":
            host.signal(signal.SIGKILL, AGENT)
        case "agent_halted":
            with halted(host.signal(signal.SIGSTOP, AGENT), case.seconds):
                pass
        case "agent_memory":
            with no_more_memory(host.processes(AGENT)):
                time.sleep(case.seconds)
        case "shim_killed":
            if not wait_for(lambda: bool(shims(host)), SHIMS_SECONDS):
                raise FaultError("no shim came")
            for each in shims(host):
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
        case "shim_halted":
            found = shims(host)
            for each in found:
                os.kill(each.pid, signal.SIGSTOP)
            with halted(found, case.seconds):
                pass
        case "console_halted":
            with suppress(ProcessLookupError):
                console.process.send_signal(signal.SIGSTOP)
                time.sleep(case.seconds)
                console.process.send_signal(signal.SIGCONT)
        case "power_cut":
            host.power_cut()
        case "network_gone":
            host.link_down("mgmt")
        case "logins_killed":
            host.signal(signal.SIGKILL, LOGIN)
        case "sshd_restarted":
            host.restart_sshd()
        case "ctrl_c":
            console.process.send_signal(signal.SIGINT)
        case "ctrl_c_twice":
            console.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            console.process.send_signal(signal.SIGINT)
        case "sigterm":
            console.process.send_signal(signal.SIGTERM)
        case "console_killed":
            console.process.kill()
        case "one_session" | "clock_forward" | "clock_back":
            make()
        case "strangers":
            with strangers(case, host, bed.hosts[case.host - 1]):
                time.sleep(case.seconds)
        case _ if case.fault in LASTING_FAULTS:
            with LASTING_FAULTS[case.fault](bed, host):
                time.sleep(case.seconds)
    yield


def rank_process(case: Case, host: Host, console: Console, number: int) -> Process:
    """Send a signal to the case's rank as soon as its process is known, and return it."""

    def found() -> list[Process]:
        pids = {each["pid"] for each in console.of("rank") if each["rank"] == case.rank}
        return [each for each in host.processes() if each.host_pid in pids]

    if not wait_for(lambda: bool(found()) or console.process.poll() is not None, SHIMS_SECONDS):
        raise FaultError("the rank never came")
    if not (there := found()):
        raise FaultError("the rank is gone")
    with suppress(ProcessLookupError):
        os.kill(there[-1].pid, number)
    return there[-1]


def shims(host: Host) -> list[Process]:
    """Return the host's shims; srun has one's command line among its words."""
    return [each for each in host.processes(SHIM) if "srun" not in each.argv]


@contextmanager
def halted(processes: list[Process], seconds: float) -> Iterator[None]:
    time.sleep(seconds)
    for each in processes:
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGCONT)
    yield


@contextmanager
def no_more_memory(processes: list[Process]) -> Iterator[None]:
    """Let a process have no more memory than it has."""
    limited = []
    for each in processes:
        with suppress(ProcessLookupError, FileNotFoundError):
            pages = int(Path(f"/proc/{each.pid}/statm").read_text().split()[0])
            _, hard = resource.prlimit(each.pid, resource.RLIMIT_AS)
            resource.prlimit(each.pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), hard))
            limited.append(each.pid)
    yield
    for pid in limited:
        with suppress(ProcessLookupError):
            resource.prlimit(
                pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )


@contextmanager
def undone(do: Callable[[], object], undo: Callable[[], object]) -> Iterator[None]:
    do()
    try:
        yield
    finally:
        undo()


@contextmanager
def refused_ssh(_: Testbed, host: Host) -> Iterator[None]:
    with undone(host.stop_sshd, host.start_sshd):
        host.signal(signal.SIGKILL, LOGIN)
        yield


@contextmanager
def lost_one_way(bed: Testbed, host: Host) -> Iterator[None]:
    other = next(each for each in bed.hosts if each is not host)
    with undone(lambda: host.lose_what_goes_to(other), host.lose_nothing):
        yield


@contextmanager
def read_only(_: Testbed, host: Host) -> Iterator[None]:
    """Nothing new is written in /tmp; what is open there for writing stays so, as the kernel wants it."""
    over = "mount --rbind /tmp /tmp && mount -o remount,bind,ro /tmp"
    with undone(lambda: host.exec(over, cwd="/"), lambda: host.exec("umount -l /tmp", cwd="/")):
        yield


LASTING_FAULTS = {
    "console_cut": lambda bed, _: undone(bed.cut_console, bed.restore_console),
    "host_cut_from_console": lambda _, h: undone(h.cut_from_console, h.mend_to_console),
    "ssh_refused": refused_ssh,
    "network_cut": lambda _, h: undone(lambda: h.link_down("mgmt"), lambda: h.link_up("mgmt")),
    "network_lost_one_way": lost_one_way,
    "ports_lost": lambda _, h: undone(lambda: h.drop_ports(FIRST_PORT, LAST_PORT), h.undrop_ports),
    "disk_full": lambda _, h: undone(h.full_disk, h.mend_disks),
    "disk_read_only": read_only,
    "stuck_filesystem": lambda _, h: stuck_folder(h),
}
