"""Tries a cure: a trial without it and with it at the same time, and what that proves.

The trials here need no ranks: a process started like a rank, which reports its environment, or a port.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import SshFacts
from distconsole.checks.gather.addresses import endpoints
from distconsole.checks.gather.context import CheckContext, fixed_port, interpreter
from distconsole.checks.gather.engine_jobs import StartJob
from distconsole.checks.rules.system import limits
from distconsole.errors import ConsoleError, NodeError
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.findings import Cure, Finding, HostCure, Proof

TRIAL_SECONDS = 40.0
"""Of one trial at most, with its imports on a slow disk."""

PATIENCE_SECONDS, PATIENCE = 2.0, 0.5
"""Once the trial with the cure has ended, the one without may take so much more, and so many times
as long, before it is ended as one that hangs."""

ENDING_SECONDS = 20.0
ASK_SECONDS = 5.0
MAX_RANKS = 8
WORDS = 160


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Result of a trial; not ``able`` if a requirement was missing, which proves nothing."""

    ok: bool
    words: str
    able: bool = True


Trial = Callable[[threading.Event], TrialResult]
"""Runs to its end, or soon after the event is set."""


def run_both(without: Trial, with_cure: Trial) -> tuple[TrialResult, TrialResult]:
    """Run a trial without and with the cure; one that hangs is not waited for long."""
    enough = [threading.Event(), threading.Event()]
    # Futures, and no joins: an interrupted one takes its thread for ended (bpo-45274 in Python 3.11).
    results: list[Future[TrialResult]] = [Future(), Future()]
    threads = [
        threading.Thread(target=_run, args=each, name="proof", daemon=True)
        for each in zip((without, with_cure), enough, results, strict=True)
    ]
    began = time.monotonic()
    try:
        for thread in threads:
            thread.start()
        after = _result_of(results[1])
        wait(results[:1], PATIENCE_SECONDS + PATIENCE * (time.monotonic() - began))
        enough[0].set()
        return _result_of(results[0]), after
    finally:
        for event in enough:
            event.set()
        begun = [
            result
            for thread, result in zip(threads, results, strict=True)
            if thread.ident is not None
        ]
        wait(begun, ENDING_SECONDS)


def _run(trial: Trial, enough: threading.Event, result: Future[TrialResult]) -> None:
    try:
        result.set_result(trial(enough))
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        result.set_exception(error)


def _result_of(trial: Future[TrialResult]) -> TrialResult:
    try:
        return trial.result()
    except ConsoleError as error:
        return TrialResult(False, error.message[:WORDS], able=False)


