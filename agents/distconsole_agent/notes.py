"""What a shim has to tell the operator, in words: the ``note`` lines of ``shim.jsonl``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distconsole_agent.link import NODE_LOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from distconsole_agent.rank_output import Dropped
    from distconsole_agent.room import Disk

MAX_PIDS_NAMED = 8
MAX_HOSTS_NAMED = 4

UNSUPERVISED = "run.unsupervised"
MAX_LOGS_NAMED = 4

Note = dict[str, Any]


def broken(told: str) -> Note:
    """Return the note of a shim that is itself broken; ``told`` is its traceback."""
    return {
        "check": "run.supervisor_broke",
        "severity": "fail",
        "summary": "the run's supervisor on this node broke; its processes have been killed",
        "hint": f"please report this: {told[-2000:]}",
    }


def cannot_start(why: str, hint: str, rank: int | None = None) -> Note:
    """Return the note that says why a rank was not started."""
    note = {"check": "run.start", "severity": "fail", "summary": why, "hint": hint}
    return note if rank is None else {**note, "rank": rank}


def leftover(pids: Iterable[int]) -> Note:
    """Return the note that says what ranks that ended well have left running."""
    left = list(pids)
    return {
        "check": "run.leftover",
        "severity": "info",
        "summary": f"{len(left)} processes outlived their rank and are being ended: {_listed(left)}",
        "hint": "a script should end what it starts",
    }


def port_stranger(told: str) -> Note:
    """Return the note that says which other user listens where the ranks would meet."""
    return {
        "check": "run.port",
        "severity": "fail",
        "summary": told,
        "hint": "start the run again: it takes another port; see docs/security.md for who may listen there",
    }


def port_taken(port: int) -> Note:
    """Return the note that says that something of this user's, but not of the run, listens there."""
    return {
        "check": "run.port",
        "severity": "warn",
        "summary": f"port {port}, where the ranks meet, is listened on by a process that the run did not start",
        "hint": f"see which: ss -ltnp sport = :{port}; where it is of another job, the two mix",
    }


def unkillable(host: str, pids: Iterable[int]) -> Note:
    """Return the note that says what the kernel does not end."""
    return {
        "check": "run.unkillable",
        "severity": "fail",
        "summary": f"processes on {host} do not end on SIGKILL: {_listed(pids)}",
        "hint": "the kernel holds them: dmesg and /proc/PID/wchan say whether for a disk, a mount, a driver",
    }


def never_started(minutes: float) -> Note:
    """Return the note of a run that nobody has started."""
    return {
        "check": "run.never_started",
        "severity": "warn",
        "summary": f"the run was prepared and not started for {minutes:g} minutes",
        "hint": "start it again",
    }


def node_lost(host: str, then: str, seconds: float, *, ranks_went_on: bool = False) -> Note:
    """Return the note that says that ``host`` is lost, and what becomes of the run.

    Args:
        ranks_went_on: Ranks on the node that says so have made steps meanwhile.
    """
    hint = f"see whether {host} is up, and reaches the others: distconsole check --only net"
    if ranks_went_on:
        hint = (
            "ranks still made steps, so the way between the nodes broke that supervision takes, "
            "not the training: distconsole check --only net; --lost-after SECONDS waits longer"
        )
    return {
        "check": NODE_LOST,
        "severity": "fail",
        "summary": f"node {host} has not answered for {seconds:g} s; {then}",
        "hint": hint,
        "host": host,
    }


def unsupervised(hosts: Sequence[str], seconds: float, give_up: float) -> Note:
    """Return the note that says that hosts are not heard of, and that their ranks are left alone."""
    return {
        "check": UNSUPERVISED,
        "severity": "warn",
        "summary": f"{_named(hosts)} not heard of for {seconds:g} s: "
        "the run goes on unsupervised there",
        "hint": f"ranks are left alone; a host is given up after {give_up:g} s (--lost-after). "
        "The way from node to node: distconsole check --only net",
    }


def supervised(hosts: Iterable[str], seconds: float) -> Note:
    """Return the note that says that hosts are heard of again, after so long."""
    return {
        "check": UNSUPERVISED,
        "severity": "info",
        "summary": f"{_named(list(hosts))} heard of again after {seconds:.0f} s: "
        "the run is supervised",
        "hint": "",
    }


def cut_off(host: str, first: str, seconds: float) -> Note:
    """Return the note of a node that has lost ``first``: the others may go on without it."""
    return {
        "check": "run.cut_off",
        "severity": "warn",
        "summary": f"{host} has not heard of {first} for {seconds:g} s and ended its ranks",
        "hint": f"see whether {host} reaches the other nodes over the training network",
    }


def shim_gone(host: str, then: str, why: str) -> Note:
    """Return the note that says that the shim on ``host`` is gone, though the host answers."""
    return {
        "check": NODE_LOST,
        "severity": "fail",
        "summary": f"node {host} lost: {why}; {then}",
        "hint": f"look for what ended it: the OOM killer, in dmesg on {host}",
        "host": host,
    }


def not_restarted(why: str) -> Note:
    """Return the note that says why a run that failed is not started anew, though it might be."""
    return {
        "check": "run.not_restarted",
        "severity": "warn",
        "summary": f"not restarted: {why}",
        "hint": "distconsole rerun starts the run again, with another id",
    }


def _named(hosts: Sequence[str]) -> str:
    shown = ", ".join(hosts[:MAX_HOSTS_NAMED])
    more = len(hosts) - MAX_HOSTS_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def dropped(host: str, logs: Iterable[Dropped], *, over: bool) -> Note:
    """Return the note that says that output of ranks is dropped, or how much was when the run is over."""
    logs = list(logs)
    named = [f"{log.lines:,} lines ({log.bytes:,} bytes) of {_log_name(log.name)}" for log in logs]
    more = f" and of {len(logs) - MAX_LOGS_NAMED} others" if len(logs) > MAX_LOGS_NAMED else ""
    what = ", ".join(named[:MAX_LOGS_NAMED]) + more
    return {
        "check": "run.output_dropped",
        "severity": "warn",
        "summary": f"{what} {'were' if over else 'are so far'} dropped on {host}: {logs[-1].why}",
        "hint": f"make room on {host}, or allow more with --log-limit; the ranks themselves go on",
    }


def disk_low(host: str, folder: str, disk: Disk) -> Note:
    """Return the note that says that the disk of the run's folder is nearly full."""
    return {
        "check": "run.disk_low",
        "severity": "warn",
        "summary": f"the disk of {folder} on {host} is nearly full: {disk.free} of {disk.total} bytes "
        f"are free ({disk.free / disk.total:.0%})",
        "hint": f"make room (on {host}: du -xh -d2 $(findmnt -nT {folder} -o TARGET) | sort -h | tail), or set "
        "node_dir to another disk; once it is full, output of ranks is dropped and checkpoints there fail",
    }


def _log_name(name: str) -> str:
    stem, _dot, stream = name.partition(".")
    words = stem.replace("-", " ") if stem.startswith("rank-") else "what starts the ranks"
    return words if stream == "out" else f"{words} (stderr)"


def _listed(pids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(pids)[:MAX_PIDS_NAMED]))
