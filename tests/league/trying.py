"""One case of the league: the training runs on two nodes, through the operations that a console performs."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil

from distconsole.config.schema import Config
from distconsole.errors import ConsoleError
from distconsole.model.events import Diagnosed
from distconsole.model.findings import Severity
from distconsole.model.requests import LauncherName, PassArgs, Run, Where, Why
from distconsole.model.run_events import LogLine, PlanMade, RunFinding, Window
from distconsole.operations import SessionSource
from distconsole.runs.diagnosis.stacks import line_text
from distconsole.session import Session, open_session
from distconsole.ssh.embedded import MARK, EmbeddedCluster
from league.baseline import look_by_hand
from league.cases import NODES, Case
from suite.driving import Operator
from suite.obstacles import obstacle
from testbed import Testbed
from testbed.slurm import SLURM_ENVIRONMENT, Slurm

SETTLE_SECONDS = 5.5
"""Between a fault and the question: by then the ranks stand still (``pace.fresh_seconds``)."""
STALL_SECONDS = 50.0
STALLS = ("run.stall", "run.rendezvous")
SLOW_SECONDS, DEATH_SECONDS, HEALTHY_SECONDS = 25.0, 30.0, 16.0
REFUSED_SECONDS = 150.0
START_SECONDS = 120.0
TOO_FEW_STEPS = 40
LAUNCHERS = {"legacy": "torch", "spawn": "single", "slurm": "torch"}
ON_BED = ("mpi", "slurm")
"""Launchers whose ranks need hosts with a network and processes of their own."""
NEEDED_FILES = {
    "no_answer": ("/dev/fuse",),
    "out_of_memory": ("/sys/fs/cgroup/memory/cgroup.procs", "/sys/fs/cgroup/cgroup.procs"),
}
Nodes = EmbeddedCluster | Testbed


@dataclass
class Verdict:
    """What was said of a case.

    Attributes:
        ranks: Who is blamed.
        seconds: From the fault to the answer; of a hang, how long the answer took.
        said: The sentence.
        alarms: Further findings that blame, of a healthy training all of them.
        automatic: Kind, ranks and seconds after the fault of the finding that came by itself, where waited for.
        by_hand: What today's tools tell, where they were tried.
        asked: Of the class asked: how many asks, answers, processes, deaths and changed results.
        error: Why the case could not be judged.
    """

    kind: str = ""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    place: str = ""
    operation: str = ""
    seconds: float | None = None
    said: str = ""
    alarms: list[str] = field(default_factory=list)
    automatic: dict[str, Any] | None = None
    by_hand: dict[str, Any] | None = None
    asked: dict[str, int] | None = None
    evidence: list[str] = field(default_factory=list)
    error: str = ""


@contextmanager
def nodes(folder: Path, *, bed: bool = False) -> Iterator[tuple[Nodes, SessionSource]]:
    """Two embedded nodes, or hosts of a testbed with Slurm, and the sessions of an operator of them."""
    if bed:
        settings = {"SlurmdTimeout": "300"}
        with (
            Testbed(NODES + 1, environment=SLURM_ENVIRONMENT) as hosts,
            Slurm(hosts, settings=settings),
        ):
            config = str(hosts.ssh_config)
            yield hosts, lambda where: open_session(replace(where, ssh_config=config))
        return
    with (
        EmbeddedCluster(NODES, folder=folder) as cluster,
        Session(Config(), cluster.cluster) as session,
    ):
        yield cluster, lambda _where: nullcontext(session)


def obstacle_of(case: Case) -> str:
    """Return why a case cannot run on this machine; empty where it can."""
    needs = ["horovod"] if case.engine == "hvd" else []
    needs += ["testbed", case.launcher] if case.launcher in ON_BED else []
    files = NEEDED_FILES.get(case.fault.removeprefix("worker_"), ())
    lacking = files and not any(os.access(file, os.W_OK) for file in files)
    found = (*map(obstacle, needs), f"needs to write {files[0]}" if lacking else "")
    return next(filter(None, found), "")


def request_of(case: Case, scripts: Path) -> Run:
    """Return the run of a case."""
    named = LAUNCHERS.get(case.launcher, case.launcher)
    by_mpi = (("HOROVOD_CONTROLLER", "mpi"),) if (case.engine, named) == ("hvd", "mpi") else ()
    slurm = case.launcher == "slurm"
    return Run(
        str(scripts / ("job.sh" if case.place == "prepare" else "job.py")),
        case.arguments,
        where=Where(hosts="node1,node2" if named == "mpi" else None),
        slurm="-N2" if slurm else None,
        slurm_login=f"node{NODES + 1}" if slurm else None,
        launcher=LauncherName(named),
        nproc=None if named == "single" else str(case.ranks // NODES),
        pass_args=PassArgs("torch-launch") if case.launcher == "legacy" else None,
        env=(("OMP_NUM_THREADS", "1"), ("PYTHONDONTWRITEBYTECODE", "1"), *by_mpi),
        verify_sync=5 if case.klass == "wrong" else None,
        name="league",
        grace_seconds=1,
    )


def try_case(
    case: Case,
    scripts: Path,
    cluster: Nodes,
    sessions: SessionSource,
    *,
    sampled: bool,
    calls: Path | None,
) -> Verdict:
    """Run a case and return what is said of it.

    Args:
        scripts: The folder of ``job.py``.
        sampled: Whether to look at a hang by today's tools, too, and to wait for the finding of its stall.
        calls: Where to write what the ranks told, as the judge's own cases can be made of it.
    """
    if case.fault in HOST_FAULTS and case.place == "start":
        HOST_FAULTS[case.fault](cluster, case.hosts[0])
    with Operator(request_of(case, scripts), sessions) as run:
        try:
            match case.klass:
                case "hang":
                    return _hang(case, run, cluster, sessions, sampled=sampled, calls=calls)
                case "dying":
                    return _refused(run) if case.fault == "slurmd_stopped" else _dying(run)
                case "healthy":
                    return _healthy(run, sessions)
                case _:
                    return _finding(case, run)
        except Exception as error:  # noqa: BLE001  (a case that breaks is a miss of its own)
            return Verdict(
                error=f"{type(error).__name__}: {error}"[:600], evidence=run.lines()[-12:]
            )
        finally:
            run.control.kill()
            with suppress(Exception):
                run.finish(30)
            _remove_groups()


def _remove_groups() -> None:
    """Remove the control groups of ranks that are gone."""
    root = Path("/sys/fs/cgroup")
    for group in (*root.glob("league-*"), *root.glob("memory/league-*")):
        with suppress(OSError):
            group.rmdir()


def _hang(
    case: Case,
    run: Operator,
    cluster: Nodes,
    sessions: SessionSource,
    *,
    sampled: bool,
    calls: Path | None,
) -> Verdict:
    if case.fault in HOST_FAULTS and case.place != "start":
        run.see(Window, lambda window: window.step > case.at_step, START_SECONDS)
        HOST_FAULTS[case.fault](cluster, case.hosts[0])
        fault = time.time()
    else:
        fault = 0.0 if case.fault in HOST_FAULTS else _see_fault(run)
        if case.place in ("prepare", "start", "import", "init"):
            fault = _see_others_meet(case, run)
    time.sleep(max(0.0, fault + SETTLE_SECONDS - time.time()))
    asked = time.time()
    told = _ask(run, sessions)
    found = told.diagnosis
    verdict = Verdict(
        found.kind.value, found.ranks, found.hosts,
        "" if found.place is None else line_text(found.place), found.operation,
        round(time.time() - asked, 2), found.summary, evidence=[*found.evidence, *found.lacks],
    )  # fmt: skip
    if calls is not None:
        text = msgspec.json.format(msgspec.json.encode(told))
        (calls / f"{case.name.replace('/', '_')}.json").write_bytes(text)
    if sampled:
        verdict.by_hand = look_by_hand(case, told.calls)
        verdict.automatic = _automatic(run, fault)
    return verdict


def _ask(run: Operator, sessions: SessionSource) -> Diagnosed:
    with Operator(Why(run.run), sessions) as why:
        why.finish(40)
    return why.of(Diagnosed)[0]


def _automatic(run: Operator, fault: float) -> dict[str, Any]:
    try:
        named = run.see(RunFinding, lambda each: each.check in STALLS, STALL_SECONDS)
    except AssertionError:
        return {"kind": "", "ranks": (), "seconds": None}
    kind = named.kind if isinstance(named.kind, str) else ""
    return {
        "kind": kind,
        "ranks": ranks_of(named),
        "seconds": round(named.t - fault, 1),
        "said": named.summary,
    }


def _see_fault(run: Operator) -> float:
    line = run.see(LogLine, lambda each: each.line.startswith("FAULT "), START_SECONDS)
    return float(line.line.split()[1])


def _cut_power(cluster: Nodes, host: str) -> None:
    if isinstance(cluster, EmbeddedCluster):
        cluster.power_cut(host)
    else:
        next(each for each in cluster.hosts if each.name == host).power_cut()


def _stop_slurmd(cluster: Nodes, host: str) -> None:
    """Stop the daemon that starts the ranks of a host: Slurm waits for it, and so do the other ranks."""
    assert isinstance(cluster, Testbed)
    next(each for each in cluster.hosts if each.name == host).signal(signal.SIGSTOP, "slurmd")


def _freeze(cluster: Nodes, host: str) -> None:
    """Stop every process of a host, as one whose kernel lives and nothing else does."""
    assert isinstance(cluster, EmbeddedCluster)
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == f"{cluster.mark}-{host}":
                for each in (process, *process.children(recursive=True)):
                    each.suspend()


HOST_FAULTS = {"power_cut": _cut_power, "frozen": _freeze, "slurmd_stopped": _stop_slurmd}


def _see_others_meet(case: Case, run: Operator) -> float:
    """Wait until all but the culprit are in the rendezvous; return when."""
    met = set()

    def are_there(line: LogLine) -> bool:
        met.update({line.rank} if line.line == "MEETS" else ())
        return len(met) >= case.ranks - len(case.odd)

    run.see(LogLine, are_there, START_SECONDS)
    return time.time()


def _dying(run: Operator) -> Verdict:
    fault = _see_fault(run)
    end = run.end(DEATH_SECONDS)
    first = end.first_failure
    if not isinstance(first, msgspec.Struct):
        return Verdict(said=f"{end.state.value} {end.exit_code}")
    return Verdict(
        "run.first_failure",
        (first.rank,) if first.of_rank else (),
        (first.host,) if first.of_rank else (),
        seconds=round(end.t - fault, 2),
        said=first.short_blame,
    )


def _refused(run: Operator) -> Verdict:
    """Wait until the start is given up; whoever's host is named is to blame."""
    began = time.time()
    try:
        run.finish(REFUSED_SECONDS)
    except ConsoleError as error:
        said = str(error)
        plan = run.of(PlanMade)[0]
        named = [each for each in plan.hosts if each.host in said]
        ranks = tuple(rank for each in named for rank in each.ranks)
        hosts = tuple(each.host for each in named)
        return Verdict("refused", ranks, hosts, seconds=round(time.time() - began, 1), said=said)
    return Verdict(said="it was not refused")