@dataclass(frozen=True, slots=True)
class ProofOnHosts:
    proof: Proof
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProofHosts:
    """Where proofs are made: hosts that answer, who else is blamed; ``start`` starts jobs by mpirun, if any."""

    context: CheckContext
    start: StartJob
    blamed: frozenset[str]

    @property
    def seconds(self) -> float:
        return self.context.left(TRIAL_SECONDS)

    def hosts(self, names: Sequence[str], most: int = MAX_RANKS) -> list[Host]:
        """Return the hosts that answer, and for a single one a peer."""
        meet = endpoints(self.context.view((NetFacts, SshFacts)))
        able = [host for host in self.context.reached() if host.name in meet]
        found = [host for host in able if host.name in names][:most]
        if len(found) == 1:
            others = [host for host in able if host.name not in names]
            others.sort(key=lambda host: host.name in self.blamed)
            found += others[:1]
        return found

    def reached(self, names: Sequence[str]) -> list[Host]:
        return [host for host in self.context.reached() if host.name in names]

    def ask(self, host: Host, group: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return a probe's answer; one that has none gives an empty one with ``error``."""
        try:
            return self.context.ask(host, group, ASK_SECONDS, args)
        except NodeError as error:
            return {"error": error.message}

    def compare(
        self, ran: str, hosts: Sequence[Host], without: Trial, with_cure: Trial
    ) -> ProofOnHosts | None:
        """Run both trials at once on ``hosts``; return the proof."""
        began = self.context.clock()
        before, after = run_both(without, with_cure)
        seconds = self.context.clock() - began
        return conclude(
            f"{ran} on {','.join(host.name for host in hosts)}", before, after, hosts, seconds
        )


Prover = Callable[[ProofHosts, Sequence[Finding]], ProofOnHosts | None]
"""Tries the cure of the findings of one check; None if it could not be tried."""


def conclude(
    ran: str, before: TrialResult, after: TrialResult, hosts: Sequence[Host], seconds: float
) -> ProofOnHosts | None:
    """Return the proof of two trials; None if a requirement of one was missing."""
    if not (before.able and after.able):
        return None
    proof = Proof(
        ran=ran,
        before=f"could not be made to fail: {before.words}" if before.ok else before.words,
        after="" if before.ok else after.words,
        cured=after.ok and not before.ok,
        seconds=round(seconds, 3),
    )
    return ProofOnHosts(proof, tuple(host.name for host in hosts))


def change_for(cures: Sequence[Cure], name: str) -> HostCure:
    env: dict[str, str] = {}
    unset: list[str] = []
    setup: list[str] = []
    nic = address = ""
    for cure in cures:
        own = cure.hosts.get(name, HostCure())
        env |= {**cure.env, **own.env}
        unset += [*cure.unset, *own.unset]
        setup += [own.setup] if own.setup and own.setup not in setup else []
        nic, address = own.nic or nic, own.address or address
    return HostCure(
        env=env,
        unset=tuple(dict.fromkeys(unset)),
        nic=nic,
        address=address,
        setup="\n".join(setup),
    )


def changes(findings: Sequence[Finding], hosts: Sequence[Host]) -> dict[str, HostCure]:
    cures = [found.cure for found in findings if found.cure is not None]
    return {host.name: change_for(cures, host.name) for host in hosts}


def all_hosts(findings: Sequence[Finding]) -> list[str]:
    return list(dict.fromkeys(name for found in findings for name in found.hosts))


LAUNCH_SECONDS = 8.0

Answer = dict[str, Any]
"""Report of a process (``probes/software/python_env``); ``error`` without one."""

Answers = Mapping[str, Answer]


def _compare_starts(
    bench: ProofHosts,
    findings: Sequence[Finding],
    hosts: Sequence[Host],
    wanted: Mapping[str, Any],
    ran: str,
    judge: Callable[[Answers], TrialResult],
) -> ProofOnHosts | None:
    """Start a process on each host as ``run`` starts ranks, without and with the cure."""
    if not hosts:
        return None

    def start(change: Mapping[str, HostCure], _enough: threading.Event) -> TrialResult:
        return judge(_start_on(bench, hosts, change, wanted))

    ran = f"{ran} in a process started as by `run`"
    with_cure = partial(start, changes(findings, hosts))
    return bench.compare(ran, hosts, partial(start, {}), with_cure)


def _start_on(
    bench: ProofHosts,
    hosts: Sequence[Host],
    change: Mapping[str, HostCure],
    wanted: Mapping[str, Any],
) -> Answers:
    context = bench.context
    seconds = context.left(LAUNCH_SECONDS)

    def start(host: Host) -> dict[str, Any]:
        own, cure = interpreter(context, host), change.get(host.name, HostCure())
        changed = {"add": dict(cure.env), "remove": list(cure.unset)}
        setup = join_setup(own["setup"], cure)
        return context.ask(host, "launch", seconds, {**own, "setup": setup, **changed, **wanted})

    found = {
        said.host: {"error": said.error.message} if isinstance(said, fan.Failed) else said.value
        for said in context.on_each(list(hosts), start, seconds)
    }
    return {host.name: found[host.name] for host in hosts if host.name in found}


def join_setup(setup: str | None, change: HostCure) -> str | None:
    return "\n".join(filter(None, (setup, change.setup))) or None


def _start_prover(
    ran: str,
    wanted: Mapping[str, Any],
    is_well: Callable[[Answer], bool],
    show: Callable[[Answer], str],
) -> Prover:
    def judge(answers: Answers) -> TrialResult:
        for name, said in answers.items():
            if "error" in said:
                return TrialResult(False, f"{name}: {said['error']}", able=False)
            if not is_well(said):
                return TrialResult(False, f"{name}: {show(said)}")
        return TrialResult(bool(answers), ", ".join(sorted(set(map(show, answers.values())))))

    def prove(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
        hosts = bench.reached(all_hosts(findings))[:MAX_RANKS]
        return _compare_starts(bench, findings, hosts, wanted, ran, judge)

    return prove


def _try_files(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
    needed = limits.count_files(bench.context.view())

    def is_well(said: Answer) -> bool:
        return bool(said.get("opened") == needed)

    def show(said: Answer) -> str:
        if is_well(said):
            return f"{needed} files are open at once"
        return f"{said.get('open_error')} after {said.get('opened', 0)}"

    return _start_prover(f"{needed} files opened", {"files": needed}, is_well, show)(
        bench, findings
    )


def _limit_prover(
    name: str, flag: str, divisor: int, is_well: Callable[[int | None], bool]
) -> Prover:
    def soft(said: Answer) -> int | None:
        pair = said.get("limits", {}).get(name)
        return pair[0] if isinstance(pair, list) and pair and isinstance(pair[0], int) else None

    def show(said: Answer) -> str:
        limit = soft(said)
        return f"{flag}: {'unlimited' if limit is None else limit // divisor}"

    return _start_prover(flag, {}, lambda said: is_well(soft(said)), show)


def _try_variable(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
    found = next((found for found in findings if found.cure is not None), None)
    if found is None or found.cure is None:
        return None
    unset = [name for change in found.cure.hosts.values() for name in change.unset]
    variable = [*found.cure.env, *unset][0]

    def judge(answers: Answers) -> TrialResult:
        values = {name: said.get("env", {}).get(variable) for name, said in answers.items()}
        words = ", ".join(f"{name} {value or 'not set'}" for name, value in values.items())
        able = not any("error" in said for said in answers.values())
        alike = len(set(values.values())) == 1
        return TrialResult(alike, "the same on every host" if alike else words[:200], able=able)

    hosts = bench.context.reached()
    return _compare_starts(bench, [found], hosts, {"names": [variable]}, variable, judge)


def _try_port(bench: ProofHosts, findings: Sequence[Finding]) -> ProofOnHosts | None:
    """Binding as torch's store does: the port that is held, and the one that the cure names."""
    cure, hosts = findings[0].cure, bench.reached(findings[0].hosts)
    if cure is None or cure.port is None or not hosts:
        return None

    def bind(port: int, _enough: threading.Event) -> TrialResult:
        state = bench.ask(hosts[0], "port", {"ports": [port]}).get("ports", {}).get(str(port), {})
        free = state.get("free") is True
        words = f"port {port}: {'free' if free else state.get('why') or 'no answer'}"
        return TrialResult(free, words, able=bool(state))

    held = partial(bind, fixed_port(bench.context))
    return bench.compare("a rendezvous port bound", hosts[:1], held, partial(bind, cure.port))


LAUNCH_PROVERS: dict[str, Prover] = {
    "lim.nofile": _try_files,
    "lim.memlock": _limit_prover(
        "memlock", "ulimit -l", 1024, lambda soft: soft is None or soft >= limits.MEMLOCK_BYTES
    ),
    "lim.processes": _limit_prover(
        "nproc", "ulimit -u", 1, lambda soft: soft is None or soft >= limits.PROCESSES
    ),
    "lim.cpu_time": _limit_prover("cpu", "ulimit -t", 1, lambda soft: soft is None),
    "tmp.dir": _start_prover(
        "code loaded from TMPDIR and a socket in it",
        {"tmp": True},
        lambda said: not said.get("tmp_error"),
        lambda said: said.get("tmp_error") or "both work",
    ),
    "env.consistency": _try_variable,
    "port.master_free": _try_port,
}
"""By check how its cure is tried; all of these take less than a second."""
