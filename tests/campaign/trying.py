"""One case: the run, its fault at its moment, and everything that is wrong with what came of it."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import distconsole
from campaign.cases import IN_SCRIPT, Case, FaultError, Outcome, right_outcomes
from campaign.faults import fault
from campaign.hostile import prepared
from campaign.screen import Screen
from suite.console import Console
from suite.obstacles import obstacle
from suite.remains import gone
from testbed import Testbed
from testbed.keeper import wait_for
from testbed.slurm import SLURM_ENVIRONMENT, Slurm

PACKAGE = Path(distconsole.__file__).parent
JOB = Path(__file__).with_name("job.py")
HOSTS = 4
TMP_BYTES = 96 << 20
START_SECONDS, END_SECONDS = 90.0, 180.0
ANSWER_SECONDS = 1.0
"""Within which a screen answers a key, whatever goes on."""
NODE_FOLDER = f"/tmp/distconsole-{os.geteuid()}"
BRIDGE = "joining, rest = read("
"""What an agent's bridge is called while a login that is cut waits for its network."""
BY_SIGNAL = {"ctrl_c": 130, "ctrl_c_twice": 130, "sigterm": 143}
"""What a console that is sent a signal behind its run's end may end with, too."""
STARVED = "has not answered for 12 s"
"""What a launch is refused for before any fault, on a machine that is too busy for its hosts."""
BEFORE_A_RUN = (1, 2, 3)
"""Exit codes of a launch that was refused."""
REFUSED = 3
CUT_OFF = (
    "agent_halted",
    "console_cut",
    "host_cut_from_console",
    "ssh_refused",
    "network_cut",
    "ports_lost",
)
UNREACHABLE_FAULTS = (
    *("agent_killed", "agent_halted", "agent_memory", "console_cut", "host_cut_from_console"),
    *("logins_killed", "sshd_restarted", "ssh_refused", "network_cut", "network_lost_one_way"),
    *("ports_lost", "disk_full", "disk_read_only", "console_killed", "network_gone"),
    "one_session",
)
"""While a run starts, these may have it refused."""


@contextmanager
def bed() -> Iterator[tuple[Testbed, Slurm]]:
    """Four hosts, and one to log in to Slurm at."""
    with (
        Testbed(
            HOSTS + 1, environment=SLURM_ENVIRONMENT, tmp_bytes=TMP_BYTES, node_ssh=True
        ) as hosts,
        Slurm(hosts, settings={"SlurmdTimeout": "300"}) as slurm,
    ):
        yield hosts, slurm


@dataclass
class Result:
    """What came of a case: ``problems`` is empty where all was right; ``skipped`` says why nothing was learnt."""

    problems: list[str] = field(default_factory=list)
    skipped: str = ""
    end: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    answers: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def try_case(case: Case, hosts: Testbed, folder: Path) -> Result:
    """Run a case; what its consoles printed is left in ``folder``.

    The hosts are whole again afterwards, but for what a problem has left.
    """
    result = Result()
    trial = _Trial(case, hosts, folder, result)
    try:
        with prepared(case, hosts) as make, ExitStack() as stack:
            trial.go(stack, make)
    except FaultError as missed:
        result.skipped = str(missed)
    except (AssertionError, subprocess.TimeoutExpired, OSError, RuntimeError) as error:
        result.problems.append(f"{type(error).__name__}: {str(error)[:600]}")
    finally:
        result.said = [
            f"{each.process.returncode}: {''.join(each.stderr[-6:])}" for each in trial.consoles
        ]
        for host in hosts.hosts:
            if host.is_on:
                host.heal()
        hosts.restore_console()
    return result


