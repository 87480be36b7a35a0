"""The notes of shim and agent to the operator of a run, in words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from distconsole_agent.contract import records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distconsole_agent.supervisor.rank_output import OutputStream
    from distconsole_agent.system.room import Disk

MAX_PIDS_NAMED = 8
MAX_HOSTS_NAMED = 4
MAX_LOGS_NAMED = 4

UNSUPERVISED, RECORD_CUT = "run.unsupervised", "run.record_cut"
NOTICE_UNTOLD = "run.notice_untold"

NODE_LOST = "run.node_lost"


class RunNote(NamedTuple):
    """A message for the operator of a run, as ``protocol`` describes it."""

    check: str
    severity: str
    summary: str
    hint: str = ""
    rank: int | None = None
    host: str | None = None
    seen: str | None = None

    def entry(self, t: float) -> dict[str, Any]:
        """Return it as an entry of the journal, of UNIX time ``t``."""
        return {"t": round(t, 6), "kind": "note", **records.write(self)}


def info(check: str, summary: str, hint: str = "", **more: Any) -> RunNote:
    return RunNote(check, "info", summary, hint, **more)


def warn(check: str, summary: str, hint: str, **more: Any) -> RunNote:
    return RunNote(check, "warn", summary, hint, **more)


def fail(check: str, summary: str, hint: str, **more: Any) -> RunNote:
    return RunNote(check, "fail", summary, hint, **more)


def supervisor_break(host: str, told: str) -> RunNote:
    summary = f"the run's supervisor on {host} broke; its processes have been killed"
    return fail("run.supervisor_broke", summary, f"please report this: {told[-2000:]}")


def leftover(pids: Sequence[int], programs: Sequence[str]) -> RunNote:
    summary = f"{len(pids)} processes outlived their rank and are being ended: {_join_pids(pids)}"
    seen = ", ".join(programs[:MAX_PIDS_NAMED])
    return info("run.leftover", summary, "a script should end what it starts", seen=seen)


def swallowed(rank: int, error: str, is_all: bool) -> RunNote:
    """Return the note that a torchrun failed below a process that ended with 0; ``seen`` is how, if no other can have trained."""
    hint = "where the script goes on without its training: set -e in its first lines, or check=True in Python"
    summary, seen = ("torchrun failed", error) if is_all else (f"torchrun failed: {error}", "")
    return info("run.launcher_failed", summary, hint, rank=rank, seen=seen)


def hidden_failure(rank: int, error: str) -> RunNote:
    summary = f"rank {rank} failed, and the script that started it ended with 0: {error}"
    return warn("run.hidden_failure", summary, "in bash: wait for each PID, or set -e", rank=rank)


def port_stranger(told: str) -> RunNote:
    hint = "start the run again: it takes another port; see docs/site/security.md for who may listen there"
    return fail("run.port", told, hint)


def port_conflict(port: int) -> RunNote:
    """Return the note that a program of this user's, but not of the run, listens there."""
    summary = f"port {port}, where the ranks meet, is listened on by a process that the run did not start"
    hint = f"see which: ss -ltnp sport = :{port}; where it is of another job, the two mix"
    return warn("run.port", summary, hint)


def unkillable(host: str, pids: Sequence[int]) -> RunNote:
    summary = f"processes on {host} do not end on SIGKILL: {_join_pids(pids)}"
    hint = "the kernel holds them: dmesg and /proc/PID/wchan say whether for a disk, a mount, a driver"
    return fail("run.unkillable", summary, hint)


def missing_start(minutes: float) -> RunNote:
    summary = f"the run was prepared and not started for {minutes:g} minutes"
    return warn("run.never_started", summary, "start it again")


def node_lost(host: str, by: str, then: str, seconds: float, why: str) -> RunNote:
    """Return the note that ``host`` is lost (``by`` did not hear it for this long, unless ``why`` is known)."""
    if why:
        hint = f"look for what ended it: dmesg on {host} names whom the OOM killer ended"
        return fail(NODE_LOST, f"node {host} lost: {why}; {then}", hint, host=host)
    hint = (
        f"see whether {host} is up, and reaches the others: distconsole check --only net; "
        "--lost-after SECONDS waits longer"
    )
    summary = f"node {host} has not answered {by} for {seconds:g} s; {then}"
    return fail(NODE_LOST, summary, hint, host=host)


def supervision_loss(hosts: Sequence[str], seconds: float, give_up: float) -> RunNote:
    summary = (
        f"{_hosts_were(hosts)} not heard of for {seconds:g} s: the run goes on unsupervised there"
    )
    hint = (
        f"ranks are left alone; a host is given up after {give_up:g} s (--lost-after). "
        "The way from node to node: distconsole check --only net"
    )
    return warn(UNSUPERVISED, summary, hint)


def supervision_return(hosts: Sequence[str], seconds: float) -> RunNote:
    summary = f"{_hosts_were(hosts)} heard of again after {seconds:.0f} s: the run is supervised"
    return info(UNSUPERVISED, summary)


def connection_lost(quiet: dict[str, float], again_after: float) -> RunNote:
    """Return the note that Open MPI failed to connect ranks while ``quiet`` hosts (-> seconds) were unheard.

    ``again_after``: seconds until another attempt begins if the ranks still wait; 0 without one.
    """
    summary = (
        f"{not_heard_of(quiet)} while the ranks met, and Open MPI "
        "failed to connect ranks: it does not try that again, so they may wait for ever"
    )
    hint = "start the run again: distconsole rerun; with --max-restarts its ranks start again by themselves"
    if again_after:
        hint = (
            f"if they still wait in {again_after:.0f} s, they are started again (--max-restarts)"
        )
    return warn("run.connection_lost", summary, hint, host=min(quiet))


