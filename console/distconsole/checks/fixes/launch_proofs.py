"""Proofs without ranks: a process started like a rank, a port. The process reports its environment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from distconsole.checks.fixes.trying import (
    MAX_RANKS,
    ProofHosts,
    ProofOnHosts,
    Prover,
    TrialResult,
    all_hosts,
    changes,
)
from distconsole.checks.gather.context import fixed_port, interpreter
from distconsole.checks.rules.system import limits
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.findings import Finding, HostCure

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
        changed = {"set": dict(cure.env), "remove": list(cure.unset)}
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