class _Trial:
    def __init__(self, case: Case, hosts: Testbed, folder: Path, result: Result) -> None:
        self.case, self.bed, self.folder, self.result = case, hosts, folder, result
        self.consoles: list[Console] = []
        self.names = [host.name for host in hosts.hosts[: len(case.slots)]]
        gone = case.fault in ("shim_killed", "power_cut", "network_gone")
        self.lost = {case.host} if gone else set()
        self.first = [sum(case.slots[:n]) for n in range(len(case.slots))]

    def console(self, stack: ExitStack, *words: str) -> Console:
        listed = ",".join(f"{n}:{k}" for n, k in zip(self.names, self.case.slots, strict=True))
        if self.case.launcher == "single":
            listed = ",".join(self.names)
        console = stack.enter_context(Console(self.bed, self.folder, *words, hosts=listed))
        self.consoles.append(console)
        return console

    def words(self, turn: int) -> list[str]:
        case = self.case
        how = ["--launcher", case.launcher]
        if case.launcher == "slurm":
            how = [
                "--launcher",
                "torch",
                "--slurm",
                f"-N{len(case.slots)}",
                "--slurm-login",
                self.bed.host_names[-1],
            ]
        if case.launcher == "mpi" and case.how == "horovod":
            how += ["--env", "HOROVOD_CONTROLLER=mpi"]
        restarts = case.moment == "restart"
        what = case.fault if case.fault in IN_SCRIPT else "raises_once" if restarts else "nothing"
        slots = ",".join(map(str, case.slots))
        env = [f"CAMPAIGN_PORT={20000 + (2 * case.seed + turn) % 9000}", f"CAMPAIGN_SLOTS={slots}"]
        how += [word for each in (*env, "OMP_NUM_THREADS=1") for word in ("--env", each)]
        how += ["--max-restarts", "1"] if restarts else []
        how += ["--grace", "40", "--lost-after", str(case.lost_after), "--json"]
        # A fault of the script's own comes to that rank; a restart is due to another one.
        marked = case.rank if case.fault in IN_SCRIPT else case.rank_that_fails_once
        at = case.steps - 1 if case.moment == "end" else case.at
        return [
            "run",
            *how,
            str(JOB),
            case.how,
            str(case.steps),
            what,
            str(marked),
            str(at),
            str(case.world),
        ]

    def go(self, stack: ExitStack, make: Callable[[], object]) -> None:
        case = self.case
        console = self.console(stack, *self.words(0))
        self.wait_for_moment(console)
        time.sleep(case.delay)
        beside = None
        watching = stack.enter_context(ExitStack())
        if case.screen:
            console.see(START_SECONDS, event="plan")
            screen = watching.enter_context(Screen(self.bed, self.folder, console.run))
            watching.callback(self.judge_screen, screen)
        with fault(case, self.bed, console, make):
            if case.fault == "second_run":
                beside = self.console(stack, *self.words(1))
            elif case.fault == "second_console":
                beside = self.console(stack, "attach", "--json", console.run)
            elif case.fault == "stop_verb":
                run = console.run if console.events else ""
                self.console(stack, "stop", *filter(None, [run])).wait(END_SECONDS)
                said = self.consoles[-1].stderr[-3:]
                if self.consoles[-1].process.returncode or "succeeded" in "".join(said):
                    raise FaultError(f"not stopped: {said}")
        if case.fault == "console_killed":
            console.wait()
            if not console.events:  # before its run had a name: attach would take the one before
                self.judge_what_is_left()
                return
            console = self.console(stack, "attach", "--json", console.run)
        console.wait(END_SECONDS)
        if beside is not None:
            beside.wait(END_SECONDS)
        if case.fault in ("agent_killed", "agent_memory") and case.moment in ("stop", "end"):
            # One that ended behind its last word has the next one clear up, whenever somebody comes.
            self.console(stack, "top", "--once", "--json").wait(END_SECONDS)
        watching.close()
        self.judge(console, beside)

    def wait_for_moment(self, console: Console) -> None:
        if self.case.fault in IN_SCRIPT:
            return
        match self.case.moment:
            case "start":
                return
            case "run" | "restart" | "stop":
                step = self.case.at
            case _:
                step = self.case.steps - 1
        if not console.process.poll():
            try:
                console.see(START_SECONDS, event="log", line=f"0: {step}")
            except AssertionError:
                if any(STARVED in line for line in console.stderr):
                    raise FaultError("a host got no processor for 12 s: refused") from None
                raise
        if self.case.moment == "stop":
            console.process.send_signal(signal.SIGINT)

    def judge(self, console: Console, beside: Console | None) -> None:
        wrong, case = self.result.problems, self.case
        for each in self.consoles:
            own = [line for line in each.stderr if _is_ours(line)]
            wrong += [f"a traceback of ours: {own[0].strip()}"] if own else []
        self.judge_what_is_left()
        end = console.events[-1] if console.events else {}
        if end.get("event") != "end":
            self.judge_refusal(console)
            return
        self.result.end = {
            k: end.get(k) for k in ("state", "exit_code", "seconds", "first_failure")
        }
        self.judge_end(end)
        code = console.process.returncode
        told = 128 - code if code < 0 else code  # as a shell says of a signal
        if told not in (end["exit_code"], BY_SIGNAL.get(case.fault)):
            wrong.append(
                f"exit code {console.process.returncode}, and the end says {end['exit_code']}"
            )
        if end["exit_code"] != REFUSED:
            self.judge_hosts(end)
            self.judge_steps(self.with_all_steps(console))
        if case.fault == "second_console":
            other = beside.events[-1]
            if any(other.get(k) != end.get(k) for k in ("state", "exit_code", "first_failure")):
                wrong.append(f"two consoles, two ends: {other}")
        if case.fault == "second_run":
            other = beside.events[-1]
            if (other.get("state"), beside.process.returncode) != ("succeeded", 0):
                wrong.append(f"the run beside it: {other} {beside.stderr[-3:]}")

    def judge_screen(self, screen: Screen) -> None:
        screen.leave()
        self.result.answers = [round(seconds, 3) for seconds in screen.answers]
        if screen.error:
            self.result.problems.append(f"the screen: {screen.error}")
        if slow := [seconds for seconds in screen.answers if seconds > ANSWER_SECONDS]:
            self.result.problems.append(f"the screen answered a key after {max(slow):.1f} s")

    def judge_what_is_left(self) -> None:
        if self.case.fault == "network_gone":
            self.bed.hosts[self.case.host].link_up("mgmt")
        living = [host for host in self.bed.hosts if host.is_on]
        # Slurm waits for a host that is silent before it ends a job's own script.
        for _ in range(8 if self.lost and self.case.launcher == "slurm" else 1):
            left = [each for each in gone(*living) if BRIDGE not in each]
            if not left:
                return
        self.result.problems.append(f"left behind: {left[:4]}")

    def judge_refusal(self, console: Console) -> None:
        case, code = self.case, console.process.returncode
        if (
            code < 0 and case.moment == "start"
        ):  # a signal that came while Python was still starting
            code = 128 - code
        may = case.moment == "start" and case.fault in UNREACHABLE_FAULTS and code in BEFORE_A_RUN
        asked = case.moment == "start" and code in (130, 143)
        if not (may or asked):
            self.result.problems.append(f"no end, exit code {code}: {console.stderr[-4:]}")
        self.result.end = {"refused": code, "said": [line.strip() for line in console.stderr[-2:]]}

    def judge_end(self, end: dict[str, Any]) -> None:
        first = end.get("first_failure") or {}
        told = Outcome(end["state"], end["exit_code"], first.get("rank"), first.get("host"))
        right = right_outcomes(self.case, self.first, self.names)
        # Horovod takes itself down at a rank's exit, before that has a code: docs/guide/restarts.md.
        by_horovod = (self.case.how, self.case.fault, told.code) == ("horovod", "exits", 1)
        if told in right or by_horovod or (told.rank is not None and _without_rank(told) in right):
            return
        self.result.problems.append(f"ended {told}, right is {right}; {first.get('error')}")

    def judge_hosts(self, end: dict[str, Any]) -> None:
        """Every host that is up, and was not lost, tells the same end; where nothing was prepared nobody knows the run."""
        for number, host in enumerate(self.bed.hosts[: len(self.names)]):
            if number in self.lost or not host.is_on:
                continue
            folder = host.path(f"{NODE_FOLDER}/runs/{end['run']}")
            if self.case.moment == "start" and not folder.exists():
                continue
            ended = folder / "ended.json"
            if not wait_for(ended.exists):
                self.result.problems.append(f"{host.name} never learnt the end")
                continue
            kept = json.loads(ended.read_text())
            if (kept["state"], kept["exit_code"]) != (end["state"], end["exit_code"]):
                self.result.problems.append(
                    f"{host.name} says {kept['state']} {kept['exit_code']}"
                )

    def with_all_steps(self, console: Console) -> Console:
        """Return a console that has read every journal: one waits 15 s for a host without a way to it, and attach fetches."""
        if self.case.fault not in CUT_OFF:
            return console
        for host in self.bed.hosts:
            host.heal()
        self.bed.restore_console()
        with Console(self.bed, self.folder, "attach", "--json", console.run) as attached:
            attached.wait(END_SECONDS)
            return attached

    def judge_steps(self, console: Console) -> None:
        """Every step that was made is stored, or counted as lost; the last one of a rank that was killed may be either."""
        stored = dict.fromkeys(range(self.case.world), 0)
        for window in console.of("window"):
            stored[window["rank"]] = stored.get(window["rank"], 0) + window["steps"]
        dropped = {window["rank"]: window["dropped"] for window in console.of("window")}
        for rank, steps in stored.items():
            number = next(
                n for n in range(len(self.first)) if rank < self.first[n] + self.case.slots[n]
            )
            host = self.bed.hosts[number]
            if number in self.lost or not host.is_on:
                continue
            path = host.path(f"/run/home/steps/{console.run}-{rank}")
            written = path.stat().st_size if path.exists() else 0
            attempts = 2 if self.case.moment == "restart" else 1
            if not written <= steps + dropped.get(rank, 0) <= written + attempts:
                self.result.problems.append(
                    f"rank {rank} made {written} steps, {steps} are stored, {dropped.get(rank)} lost"
                )
            self.result.steps += steps


