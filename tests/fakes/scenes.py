"""Scenes for the screen: events of runs, checks and hosts at fixed times. It performs nothing."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from distconsole.model.events import (
    CheckEnded,
    CheckJudged,
    CheckProgress,
    Event,
    HostStatus,
    LaunchersJudged,
    LaunchKept,
    Narration,
    PairProgress,
    RunListed,
    RunsCompared,
    ScriptSought,
    TextMade,
)
from distconsole.model.findings import Cure, Finding, HostCure, Proof, Severity
from distconsole.model.reports import (
    CheckOutcome,
    CheckReport,
    ChoiceReport,
    HostReport,
    NetworkReport,
    PairReport,
)
from distconsole.model.requests import LauncherName, Run, Where
from distconsole.model.run_events import (
    EndState,
    GpuSample,
    LinkChanged,
    LogLine,
    Metric,
    NodeSample,
    PhaseReached,
    PlanMade,
    PlannedHost,
    RankChanged,
    RankState,
    RunEnded,
    RunEvent,
    RunFinding,
    RunRestarted,
    Window,
)
from distconsole.model.run_summary import FirstFailure, RunSummary
from distconsole.rpc.frames import LogEntry
from distconsole.runs.compare.figures import Compared, RunStatistics, compare, curves_of
from distconsole.runs.detectors.conclusions import first_failure_finding
from distconsole.runs.detectors.ranks import RanksSeen
from distconsole.runs.reduce import RunReducer
from distconsole.ssh.plain import without_colours

START = 1_763_700_000.0
"""UNIX seconds at which every scene's run begins."""
MINUTE_LATER = START + 60.0
RUN = "digits-1121-a3f9"
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 112, in <module>
    main()
  File "train.py", line 87, in main
    loss.backward()
RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"""


def plan(world: int, per_host: int = 2) -> PlanMade:
    hosts = tuple(
        PlannedHost(
            host=f"node{host + 1}",
            ranks=tuple(range(host * per_host, min(world, (host + 1) * per_host))),
            command="python train.py",
            env={},
        )
        for host in range(math.ceil(world / per_host))
    )
    return PlanMade(
        t=START,
        run=RUN,
        launcher="torch",
        why="the script uses torch.distributed",
        world_size=world,
        hosts=hosts,
        name="digits",
        script="/home/me/train.py",
    )


def rank(number: int, state: RankState, t: float = START, per_host: int = 2) -> RankChanged:
    codes = {RankState.FAILED: 1, RankState.KILLED: 143, RankState.EXITED: 0}
    extra: dict[str, Any] = {"exit_code": codes[state]} if state in codes else {}
    extra |= {"signal": 15, "stopped": True} if state is RankState.KILLED else {}
    return RankChanged(
        t=t,
        run=RUN,
        rank=number,
        host=f"node{number // per_host + 1}",
        local_rank=number % per_host,
        pid=4000 + number,
        state=state,
        **extra,
    )


def window(number: int, step: int, t: float, slow: float = 1.0, per_host: int = 2) -> Window:
    return Window(
        t=t,
        run=RUN,
        rank=number,
        host=f"node{number // per_host + 1}",
        step=step,
        steps=10,
        step_ms_mean=18.0 * slow + number % 7 * 0.1,
        step_ms_p95=24.0 * slow,
        data_ms=2.0 + 18.0 * (slow - 1),
        forward_ms=5.0,
        backward_ms=8.0,
        optimizer_ms=1.5,
        samples_s=430.0 - number % 5,
        metrics={"loss": 2.3 * math.exp(-step / 200)},
        dropped=0,
    )


def gpu(number: int, t: float, per_host: int = 2) -> GpuSample:
    return GpuSample(
        t=t,
        run=RUN,
        host=f"node{number // per_host + 1}",
        gpu=number % per_host,
        util=60.0 + number * 7 % 40,
        mem_used=(10 + number % 60) << 30,
        mem_total=80 << 30,
        temp_c=61.0,
        power_w=310.0,
        rank=number,
        name="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-{number:04x}",
        sm_clock_mhz=1980.0,
    )


def node(host: str, t: float = MINUTE_LATER) -> NodeSample:
    return NodeSample(
        t=t,
        run="",
        host=host,
        cpu=43.0,
        mem_used=12 << 30,
        mem_total=256 << 30,
        net_rx_s=1.2e8,
        net_tx_s=1.1e8,
        load1=7.5,
    )


def training(
    world: int = 4, per_host: int = 2, *, gpus: bool = True, slow: int = -1
) -> Iterator[RunEvent]:
    """A run in its first minute; ``slow`` is a rank that waits for its data, and makes fewer steps."""
    yield plan(world, per_host)
    for number in range(world):
        yield rank(number, RankState.RUNNING, per_host=per_host)
    for step in range(0, 600, 10):
        t = START + step / 10
        for number in range(world) if world < 64 or step > 440 else ():
            made, share = (round(step / 1.4), 1.4) if number == slow else (step, 1.0)
            yield window(number, made, t, share, per_host)
            if gpus and step % 100 == 90:
                yield gpu(number, t, per_host)
        value = 2.3 * math.exp(-step / 200) + 0.03 * math.sin(step)
        yield Metric(
            t=t, run=RUN, name="loss", step=step, value=value, min=value - 0.1, max=value + 0.2,
            ranks=world, samples=256,
        )  # fmt: skip
        if step % 100 == 0:
            right = 1 - math.exp(-(step + 20) / 150)
            yield Metric(
                t=t, run=RUN, name="accuracy", step=step, value=right, min=right - 0.02, max=right,
                ranks=world, samples=256,
            )  # fmt: skip
            yield log(0, f"epoch {step // 100} \x1b[32mloss {value:.3f}\x1b[0m", t)


def log(number: int, line: str, t: float = START, *, stream: str = "out") -> LogLine:
    styled = "\x1b" in line
    return LogLine(
        t=t,
        run=RUN,
        host=f"node{number // 2 + 1}",
        rank=number,
        stream=stream,
        line=without_colours(line) if styled else line,
        styled=line if styled else UNSET,
    )


def straggling(world: int = 4) -> Iterator[Event]:
    yield from training(world, slow=world - 1)
    yield RunFinding(
        t=MINUTE_LATER,
        run=RUN,
        check="run.straggler",
        severity=Severity.WARN,
        summary=f"rank {world - 1} on node{(world + 1) // 2} is slow in the data part of its steps",
        hosts=(f"node{(world + 1) // 2}",),
        hint="its data come late: more DataLoader workers there",
        rank=world - 1,
    )


def restarting(world: int = 4) -> Iterator[Event]:
    """Rank 2 raises, the others are killed, and all are started anew and train."""
    *told, _end = failing(world)
    for event in told:
        if isinstance(event, RunFinding):
            first = event.summary.partition(";")[0]
            yield msgspec.structs.replace(
                event,
                check="run.restart",
                severity=Severity.WARN,
                summary=f"{first}; restart 1 of 3, with the checkpoint /c/step-4.pt",
            )
        else:
            yield event
    yield RunRestarted(t=MINUTE_LATER, run=RUN, restart=1, of=3, checkpoint="/c/step-4.pt")
    for number in range(world):
        yield rank(number, RankState.STARTING, MINUTE_LATER)
        yield rank(number, RankState.RUNNING, MINUTE_LATER + 1)
        yield window(number, 610, MINUTE_LATER + 1)


def failing(world: int = 4) -> Iterator[Event]:
    """Rank 2 raises, the others are killed, the run ends."""
    yield from training(world)
    for line in TRACEBACK.splitlines():
        yield log(2, line, MINUTE_LATER, stream="err")
    first = FirstFailure(
        rank=2, host="node2", exit_code=1, error=TRACEBACK.splitlines()[-1], traceback=TRACEBACK
    )
    yield rank(2, RankState.FAILED, MINUTE_LATER)
    yield first_failure_finding(RanksSeen(RUN), first, (), MINUTE_LATER)
    for number in range(world):
        if number != 2:
            yield rank(number, RankState.KILLED, MINUTE_LATER)
    yield RunEnded(
        t=MINUTE_LATER + 1,
        run=RUN,
        state=EndState.FAILED,
        exit_code=1,
        seconds=61.0,
        first_failure=first,
    )


def stalled(world: int = 4) -> Iterator[Event]:
    yield from training(world)
    yield rank(1, RankState.STALLED, MINUTE_LATER)
    yield _stall(MINUTE_LATER, "rank 1 on node1 has stopped making steps", "logs {} --rank 1")


def _stall(t: float, summary: str, verb: str) -> RunFinding:
    return RunFinding(
        t=t,
        run=RUN,
        check="run.stall",
        severity=Severity.WARN,
        summary=summary,
        hosts=("node1",),
        hint=f"distconsole {verb.format(RUN)}; distconsole stop {RUN}",
        rank=1,
    )


def hung(world: int = 4) -> Iterator[Event]:
    """Rank 1 stands still, and the others in the same step wait for it, for the last 35 seconds."""
    yield from (event for event in training(world) if event.t <= START + 25)
    for number in range(world):
        yield rank(number, RankState.STALLED, START + 55)
    summary = "no rank has finished a step for 30 s: rank 1 on node1 is the first that stopped"
    yield _stall(START + 55, summary, "why {}")


def host_lost(world: int = 4) -> Iterator[Event]:
    yield from training(world)
    yield LinkChanged(t=MINUTE_LATER, run=RUN, host="node2", connected=False, reason="timed out")


def succeeded(world: int = 4) -> Iterator[Event]:
    yield from training(world)
    yield Metric(
        t=MINUTE_LATER, run=RUN, name="test_accuracy", step=600, value=0.9739, min=0.97, max=0.98,
        ranks=world, samples=360,
    )  # fmt: skip
    for number in range(world):
        yield rank(number, RankState.EXITED, MINUTE_LATER)
    yield RunEnded(t=MINUTE_LATER, run=RUN, state=EndState.SUCCEEDED, exit_code=0, seconds=60.0)


def hosts(count: int = 2, gpus: int = 8, *, lost: str = "") -> Iterator[Event]:
    """What ``top`` tells of hosts; the one called ``lost`` went away."""
    for place in range(count):
        name = f"node{place + 1}"
        yield HostStatus(host=name, reachable=True)
        yield node(name)
        for number in range(gpus):
            yield gpu(place * gpus + number, MINUTE_LATER, gpus)
    if lost:
        yield HostStatus(
            host=lost, reachable=False, detail="connection refused", error_kind="connect"
        )


def checked(hosts_count: int = 2, *, ok: bool = False) -> Iterator[Event]:
    """A check that found a hostname which cannot be bound on the last host, unless ``ok``."""
    names = [f"node{number + 1}" for number in range(hosts_count)]
    checks = ("ssh.reach", "python.version", "os.hostname_bindable", "torch.version", "net.pairs")
    bad = "os.hostname_bindable"
    cells: dict[str, dict[str, str]] = {name: {} for name in names}
    total = len(checks) * len(names)
    for done, check in enumerate(checks):
        stage = CheckProgress(
            check=check,
            host="",
            outcome="running",
            judged=done * len(names),
            total=total,
            going=(check,),
        )
        yield stage
        for name in names:
            wrong = not ok and check == bad and name == names[-1]
            outcome = "fail" if wrong else "skipped" if check == "torch.version" else "pass"
            cells[name][check] = outcome
            yield msgspec.structs.replace(stage, host=name)
        yield CheckJudged(check=check, outcomes={name: cells[name][check] for name in names})
    findings = (
        Finding(
            check=bad,
            severity=Severity.FAIL,
            hosts=(names[-1],),
            summary=f"{names[-1]} resolves its own name to 127.0.1.1, where nobody else can reach it",
            seen="getaddrinfo('node2') = 127.0.1.1",
            expected="an address of an interface that is up",
            hint="correct /etc/hosts on node2, or run with --nic NAME",
        ),
        Finding(
            check="python.version",
            severity=Severity.WARN,
            hosts=tuple(names),
            summary="two Pythons",
        ),
    )
    yield CheckEnded(
        report=CheckReport(
            ok=ok,
            outcome=CheckOutcome.HEALTHY if ok else CheckOutcome.FAILED,
            hosts={name: HostReport(reachable=True, facts={}) for name in names},
            findings=() if ok else findings,
            network=NetworkReport(),
            collectives=(),
            seconds=4.2,
            cells=cells,
            uncovered=("GPUs: no driver on these hosts",),
            stage_seconds={"local facts": 2.1, "net.pairs": 1.6},
        )
    )


def paired(
    count: int = 16, *, dead: int = 0, rated: bool = True, ended: bool = True
) -> Iterator[Event]:
    """A check of ``count`` hosts whose pairs come in round by round.

    The last host answers nobody where ``dead``, host 3 is slow, and node2 loses ports of node5.
    """
    names = [f"node{number + 1}" for number in range(count)]
    down = set(names[count - dead :])
    yield CheckProgress(
        check="net.reach_tcp",
        host="",
        outcome="running",
        judged=40 * count,
        total=62 * count,
        going=("net.reach_tcp",),
    )
    pairs = {}
    for source in names:
        row = [_pair(source, target, down) for target in names if target != source]
        pairs |= {(each.source, each.target): each for each in row}
        yield PairProgress(stage="reach", hosts=tuple(names), pairs=tuple(row))
    if rated:
        streams = [pair for pair in pairs if not down & set(pair)]
        for number, (source, target) in enumerate(streams):
            rate = 8.0 if "node3" in (source, target) else 39.0
            pairs[source, target] = msgspec.structs.replace(pairs[source, target], gbit_s=rate)
            only = PairReport(source=source, target=target, rtt_us=None, gbit_s=rate)
            round_number = number * 30 // len(streams) + 1
            yield PairProgress(
                stage="bandwidth", hosts=tuple(names), pairs=(only,), round=round_number, rounds=30
            )
            if not ended and round_number > 12:
                yield CheckProgress(check="net.bw_pair", host="", outcome="running")
                return
    cells = {name: {"net.reach_tcp": "fail" if name in down else "pass"} for name in names}
    outcomes = {name: each["net.reach_tcp"] for name, each in cells.items()}
    yield CheckJudged(check="net.reach_tcp", outcomes=outcomes)
    if not ended:
        return
    yield CheckEnded(
        report=CheckReport(
            ok=not down,
            outcome=CheckOutcome.FAILED if down else CheckOutcome.HEALTHY,
            hosts={name: HostReport(reachable=True, facts={}) for name in names},
            findings=tuple(_dead(name) for name in down),
            network=NetworkReport(pairs=tuple(pairs.values())),
            choices=choices(names),
            collectives=(),
            seconds=21.0,
            cells=cells,
            stage_seconds={"net.reach_tcp": 4.2, "net.bw_pair": 16.3},
        )
    )


def _pair(source: str, target: str, down: set[str]) -> PairReport:
    dead = bool(down & {source, target})
    lossy = (source, target) == ("node2", "node5")
    error = "17 of 17 ports: timeout" if dead else "2 of 17 ports: timeout" if lossy else ""
    return PairReport(
        source=source,
        target=target,
        rtt_us=None if dead else 48.0,
        gbit_s=None,
        reachable=not error,
        error=error,
    )


def _dead(name: str) -> Finding:
    return Finding(
        check="net.reach_tcp",
        severity=Severity.FAIL,
        hosts=(name,),
        summary=f"no TCP connection between {name} and its peers works, though SSH does",
        seen="\n".join(f"node{number} -> {name}: timeout" for number in range(1, 9)),
        expected="connections to and from 10.0.0.16 on any port",
        hint=f"a firewall or a wrong network at {name}; on it: sudo iptables -S",
        cure=Cure(hosts={name: HostCure(nic="eth1")}, by_run="takes the network that works"),
        proof=Proof(
            ran=f"a connection to {name}",
            before="timeout",
            after="0.2 ms",
            cured=True,
            seconds=2.0,
        ),
    )


def choices(names: Sequence[str]) -> tuple[ChoiceReport, ...]:
    """Gloo would take loopback on the second host, were it started by hand."""
    return tuple(
        ChoiceReport(
            engine=engine,
            start=start,
            host=name,
            interface="lo" if lost else "eth0",
            address="127.0.1.1" if lost else f"10.0.0.{number + 1}",
            how="its own name" if start == "hand" else "GLOO_SOCKET_IFNAME=eth0",
            meets=not lost,
            why="127.0.1.1 is loopback: it means every host itself" if lost else "",
        )
        for engine in ("Gloo", "Horovod", "Open MPI", "Open MPI's daemons")
        for start in ("run", "hand")
        for number, name in enumerate(names)
        for lost in [engine == "Gloo" and start == "hand" and number == 1]
    )


def past_runs() -> Iterator[Event]:
    states = ("running", "succeeded", "failed", "stopped")
    for number, state in enumerate(states):
        failed = FirstFailure(rank=1, host="node1", exit_code=1, error="ValueError: boom")
        yield RunListed(
            summary=RunSummary(
                run=f"digits-1121-00{number}",
                name="digits",
                state=state,
                started=START + number,
                seconds=None if state == "running" else 61.0,
                script="train.py",
                launcher="torch",
                world_size=4,
                hosts=("node1", "node2"),
                steps=600,
                samples_s=1714.0,
                metrics={"loss": 0.126, "test_accuracy": 0.9739},
                first_failure=failed if state == "failed" else None,
            )
        )


def compared() -> Iterator[Event]:
    """Two runs, of which the second waits longer for its data, on another torch."""
    runs = []
    for place, (name, slow, version) in enumerate(
        (("digits-1121-000", 1.0, "2.1.0"), (RUN, 1.3, "2.3.0"))
    ):
        statistics = RunStatistics()
        statistics.apply(plan(4))
        for step in range(0, 600, 10):
            for number in range(4):
                each = window(number, step, START + 5 + step / 10, slow)
                statistics.apply(msgspec.structs.replace(each, samples_s=428.5 / slow))
                statistics.apply(gpu(number, START + 5 + step / 10))
            loss = 2.3 * math.exp(-step / (200 + 40 * place))
            statistics.apply(
                Metric(
                    t=START + 5 + step / 10, run=RUN, name="loss", step=step, value=loss,
                    min=loss, max=loss, ranks=4, samples=None,
                )
            )  # fmt: skip
        statistics.close()
        summary = RunSummary(
            run=name, name="digits", state="succeeded", started=START, seconds=65.0 * slow,
            script="train.py", launcher="torch", world_size=4, hosts=("node1", "node2"), steps=600,
            samples_s=1714.0 / slow, metrics={"loss": 0.126},
        )  # fmt: skip
        settings = {"launcher": "torch", "arg --lr": "0.1", "torch.version": version}
        runs.append(Compared(summary, statistics, settings))
    yield RunsCompared(comparison=compare(runs), curves=curves_of(runs))


def foreseen(world: int = 4) -> Iterator[Event]:
    """What a launch of the scenes' script would be."""
    made = plan(world)
    command = "/usr/bin/python3 -u /home/me/train.py --epochs 3"
    shared = {"MASTER_ADDR": "10.0.0.1", "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "4"}
    yield msgspec.structs.replace(
        made,
        hosts=tuple(
            msgspec.structs.replace(each, command=command, env=shared | {"GROUP_RANK": str(index)})
            for index, each in enumerate(made.hosts)
        ),
    )
    yield Narration(text="node1 has 8 GPUs, of which its slots leave 6")
    yield TextMade(text="# 4 ranks by torch")
    yield ScriptSought(script="/home/me/train.py", missing=())
    yield LaunchersJudged(
        refused={
            "horovod": "Horovod is missing on node2",
            "slurm": "--launcher slurm needs a Slurm job whose nodes the hosts are",
        }
    )


def launches() -> Iterator[Event]:
    """What was launched before, the newest first."""
    summaries = [each.summary for each in past_runs() if isinstance(each, RunListed)]
    requests = (
        Run("train.py", ("--epochs", "3"), nproc="2", name="digits"),
        Run("train.py", launcher=LauncherName.MPI),
        Run("tools.prepare", module=True, where=Where(hosts="node2")),
    )
    for summary, request in zip(reversed(summaries), requests, strict=False):
        yield LaunchKept(summary=summary, request=request)


def large(
    world: int = 2048, per_host: int = 8, *, slow: int = 1817, since: int = 35, seconds: int = 60
) -> Iterator[Event]:
    """A run of very many ranks in its first minute; ``slow`` is slow from second ``since`` on."""
    yield plan(world, per_host)
    for number in range(world):
        yield rank(number, RankState.RUNNING, per_host=per_host)
    for second in range(seconds):
        for number in range(world):
            late = number == slow and second >= since
            share = 1.6 if late else 1.0 + (number * 7 + second * 13) % 11 / 200
            step = 10 * since + 6 * (second - since) if late else 10 * second
            yield window(number, step, START + second, share, per_host)
            if second % 10 == 9:
                yield gpu(number, START + second, per_host)


def starting(world: int = 4) -> Iterator[Event]:
    """A run a minute after its start whose last rank still imports torch."""
    yield plan(world)
    for number in range(world):
        yield rank(number, RankState.RUNNING)
        yield reached(number, "interpreter", 3.0)
        if number != world - 1:
            yield reached(number, "import_torch", 9.0 + number / 10)


def reached(number: int, phase: str, seconds: float, per_host: int = 2) -> PhaseReached:
    host = f"node{number // per_host + 1}"
    return PhaseReached(
        t=START + seconds, run=RUN, rank=number, host=host, phase=phase, seconds=seconds
    )


def printed(number: int, text: str, t: float = START, stream: str = "out") -> list[LogLine]:
    """What becomes of ``text`` as the node sends it."""
    reducer = RunReducer(RUN, ("node1",))
    entry = LogEntry(seq=1, t=t, rank=number, stream=stream, offset=0, text=text)
    return [e for e in reducer.feed(f"node{number // 2 + 1}", entry, t) if isinstance(e, LogLine)]


def talking(epochs: int = 3) -> Iterator[Event]:
    """Four ranks that say the same, and each something of its own; rank 2 fails, rank 3 has a bar."""
    yield plan(4)
    for number in range(4):
        yield rank(number, RankState.RUNNING)
    for epoch in range(epochs):
        t = START + 10 * epoch
        for number in range(4):
            yield log(number, f"epoch {epoch}", t)
            loss = f"\x1b[32mloss 0.{number}{epoch}\x1b[0m"
            yield log(number, f"rank {number} {loss}", t)
    t = START + 10 * epochs
    for line in TRACEBACK.splitlines():
        yield log(2, line, t, stream="err")
    yield from printed(3, "\r 40%|████      | 4/10\r", t + 1, "err")
