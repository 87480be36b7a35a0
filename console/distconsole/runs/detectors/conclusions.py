"""Conclusions of nodes about their run: notes, the first failure and its remedy, and the verdict; and whether a
launcher in a shell script failed, though the shell exited with 0."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import UNSET, structs

from distconsole.model.findings import Severity
from distconsole.model.names import join_some
from distconsole.model.run_events import EndState, RankState, RunFinding
from distconsole.model.run_summary import DISAGREE, FirstFailure
from distconsole.rpc import frames
from distconsole.runs.detectors.ranks import RanksSeen, ranks_text

NODE_LOST, RANK_LOST = "run.node_lost", "run.rank_lost"
"""Checks that report a lost node or rank; of severity ``warn`` if the run goes on."""

FIRST_FAILURE = "run.first_failure"
STALL, CONNECTION_LOST = "run.stall", "run.connection_lost"
STRAGGLER = "run.straggler"
NOT_FINITE = "run.not_finite"
XID = "run.xid"
UNSOUND = ("run.desync", "run.alone", "run.world", "run.split", "run.same_batch", "run.same_epoch")
"""Checks whose findings mean that the ranks do not train one model as they should; that does not pass by itself."""

LOST = "lost"
"""State of the verdict of a node that has lost the others: it counts only without a verdict of theirs."""

MAX_HOSTS_NAMED = 4
MAX_SUMMARY_CHARS = 240
"""Of an error in a summary; the whole of it is in the traceback."""


def first_failure_finding(
    ranks: RanksSeen, first: FirstFailure, left: tuple[int, ...], t: float
) -> RunFinding:
    """Return the finding on the first failure, with its traceback in ``seen``; ``left`` are ranks that had ended well before."""
    advice = remedy(first.error, first.traceback)
    if left:
        who = f"{ranks_text(left)} on {join_some(ranks.hosts_of(left), MAX_HOSTS_NAMED)}"
        if first.error.endswith("perhaps by mpirun"):  # for want of an MPI_Finalize
            advice = LEFT_FIRST
        advice = advice.replace(LEFT_FIRST, f"{who} left first, with exit code 0")
    elif known := re.findall(r"^rank \d+ had ended before \(.+\)$", first.traceback, re.MULTILINE):
        advice = advice.replace(LEFT_FIRST, "; ".join(known))
    absent = re.search(r"\bRanks? (\d+)[\d, ]* failed to pass monitoredBarrier", first.error)
    looked_at = absent[1] if absent else first.rank
    logs = f"distconsole logs {ranks.run}" + (f" --rank {looked_at}" if first.of_rank else "")
    error = first.error or f"exit code {first.exit_code}"
    if len(error) > MAX_SUMMARY_CHARS:
        error = f"{error[:MAX_SUMMARY_CHARS]}…"
    return ranks.finding(
        t,
        FIRST_FAILURE,
        structs.replace(first, error=error).blame,
        (first.rank,) if first.of_rank else (),
        hosts=() if first.error.startswith(DISAGREE) else (first.host,),
        severity=Severity.FAIL,
        seen=first.traceback,
        expected="every rank ends with exit code 0",
        hint="; ".join(filter(None, (advice, logs))),
    )


def restart_finding(
    ranks: RanksSeen,
    first: FirstFailure,
    left: tuple[int, ...],
    entry: frames.RestartEntry,
    t: float,
) -> RunFinding:
    """Return the finding on the first failure of an attempt that another follows, and the checkpoint to resume from."""
    soon = f" in {entry.pause:.3g} s" if entry.pause else ""
    since = f"with the checkpoint {entry.checkpoint}" if entry.checkpoint else "with no checkpoint"
    told = first_failure_finding(ranks, first, left, t)
    return structs.replace(
        told,
        check="run.restart",
        severity=Severity.WARN,
        summary=f"{told.summary}; restart {entry.restart} of {entry.of}{soon}, {since}",
    )


def note_finding(ranks: RanksSeen, host: str, entry: frames.NoteEntry, t: float) -> RunFinding:
    known = entry.severity in set(Severity)
    return ranks.finding(
        t,
        entry.check,
        entry.summary,
        () if entry.rank is None else (entry.rank,),
        hosts=(host,),
        severity=Severity(entry.severity) if known else Severity.INFO,
        seen=entry.seen or "",
        hint=entry.hint or "",
    )


def is_unsound(finding: RunFinding) -> bool:
    """Return True if ``finding`` makes the training worthless until a restart.

    A NaN metric is visible itself, and may be finite later; ``seen`` has its value.
    """
    of_gradient = finding.check == NOT_FINITE and not finding.seen
    return finding.check in UNSOUND or of_gradient


class RunOutcome:
    """How one run, or its last attempt, ends.

    Only reports of the coordinator's host count. Those of other hosts, which may have lost it, count
    if the state is asked for without one: then the coordinator will not be heard of again.
    """

    def __init__(self, coordinator: str) -> None:
        self._coordinator = coordinator
        self._failures: list[tuple[int, str, frames.FailureEntry]] = []
        self._verdict: frames.VerdictEntry | None = None
        self._others: dict[str, frames.VerdictEntry] = {}
        self._ends: dict[str, frames.EndEntry] = {}

    @property
    def judged(self) -> bool:
        known = any(verdict.state != LOST for verdict in self._others.values())
        return self._verdict is not None or known or bool(self._ends)

    @property
    def has_verdict(self) -> bool:
        return self._verdict is not None

    @property
    def seconds(self) -> float | None:
        """Longest duration that a node reported; None while no node has ended."""
        return max((entry.seconds for entry in self._ends.values()), default=None)

    @property
    def ended_hosts(self) -> frozenset[str]:
        return frozenset(self._ends)

    def begin_again(self) -> None:
        """Forget failures: they are of an attempt that another has followed."""
        self._failures.clear()

    def failed(self, host: str, entry: frames.FailureEntry, t: float) -> None:
        """Keep a failure; the coordinator decides which came first."""
        self._failures.append((entry.t_ns + int((t - entry.t) * 1e9), host, entry))

    def take(self, host: str, entry: frames.VerdictEntry) -> FirstFailure | None:
        """Take a verdict; return the failure that it blames, if it is the coordinator's."""
        if host != self._coordinator:
            self._others.setdefault(host, entry)
            return None
        if self._verdict is not None:
            return None
        self._verdict = entry
        return self.first_failure()

    def ended(self, host: str, entry: frames.EndEntry) -> None:
        self._ends[host] = entry

    def first_failure(self) -> FirstFailure | None:
        """Return the failure that the coordinator blames; without it, that of the others; else the earliest one."""
        if self._verdict is not None:
            return blame(self._verdict.first_failure)
        others = self._others.values()
        for verdict in sorted(others, key=lambda verdict: verdict.state == LOST):
            if verdict.first_failure is not None:
                return blame(verdict.first_failure)
        if not self._failures:
            return None
        _, host, entry = min(self._failures, key=lambda failure: failure[0])
        return blame(entry, host)

    def state(self, first: FirstFailure | None) -> tuple[EndState, int]:
        """Return state and exit code; a run without a verdict did not succeed."""
        judged = self._judged()
        for state in (EndState.FAILED, LOST, EndState.STOPPED):
            said = next((said for said in judged if said.state == state), None)
            if said is not None:
                ended = EndState.STOPPED if state == EndState.STOPPED else EndState.FAILED
                return ended, said.exit_code or 1
        if judged and all(said.state == EndState.SUCCEEDED for said in judged):
            return EndState.SUCCEEDED, 0
        return EndState.FAILED, first.exit_code if first is not None else 1

    def _judged(self) -> list[frames.VerdictEntry | frames.EndEntry]:
        """Return the verdict that counts: the coordinator's, else that of other nodes, else their ends."""
        word = self._verdict or self._ends.get(self._coordinator)
        if word is not None:
            return [word]
        others = [verdict for verdict in self._others.values() if verdict.state != LOST]
        return [*others] or [*self._ends.values()]


