"""The check of group ``os`` on what the kernel's log tells; ``gpu_errors`` reads its lines on GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distconsole.checks.engine.rule import Said, Unjudged, hint, rule, warn
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.node import KernelEvent, KernelFacts
from distconsole.checks.rules.wording import name_hosts
from distconsole.model.requests import Level
from distconsole.model.time_text import age_text

HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS
MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class _Kind:
    """What lines of one kind mean, for how long they matter, and what to do."""

    meaning: str
    seconds: float
    hint: str


_KINDS: dict[str, _Kind] = {
    "oom": _Kind(
        "memory ran out and the kernel ended {on}",
        HOUR_SECONDS,
        "fewer DataLoader workers or less in memory; a rank ended so shows exit code 137",
    ),
    "nfs": _Kind(
        "the NFS server {on} does not answer",
        DAY_SECONDS,
        "whatever touches its folders hangs: findmnt -t nfs,nfs4; then the server",
    ),
    "lustre": _Kind(
        "the connection to a Lustre server was lost", HOUR_SECONDS, "lfs check servers"
    ),
    "neighbours": _Kind(
        "the neighbour table overflowed",
        DAY_SECONDS,
        "sudo sysctl -w net.ipv4.neigh.default.gc_thresh3=16384",
    ),
    "conntrack": _Kind(
        "the firewall's table of connections was full and it dropped packets",
        DAY_SECONDS,
        "sudo sysctl -w net.netfilter.nf_conntrack_max=1048576",
    ),
    "syn_flood": _Kind(
        "more connections came at once than may wait on port {on}",
        HOUR_SECONDS,
        "sudo sysctl -w net.core.somaxconn=4096",
    ),
    "hung": _Kind(
        "{on} was stuck in the kernel for minutes",
        HOUR_SECONDS,
        "the log names the function: a filesystem, a disk or a driver that does not answer",
    ),
    "hardware": _Kind("the hardware reported an error", DAY_SECONDS, "sudo ras-mc-ctl --errors"),
    "pcie": _Kind(
        "the PCIe port {on} reported an error", DAY_SECONDS, "lspci -tv; reseat the card"
    ),
    "disk": _Kind("the disk or filesystem {on} failed", DAY_SECONDS, "smartctl -a; findmnt"),
    "link": _Kind("the network link {on} went down", HOUR_SECONDS, "ethtool {on}; another cable"),
    "heat": _Kind("a processor was too hot and slowed down", HOUR_SECONDS, "fans, inlet air"),
}


def unreadable(view: View) -> Iterator[Said]:
    """Leave out the hosts on which this user may not read the log."""
    names = tuple(name for name, facts in view.of(KernelFacts).items() if not facts.source)
    yield Unjudged(names, "the kernel's log is not readable for this user")


@rule("os.kernel_log", "os", Level.STANDARD, KernelFacts)
@hint("The finding has the line and what to do.")
def _log(view: View) -> Iterator[Said]:
    """What the kernel noted in the last hours: memory that ran out, NFS servers that do not answer, full tables, failing disks and links."""
    yield from unreadable(view)
    facts_of = view.of(KernelFacts)
    alike: dict[tuple[str, str], dict[str, KernelEvent]] = {}
    for name, facts in facts_of.items():
        for event in facts.events[-MAX_LISTED:]:
            kind = _KINDS.get(event.kind)
            if kind is not None and event.age_seconds <= kind.seconds:
                alike.setdefault((event.kind, event.on), {})[name] = event
    for (kind_name, where), events in alike.items():
        kind, on = _KINDS[kind_name], where or "a program"
        last = min(events.values(), key=lambda event: event.age_seconds)
        times = f", {last.count} times" if last.count > 1 else ""
        first = next(iter(events))
        source = "dmesg" if facts_of[first].source == "kmsg" else "journalctl -k"
        yield warn(
            f"on {name_hosts(list(events))} {kind.meaning.format(on=on)}, "
            f"{age_text(last.age_seconds)} ago{times}",
            events,
            seen=f"{source}: {events[first].text}",
            hint=kind.hint.format(on=on),
        )


RULES = (_log,)