def _finding(case: Case, run: Operator) -> Verdict:
    fault = 0.0
    if case.klass == "slow":
        run.see(Window, lambda window: window.step >= case.at_step, START_SECONDS)
        fault = time.time()
    elif case.fault != "same_batch":
        fault = _see_fault(run)
    wanted = "run.straggler" if case.klass == "slow" else case.kinds[0]
    patience = SLOW_SECONDS if fault else START_SECONDS
    try:
        found = run.see(RunFinding, lambda each: each.check == wanted, patience)
    except AssertionError:
        return Verdict(alarms=_alarms(run))
    seconds = round(found.t - fault, 1) if fault else None
    return Verdict(found.check, ranks_of(found), found.hosts, seconds=seconds, said=found.summary)


def _healthy(run: Operator, sessions: SessionSource) -> Verdict:
    run.see(Window, lambda window: window.steps > 0, START_SECONDS)
    until = time.time() + HEALTHY_SECONDS
    with suppress(AssertionError):
        run.end(HEALTHY_SECONDS)
    assert time.time() >= until - 1, f"it ended: {run.lines()[-5:]}"
    steps = max(window.step for window in run.of(Window))
    assert steps > TOO_FEW_STEPS, f"it made {steps} steps"
    found = _ask(run, sessions).diagnosis
    blames = [f"why: {found.summary}"] if found.hang else []
    return Verdict("healthy", said=found.summary, alarms=[*_alarms(run), *blames])


def _alarms(run: Operator) -> list[str]:
    return [
        f"{each.check}: {each.summary}"
        for each in run.of(RunFinding)
        if each.severity in (Severity.WARN, Severity.FAIL)
    ]


def ranks_of(found: RunFinding) -> tuple[int, ...]:
    """Return whom a finding names: its rank, else those in its words; of a rendezvous who is not there."""
    if isinstance(found.rank, int):
        return (found.rank,)
    summary = found.summary
    if found.check == "run.rendezvous":
        summary = summary.rpartition("; ")[2]
    _, _, words = summary.replace("rank ", "ranks ", 1).partition("ranks ")
    ranks: list[int] = []
    for word in words.replace(",", " ").split():
        first, _, last = word.strip("()").partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            break
        ranks += range(int(first), int(last or first) + 1)
    return tuple(ranks)


def as_json(case: Case, verdict: Verdict, score: dict[str, Any]) -> dict[str, Any]:
    return {"case": asdict(case), "verdict": asdict(verdict), "score": score}