def blame(
    said: frames.FailedFirst | frames.FailureEntry | None, host: str = ""
) -> FirstFailure | None:
    """Return the failure that the coordinator blames, or one that a node reports of a rank of its own on ``host``."""
    if said is None:
        return None
    return FirstFailure(
        rank=said.rank,
        host=said.host if isinstance(said, frames.FailedFirst) else host,
        exit_code=1 if said.exit_code is None else said.exit_code,
        error=said.error or "",
        signal=UNSET if said.signal is None else said.signal,
        traceback=said.traceback or "",
    )


SENDERS = (
    "a limit of time or memory of the scheduler (Slurm: sacct -j JOB -o state), a container that was "
    "stopped, ulimit -t, earlyoom or systemd-oomd (journalctl -u earlyoom -u systemd-oomd), kill -9"
)
"""Senders of SIGKILL besides the kernel's own out-of-memory killer."""

LOOKED_AT_CHARS = 16 * 1024
"""Characters that are kept of a rank's error: from its beginning, and of the rest from the end."""

LEFT_FIRST = "the other end of a connection was closed"
"""Replaced by the ranks that had ended well before, where they are known."""

REMEDIES = (
    (
        r"^the script ended while",
        "let the script wait for what it starts: take & and nohup away, or put wait at its end",
    ),
    (
        r"^an error, and the script that started",
        "let the script end with the launcher's exit code: set -e at its top, or exit $? behind it",
    ),
    (
        r"unrecognized arguments:.{0,400}--local[-_]rank",
        "the script wants no --local_rank: leave --pass-args out; it reads LOCAL_RANK",
    ),
    (
        r"required: (\S+, )*--(local[-_]rank|rank|world[-_]size|init[-_]method)",
        "the script wants its rank as arguments: --pass-args torch-launch (--local_rank R) or "
        "init-method (--init_method … --rank R --world_size N)",
    ),
    (
        r"(rank|world[_ ]size) parameter missing",
        "its --rank and --world_size were not given: --pass-args init-method",
    ),
    (
        r"(error initializing torch\.distributed.*environment variable |KeyError: ')"
        r"(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)",
        "the ranks were not given: start it with --launcher torch, or torchrun",
    ),
    (
        r"Fatal Python error: .{0,80}encoding|No module named 'encodings'",
        "Python does not find its own library: look for PYTHONHOME and PYTHONPLATLIBDIR in the start-up files of that "
        "host; --env PYTHONHOME= --env PYTHONPLATLIBDIR= leaves them out",
    ),
    (
        r"(No module named|cannot import name|undefined symbol|Extension horovod\.torch has not "
        r"been built|cannot open shared object file)",
        "compare the hosts' packages: distconsole check --only python,torch,horovod (the project's own: "
        "check SCRIPT); the rank's Python is --python, after --setup",
    ),
    (
        r"CUDA out of memory|torch\.OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED",
        "a smaller batch, or fewer ranks on the GPU; see whose memory it is: distconsole check "
        "--only gpu.clean, or top",
    ),
    (
        r"bus error|out of shared memory|(/dev/shm|</torch_).{0,400}No space left|"
        r"No space left on device.{0,400}shm|posix_fallocate",
        "see whether shared memory (/dev/shm) is full or small: distconsole check --only shm; if so, docker: "
        "--shm-size=8g or --ipc=host, or fewer DataLoader workers",
    ),
    (
        r"No space left on device|unexpected pos \d+ vs \d+|basic_ios::clear|StreamWriter failed writing",
        "make room on that host, if a disk or quota there is full: distconsole check --only disk",
    ),
    (r"DataLoader worker \(pid", "a worker died: num_workers=0 shows why; dmesg | grep -i oom"),
    (r"Too many open files", "more file descriptors: ulimit -n $(ulimit -Hn), by --setup"),
    (
        r"EADDRINUSE|Address already in use",
        "another process holds the port; leave MASTER_PORT out, so that a free one is taken, or "
        "see who: distconsole check --only port",
    ),
    (
        r"Unable to find address for|no socket interface found|NoValidAddressesFound",
        "no usable interface was found: distconsole check --only env.iface_exists tells whether a "
        "variable names one that this host lacks; leave it out, or give --nic",
    ),
    (
        r"invalid device ordinal",
        "the rank wants a GPU that it cannot see: look whether --nproc is more than the host's GPUs, "
        "CUDA_VISIBLE_DEVICES hides some, or RANK is used where LOCAL_RANK for the device is meant",
    ),
    (
        r"Duplicate GPU detected",
        "two ranks use one GPU: torch.cuda.set_device(LOCAL_RANK) before the first collective",
    ),
    (
        r"no kernel image is available|is not compatible with the current PyTorch",
        "this torch has no code for this GPU: distconsole check --only torch.cuda",
    ),
    (
        r"driver version is insufficient|CUDA_ERROR_SYSTEM_NOT_READY|"
        r"system not yet initialized|Driver/library version mismatch",
        "see driver, library and torch together: distconsole check --only gpu,torch.cuda",
    ),
    (
        r"device-side assert",
        "--env CUDA_LAUNCH_BLOCKING=1 names the line; look at the indices there, such as labels",
    ),
    (
        r"Expected to have finished reduction in the prior iteration",
        "some parameter got no gradient on this rank: "
        "DistributedDataParallel(…, find_unused_parameters=True), or let the loss use it",
    ),
    (
        r"Mismatch between currentRank|Detected mismatch between collectives|ranks disagree in a c",
        "the ranks are in different collectives: look for one that only some ranks reach, as "
        "below `if rank == 0`, and for shapes and types that are not equal on all ranks",
    ),
    (
        r"wait timeout after \d+ms, keys: /default_pg/|Timed out after \d+ seconds waiting for clients",
        "not all ranks came to init_process_group: look whether the script sets a world size, MASTER_ADDR or "
        "MASTER_PORT of its own in place of the run's, and what the others do before it",
    ),
    (
        r"failed to pass monitoredBarrier",
        "the ranks that the error names, by their numbers in the group, did not come in time: look what they did",
    ),
    (
        r"Watchdog caught collective operation timeout|"
        r"Timed out waiting \d+ms for (send|recv) operation|Wait timeout|stall(ed)? shutdown",
        "a collective was not over in time: look for a rank that hangs, is slow or has fewer steps, and for "
        "a collective below `if rank == 0`; --verify-sync 100 compares the ranks",
    ),
    (
        r"(client socket has timed out|connectFullMesh failed|Connect timeout|unhandled system error|"
        r"Connection refused|No route to host|Network is unreachable)",
        "a connection was not made: look whether the error's address is right; whether ranks can reach "
        "each other says distconsole check --only net,os.hostname,coll",
    ),
    (
        r"Connection (closed by peer|reset by peer)|NCCL remote process exited|"
        r"Horovod has been shut down|Broken pipe",
        f"{LEFT_FIRST}: look for ranks with fewer batches than others, or an early exit",
    ),
    (
        r"terminate called without an active exception",
        "look whether the work was done: a thread of gloo may meet an ending Python after the last "
        "collective; then end the script with dist.barrier(), time.sleep(0.5)",
    ),
    (
        r"killed by SIGKILL \(out of memory\?\)",
        "the kernel killed for memory on that host meanwhile: dmesg | grep -i oom names whom; fewer "
        "DataLoader workers, or a smaller batch",
    ),
    (
        r"killed by SIGKILL$",
        f"the kernel killed nobody for memory there meanwhile, so somebody sent it: {SENDERS}",
    ),
    (
        r"killed by SIGKILL \(for memory",
        f"the kernel for memory (sudo dmesg | grep -i oom on that host), or somebody sent it: {SENDERS}",
    ),
    (
        r"(Command 'git|'git',).{0,200} returned non-zero exit status 128|InvalidGitRepositoryError",
        "a copy by --sync has no .git: the commit, if Git told one, is in DISTCONSOLE_GIT_COMMIT",
    ),
    (
        r"killed by SIGSEGV",
        "its last lines say where, with --env PYTHONFAULTHANDLER=1; compare the hosts' packages: "
        "distconsole check --only python,torch,horovod",
    ),
)
"""Pattern of an error -> its remedy; the first match counts."""