def not_heard_of(quiet: dict[str, float]) -> str:
    return f"{_hosts_were(sorted(quiet))} not heard of for {max(quiet.values()):.0f} s"


def cut_off(host: str, first: str, seconds: float) -> RunNote:
    """Return the note of a node that has lost ``first``: the others may go on without it."""
    summary = f"{host} has not heard of {first} for {seconds:g} s and ended its ranks"
    hint = f"see whether {host} reaches the other nodes over the training network"
    return warn("run.cut_off", summary, hint)


def no_restart(why: str) -> RunNote:
    hint = "distconsole rerun starts the run again, with another id"
    return warn("run.not_restarted", f"not restarted: {why}", hint)


def output_loss(host: str, logs: Sequence[OutputStream], *, over: bool) -> RunNote:
    """Return the note that output of ranks is dropped, with the total when the run is over."""
    named = [
        f"{log.dropped_lines:,} lines ({log.dropped_bytes:,} bytes) of {_log_name(log.name)}"
        for log in logs
    ]
    more = f" and of {len(logs) - MAX_LOGS_NAMED} others" if len(logs) > MAX_LOGS_NAMED else ""
    what = ", ".join(named[:MAX_LOGS_NAMED]) + more
    summary = f"{what} {'were' if over else 'are so far'} dropped on {host}: {logs[-1].room.why}"
    hint = f"make room on {host}, or allow more with --log-limit; the ranks themselves go on"
    return warn("run.output_dropped", summary, hint)


def disk_low(host: str, folder: str, disk: Disk) -> RunNote:
    summary = (
        f"the disk of {folder} on {host} is nearly full: {disk.free} of {disk.total} bytes "
        f"are free ({disk.free / disk.total:.0%})"
    )
    hint = (
        f"make room (on {host}: du -xh -d2 $(findmnt -nT {folder} -o TARGET) | sort -h | tail), or set "
        "node_dir to another disk; once it is full, output of ranks is dropped and checkpoints there fail"
    )
    return warn("run.disk_low", summary, hint)


def rings_unread(count: int, why: str) -> RunNote:
    summary = (
        f"{'1 ring' if count == 1 else f'{count} rings'} cannot be read: {why}; what these "
        "processes record is not shown, until it can be; the training goes on"
    )
    hint = "see the limits of the agent on this host (ulimit -Hn), and the versions of distconsole"
    return warn("run.rings_unread", summary, hint)


def unwatched(pid: int, why: str) -> RunNote:
    summary = f"process {pid} has imported torch without the hook: {why}; its steps are not shown"
    hint = "let --setup and wrappers keep PYTHONPATH, and a container see the node folder; --no-watch expects no steps"
    return warn("run.unwatched", summary, hint)


def rare_looks(rank: int, milliseconds: int) -> RunNote:
    summary = f"rank {rank} notes its waits for other ranks every {milliseconds} ms only, to slow nothing"
    hint = "who waits for whom is less exact: it waits very often in a step, or lacks processors"
    return info("run.rare_looks", summary, hint, rank=rank)


def two_trainings(rank: int, pids: Sequence[int]) -> RunNote:
    summary = f"two processes train as rank {rank} (pid {_join_pids(pids)}): trainings beside each other are shown as one"
    hint = "start each by a distconsole run of its own, or one after the other"
    return warn("run.two_trainings", summary, hint, rank=rank)


def record_cut(entries: int, logs: str) -> RunNote:
    summary = f"the disk is full: {entries} entries of windows and output, the last of this run, are not kept"
    return warn(RECORD_CUT, summary, f"the output itself is in {logs}")


def record_unkept(why: str) -> RunNote:
    summary = f"the disk does not keep the record of this run for good: {why}"
    hint = "it is told here, and may be lost on that host with its power; see there: dmesg -T"
    return warn(RECORD_CUT, summary, hint)


def notice_untold(host: str, why: str) -> RunNote:
    return warn(
        NOTICE_UNTOLD,
        f"{host} could not tell of this run: the webhook {why}",
        "see: distconsole notify test",
    )


def record_damage(lost_bytes: int, last_seq: int) -> RunNote:
    summary = (
        f"the end of this run's record was damaged here: {lost_bytes} bytes behind entry {last_seq} "
        "were cut off"
    )
    hint = (
        "did this host lose its power or run into disk errors? dmesg -T tells; what shim "
        "and logs still hold was read again"
    )
    return warn("run.journal_cut", summary, hint)


def supervisor_lost(reason: str, left: Sequence[int], *, slurm: bool, outlived: bool) -> RunNote:
    """Return the note that the shim has died, and which processes stay."""
    summary = f"{reason}; its processes have been killed"
    if left:
        summary += f", except {', '.join(map(str, left))}, which the kernel cannot end"
    hint = "did that host restart, or run out of memory? uptime -s; dmesg -T | grep -i kill"
    if slurm:
        hint = "scontrol show job says more, and sacct where there is accounting"
    return (warn if outlived else fail)("run.supervisor_lost", summary, hint)


def _hosts_were(hosts: Sequence[str]) -> str:
    shown = ", ".join(hosts[:MAX_HOSTS_NAMED])
    more = len(hosts) - MAX_HOSTS_NAMED
    return (
        f"{shown}{f' and {more} more' if more > 0 else ''} {'was' if len(hosts) == 1 else 'were'}"
    )


def _log_name(name: str) -> str:
    stem, _dot, stream = name.partition(".")
    words = stem.replace("-", " ") if stem.startswith("rank-") else "what starts the ranks"
    return words if stream == "out" else f"{words} (stderr)"


def _join_pids(pids: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(pids)[:MAX_PIDS_NAMED]))
