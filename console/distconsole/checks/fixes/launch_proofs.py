"""Proofs that need no ranks: a process as ranks are started, a port. What is read back is what it got."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distconsole.checks.fixes.trials import Came, ask_or_fail, conditions
from distconsole.checks.fixes.trying import (
    MAX_RANKS,
    Bench,
    Prover,
    Tried,
    all_hosts,
    changes,
    join_names,
    outcome,
)
from distconsole.checks.gather.nodes import fixed_port
from distconsole.checks.rules.system import budgets, limits
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.findings import Finding, HostCure

LAUNCH_SECONDS = 8.0

Read = Mapping[str, dict[str, Any]]
"""By host what the process said (``probes/launch_path``); ``error`` where it said nothing."""


def _compare_starts(
    bench: Bench,
    findings: Sequence[Finding],
    hosts: Sequence[Host],
    wanted: Mapping[str, Any],
    ran: str,
    judge: Callable[[Read], Came],
) -> Tried | None:
    """Start a process on each host as ``run`` starts ranks, without and with the cure."""
    if not hosts:
        return None
    began = bench.gathering.clock()
    before = judge(_read(bench, hosts, {}, wanted))
    after = judge(_read(bench, hosts, changes(findings, hosts), wanted))
    ran = f"{ran} in a process started as by `run` on {join_names(hosts)}"
    return outcome(ran, before, after, hosts, bench.gathering.clock() - began)


def _read(
    bench: Bench, hosts: Sequence[Host], change: Mapping[str, HostCure], wanted: Mapping[str, Any]
) -> Read:
    gathering = bench.gathering
    seconds = gathering.left(LAUNCH_SECONDS)

    def start(host: Host) -> dict[str, Any]:
        own = conditions(gathering, host, change.get(host.name, HostCure()))
        return gathering.ask(host, "launch", seconds, {**own, **wanted})

    found: dict[str, dict[str, Any]] = {}
    for said in gathering.on_each(list(hosts), start, seconds):
        if isinstance(said, fan.Failed):
            found[said.host] = {"error": said.error.message}
        else:
            found[said.host] = said.value
    return {host.name: found[host.name] for host in hosts if host.name in found}


def _each(read: Read, judge: Callable[[dict[str, Any]], str | None], well: str) -> Came:
    """Return the first host's trouble, or that it is well everywhere."""
    for name, said in read.items():
        wrong = said.get("error") or judge(said)
        if wrong:
            return Came(False, f"{name}: {wrong}", able="error" not in said)
    return Came(bool(read), well)


def _files(bench: Bench, findings: Sequence[Finding]) -> Tried | None:
    needed = limits.files_needed(bench.gathering.view())

    def judge(said: dict[str, Any]) -> str | None:
        opened = said.get("opened", 0)
        return None if opened == needed else f"{said.get('open_error')} after {opened}"

    return _compare_starts(
        bench,
        findings,
        bench.named(all_hosts(findings))[:MAX_RANKS],
        {"files": needed},
        f"{needed} files opened",
        lambda read: _each(read, judge, f"{needed} files are open at once"),
    )


def _limit(
    name: str, flag: str, divisor: int, well: Callable[[int | None], bool]
) -> Callable[[Bench, Sequence[Finding]], Tried | None]:
    def prove(bench: Bench, findings: Sequence[Finding]) -> Tried | None:
        def judge(said: dict[str, Any]) -> str | None:
            soft = _soft(said, name)
            return None if well(soft) else _shown(soft)

        def told(read: Read) -> Came:
            softs = sorted({_shown(_soft(said, name)) for said in read.values()})
            return _each(read, judge, ", ".join(softs))

        def _shown(soft: int | None) -> str:
            return f"{flag}: {'unlimited' if soft is None else soft // divisor}"

        hosts = bench.named(all_hosts(findings))[:MAX_RANKS]
        return _compare_starts(bench, findings, hosts, {}, flag, told)

    return prove


def _soft(said: Mapping[str, Any], name: str) -> int | None:
    pair = said.get("limits", {}).get(name)
    return pair[0] if isinstance(pair, list) and pair and isinstance(pair[0], int) else None


def _temporary(bench: Bench, findings: Sequence[Finding]) -> Tried | None:
    return _compare_starts(
        bench,
        findings,
        bench.named(all_hosts(findings))[:MAX_RANKS],
        {"tmp": True},
        "code loaded from TMPDIR and a socket in it",
        lambda read: _each(read, lambda said: said.get("tmp_error"), "both work"),
    )


def _alike(bench: Bench, findings: Sequence[Finding]) -> Tried | None:
    """A variable as every host's ranks get it."""
    found = next((found for found in findings if found.cure is not None), None)
    if found is None or found.cure is None:
        return None
    unset = [name for change in found.cure.hosts.values() for name in change.unset]
    names = [*found.cure.env, *unset]
    variable = names[0]

    def judge(read: Read) -> Came:
        values = {name: said.get("env", {}).get(variable) for name, said in read.items()}
        words = ", ".join(f"{name} {value or 'not set'}" for name, value in values.items())
        able = not any("error" in said for said in read.values())
        alike = len(set(values.values())) == 1
        return Came(alike, "the same on every host" if alike else words[:200], able=able)

    hosts = bench.gathering.reached()
    return _compare_starts(bench, [found], hosts, {"names": [variable]}, variable, judge)


def _port(bench: Bench, findings: Sequence[Finding]) -> Tried | None:
    """Binding as torch's store does: the port that is held, and the one that the cure names."""
    found, hosts = findings[0], bench.named(findings[0].hosts)
    if found.cure is None or found.cure.port is None or not hosts:
        return None
    gathering, began = bench.gathering, bench.gathering.clock()
    ports = [fixed_port(gathering), found.cure.port]
    states = ask_or_fail(gathering, hosts[0], "port", {"ports": ports}).get("ports", {})
    before, after = (_bound(port, states.get(str(port), {})) for port in ports)
    ran = f"a rendezvous port bound on {hosts[0].name}"
    return outcome(ran, before, after, hosts, gathering.clock() - began)


def _bound(port: int, state: Mapping[str, Any]) -> Came:
    free = state.get("free") is True
    words = f"port {port}: {'free' if free else state.get('why') or 'no answer'}"
    return Came(free, words, able=bool(state))


LAUNCH_PROVERS: dict[str, Prover] = {
    "lim.nofile": _files,
    "lim.memlock": _limit(
        "memlock", "ulimit -l", 1024, lambda soft: soft is None or soft >= limits.MEMLOCK_BYTES
    ),
    "lim.processes": _limit(
        "nproc", "ulimit -u", 1, lambda soft: soft is None or soft >= budgets.PROCESSES
    ),
    "lim.stack": _limit("stack", "ulimit -s", 1024, budgets.stack_is_well),
    "tmp.dir": _temporary,
    "env.consistency": _alike,
    "port.master_free": _port,
}
"""By check how its cure is tried; all of these take less than a second."""