A_COPY = r"/runs/[^/\s]+/code/"
LOST_IN_A_COPY = rf"No module named|No such file or directory: '([^/]|\S+{A_COPY})"
BROUGHT = "if .gitignore names it, a line !NAME in .distconsoleignore brings it by --sync"


def remedy(error: str, traceback: str) -> str:
    """Return the remedy of an error, by its last line or else by the traceback's end; empty for an unknown one."""
    lacks = re.search(r"No module named '(\w+)", error[:LOOKED_AT_CHARS])
    script = re.search(r'File "(\S+)\.py", line', traceback)
    if lacks and script and f"/{lacks[1]}/" in script[1]:
        module = ".".join((lacks[1], *script[1].rpartition(f"/{lacks[1]}/")[2].split("/")))
        return f"{lacks[1]} is the package of the script: distconsole run -m {module}, from the folder above it"
    lost = re.search(LOST_IN_A_COPY, error[:LOOKED_AT_CHARS]) and re.search(A_COPY, traceback)
    hints = [BROUGHT] if lost else []
    for said in (error[:LOOKED_AT_CHARS], traceback[-LOOKED_AT_CHARS:]):
        found = (hint for words, hint in REMEDIES if re.search(words, said, re.IGNORECASE))
        if hint := next(found, ""):
            return "; else ".join((*hints, hint))
    return "".join(hints)


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