def _is_ours(line: str) -> bool:
    """Whether a line is of a traceback of ours; a signal at the program's first import has one of the interpreter."""
    found = re.search(r'File "(.+?)"', line)
    file = Path(found[1]) if found else Path()
    return file.is_relative_to(PACKAGE) and file.name != "__main__.py"


def _without_rank(outcome: Outcome) -> Outcome:
    """Return the outcome for hosts that Slurm ended, whose rank is whoever was first."""
    return (
        Outcome(outcome.state, outcome.code, None, outcome.host)
        if outcome.code == 143
        else outcome
    )


def keep_evidence(hosts: Testbed, consoles: Path, folder: Path) -> None:
    """Copy what a failed case has left: the consoles' runs, and the logs of agents and shims."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(consoles, folder / "console", dirs_exist_ok=True)
    for host in hosts.hosts:
        if host.is_on and (source := host.path(NODE_FOLDER)).is_dir():
            shutil.copytree(
                source, folder / host.name, dirs_exist_ok=True, symlinks=True,
                ignore=lambda where, names: [n for n in names if not _is_plain(Path(where) / n)],
            )  # fmt: skip


def _is_plain(path: Path) -> bool:
    return not path.is_symlink() and (path.is_dir() or path.is_file())


def obstacle_of(case: Case) -> str:
    """Return why a case cannot run on this machine; empty where it can."""
    needs = ["testbed", "slurm"]  # each bed has one
    needs += ["torch_ranks"] if case.how in ("torch", "spawn") else []
    needs += ["horovod"] if case.how == "horovod" else []
    needs += ["mpi"] if case.launcher == "mpi" else []
    return next(filter(None, map(obstacle, needs)), "")
