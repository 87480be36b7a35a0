"""Checks of group ``os`` on how the kernel is set and what it noted: clocks, ports, queues, TMPDIR, its log."""

from __future__ import annotations

from collections import Counter

from distconsole.checks.engine.rule import (
    HERE,
    HostView,
    NotApplicable,
    RuleResults,
    differ,
    hint,
    host_rule,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import KernelEvent, KernelFacts, OsFacts, SshFacts
from distconsole.checks.rules.wording import MAX_LISTED, dissent, join_some, name_hosts
from distconsole.model.addresses import is_virtual
from distconsole.model.findings import Cure, HostCure
from distconsole.model.requests import Level
from distconsole.model.time_text import age_text

SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "pit")
"""Clock sources that cost a microsecond or more to read, and a system call each time."""
AUTONOMOUS_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""Where ``powersave`` is the name of what raises the clock under load as needed."""
RENDEZVOUS_PORTS = (29400, 29500)
PORTS_NEEDED = 8192
RANKS_PER_HOST = 8
SOCKET_PATH_BYTES = 108
"""Of sun_path, with its end (unix(7))."""
SOCKET_NAME_BYTES = 33
"""What Python's multiprocessing puts below TMPDIR: /pymp-xxxxxxxx/listener-xxxxxxxx, and the end."""
HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS


@rule("sys.clocksource", "os", Level.QUICK, OsFacts)
@hint("dmesg says why; a firmware update, or clocksource=tsc.")
def _clocksource(view: View) -> RuleResults:
    """A kernel that gave up tsc for hpet: every reading of the clock costs a microsecond."""
    facts = view.of(OsFacts).items()
    sources = {name: found.sysctl.get("clocksource") or "" for name, found in facts}
    silent = tuple(name for name, source in sources.items() if not source)
    yield NotApplicable("the kernel does not say what it takes the time from", silent)
    slow = {name: source for name, source in sources.items() if source in SLOW_CLOCKS}
    for name, source in slow.items():
        yield warn(
            f"the time comes from {source}, which is slow, on {HERE}",
            (name,),
            seen=f"current_clocksource: {source}",
            expected="tsc, or what the hypervisor offers",
            hint="sudo dmesg | grep -i clocksource says why tsc was dropped; "
            "clocksource=tsc tsc=reliable on the kernel's command line where it is sound",
        )
    if not slow:
        known = {name: source for name, source in sources.items() if source}
        yield from differ(info, "clock source", known)


@rule("sys.governor", "os", Level.QUICK, OsFacts)
@hint("cpupower frequency-set -g performance")
def _governor(view: View) -> RuleResults:
    """CPU clocks that are kept low on some hosts, which all others then wait for."""
    clocks = {name: facts.cpu_clocks for name, facts in view.of(OsFacts).items()}
    silent = tuple(name for name, found in clocks.items() if not found.governors)
    yield NotApplicable("no governor of CPU clocks, as in most virtual machines", silent)
    governors = {n: ", ".join(sorted(c.governors)) for n, c in clocks.items() if c.governors}
    split = dissent(governors)
    hosts = tuple(
        name
        for name, found in clocks.items()
        if "powersave" in found.governors and found.driver not in AUTONOMOUS_DRIVERS
    )
    summary = f"the CPU clocks of {name_hosts(hosts)} are kept low"
    if split is not None and not hosts:
        hosts, summary = split.minority, split.told("CPU governor")
    if hosts:
        yield warn(
            summary,
            hosts,
            seen=join_some(f"{name}: {governors[name]} ({clocks[name].driver})" for name in hosts),
            expected="performance, or the same on every host",
            hint="sudo cpupower frequency-set -g performance",
        )


@host_rule("sys.ports", "os", Level.QUICK, OsFacts)
@hint("sysctl net.ipv4.ip_local_port_range and ip_local_reserved_ports.")
def _ports(host: HostView) -> RuleResults:
    """Too few ports for connections, or a range in which the rendezvous port lies."""
    sysctl = host.of(OsFacts).sysctl
    bounds = _numbers(sysctl.get("port_range"))
    if len(bounds) != 2:
        yield NotApplicable("the kernel does not say which ports it gives out")
        return
    low, high = bounds
    seen = f"net.ipv4.ip_local_port_range = {low} {high}"
    if high - low + 1 < PORTS_NEEDED:
        yield warn(
            f"{HERE}: {high - low + 1} ports for all connections of a host",
            seen=seen,
            expected=f"{PORTS_NEEDED} or more",
            hint="sudo sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
        )
    reserved = _parse_ranges(sysctl.get("reserved_ports") or "")
    inside = [port for port in RENDEZVOUS_PORTS if low <= port <= high]
    exposed = [port for port in inside if not any(a <= port <= b for a, b in reserved)]
    if exposed:
        ports = ",".join(map(str, exposed))
        yield info(
            f"any connection of {HERE} may take the rendezvous port {exposed[-1]}",
            seen=f"{seen}, of which {ports} are not reserved",
            expected="a rendezvous port outside of that range, or reserved",
            hint=f"sudo sysctl -w net.ipv4.ip_local_reserved_ports={ports}; "
            "`distconsole run` takes a port that is free",
        )


def _numbers(text: str | None) -> list[int]:
    return [int(word) for word in (text or "").split() if word.isdigit()]


def _parse_ranges(text: str) -> list[tuple[int, int]]:
    found = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        if low.isdigit() and (high or low).isdigit():
            found.append((int(low), int(high or low)))
    return found


@host_rule("sys.backlog", "os", Level.QUICK, OsFacts)
@hint("sysctl net.core.somaxconn")
def _backlog(host: HostView) -> RuleResults:
    """Connections reset at the start of large jobs: more ranks than may wait in the queue.

    All ranks connect to the store of the first host at once; the kernel cuts its queue.
    """
    gpus, of_all = host.view.of(GpuFacts), host.view.ranks_per_host
    counts = {name: found.count for name, found in gpus.items()}
    ranks = sum(of_all or counts.get(name) or RANKS_PER_HOST for name in host.view.everyone)
    queue = _numbers(host.of(OsFacts).sysctl.get("somaxconn"))
    if not queue:
        yield NotApplicable("the kernel does not say how many connections may wait")
    elif queue[0] < ranks:
        yield warn(
            f"fewer connections may wait on {HERE} than {ranks} ranks make at once",
            seen=f"somaxconn {queue[0]}",
            expected=f"{ranks} or more on the host of the rendezvous",
            hint="sudo sysctl -w net.core.somaxconn=4096",
        )


@rule("sys.neighbours", "os", Level.QUICK, OsFacts, NetFacts, SshFacts)
@hint("sysctl net.ipv4.neigh.default.gc_thresh3")
def _neighbours(view: View) -> RuleResults:
    """`neighbor table overflow`: connections between many hosts that time out at random.

    Each peer is an entry for each network; hosts of one kernel share its table.
    """
    kernels = {name: ssh.boot_id or name for name, ssh in view.of(SshFacts).items()}
    sharing, nets, peers = Counter(kernels.values()), view.of(NetFacts), len(view.everyone) - 1
    if peers < 1:
        yield NotApplicable("one host", tuple(kernels))
        return
    for name, facts in view.of(OsFacts).items():
        room = _numbers(facts.sysctl.get("neighbours_max"))
        networks = {
            address.iface
            for address in nets[name].addresses
            if address.up and not address.loopback and not is_virtual(address.iface)
        }
        on_kernel = sharing[kernels[name]]
        needed = 2 * peers * max(1, len(networks)) * on_kernel
        if not room:
            yield NotApplicable(
                "the neighbour table's size is not to be seen in a container", (name,)
            )
        elif room[0] < needed:
            yield warn(
                f"the neighbour table of {HERE} has room for {room[0]} and {needed} are needed",
                (name,),
                seen=f"net.ipv4.neigh.default.gc_thresh3 = {room[0]}; {peers} peers on "
                f"{max(1, len(networks))} networks"
                + (f", {on_kernel} hosts on this kernel" if on_kernel > 1 else ""),
                expected=f"{needed}; else connections time out at random (`neighbor table overflow`)",
                hint=f"sudo sysctl -w net.ipv4.neigh.default.gc_thresh3={max(16384, needed)} "
                f"net.ipv4.neigh.default.gc_thresh2={max(8192, needed // 2)}",
            )


@host_rule("tmp.dir", "os", Level.QUICK, OsFacts)
@hint("export TMPDIR=/tmp")
def _temporary(host: HostView) -> RuleResults:
    """A TMPDIR that is mounted noexec, or too long a path for Unix sockets (108 bytes)."""
    facts = host.of(OsFacts)
    path = facts.temporary
    room, length = facts.filesystems.get(path), len(path.encode())
    if not path:
        yield NotApplicable("the node does not say where its temporary files go")
    if room is not None and room.noexec:
        yield warn(
            f"nothing can be executed in {path} on {HERE}",
            seen="mounted noexec",
            expected="a folder from which compiled kernels (torch.compile, Triton) can be loaded",
            hint=f"export TMPDIR=/var/tmp; or on {HERE}: sudo mount -o remount,exec {path}",
            cure=_in_folder(host, "/var/tmp"),  # noqa: S108 - for programs of the user
        )
    if length + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES:
        yield warn(
            f"TMPDIR of {HERE} is too long a path for sockets: {length} bytes",
            seen=f"TMPDIR={path}",
            expected=f"at most {SOCKET_PATH_BYTES - SOCKET_NAME_BYTES} bytes; "
            "else DataLoader workers and mpirun fail with `AF_UNIX path too long`",
            hint="export TMPDIR=/tmp, in --setup",
            cure=_in_folder(host, "/tmp"),  # noqa: S108 - for programs of the user
        )


def _in_folder(host: HostView, path: str) -> Cure:
    return Cure(hosts={str(host): HostCure(env={"TMPDIR": path})})


@host_rule("proc.logout", "os", Level.QUICK, OsFacts)
@hint("KillExcludeUsers=USER in logind.conf, or a job of Slurm's.")
def _logout(host: HostView) -> RuleResults:
    """KillUserProcesses=yes of systemd-logind: agent, shims and ranks end with the console's connection."""
    facts = host.of(OsFacts)
    if facts.ends_at_logout is None:
        yield NotApplicable("systemd-logind does not say what it does when a session ends")
    elif facts.ends_at_logout:
        yield warn(
            f"a run on {HERE} is killed when the console leaves: systemd-logind ends what a "
            "session started",
            seen=f"KillUserProcesses=yes, also for {facts.user}",
            expected="runs that go on when their console ends or loses its network",
            hint=f"on {HERE}, in /etc/systemd/logind.conf: KillExcludeUsers=root {facts.user}; then "
            "sudo systemctl restart systemd-logind",
        )


@rule("sys.mtu_probing", "os", Level.QUICK, OsFacts)
@hint("sysctl net.ipv4.tcp_mtu_probing")
def _probing(view: View) -> RuleResults:
    """Hosts of which some mend a broken path MTU by themselves and some hang.

    Worth knowing where a path loses large packets: then only probing gets TCP through.
    """
    facts = view.of(OsFacts).items()
    values = {name: found.sysctl.get("mtu_probing") for name, found in facts}
    silent = tuple(name for name, value in values.items() if not value)
    yield NotApplicable("the kernel does not say whether TCP probes for the MTU", silent)
    yield from differ(
        info,
        "net.ipv4.tcp_mtu_probing",
        {name: value for name, value in values.items() if value},
        expected="the same on every host",
        hint="sudo sysctl -w net.ipv4.tcp_mtu_probing=1",
    )


_KINDS: dict[str, tuple[str, float, str]] = {
    "oom": (
        "memory ran out and the kernel ended {on}",
        HOUR_SECONDS,
        "fewer DataLoader workers or less in memory; a rank ended so shows exit code 137",
    ),
    "nfs": (
        "the NFS server {on} does not answer",
        DAY_SECONDS,
        "whatever touches its folders hangs: findmnt -t nfs,nfs4; then the server",
    ),
    "lustre": ("the connection to a Lustre server was lost", HOUR_SECONDS, "lfs check servers"),
    "neighbours": (
        "the neighbour table overflowed",
        DAY_SECONDS,
        "sudo sysctl -w net.ipv4.neigh.default.gc_thresh3=16384",
    ),
    "conntrack": (
        "the firewall's table of connections was full and it dropped packets",
        DAY_SECONDS,
        "sudo sysctl -w net.netfilter.nf_conntrack_max=1048576",
    ),
    "syn_flood": (
        "more connections came at once than may wait on port {on}",
        HOUR_SECONDS,
        "sudo sysctl -w net.core.somaxconn=4096",
    ),
    "hung": (
        "{on} was stuck in the kernel for minutes",
        HOUR_SECONDS,
        "the log names the function: a filesystem, a disk or a driver that does not answer",
    ),
    "hardware": ("the hardware reported an error", DAY_SECONDS, "sudo ras-mc-ctl --errors"),
    "pcie": ("the PCIe port {on} reported an error", DAY_SECONDS, "lspci -tv; reseat the card"),
    "disk": ("the disk or filesystem {on} failed", DAY_SECONDS, "smartctl -a; findmnt"),
    "link": ("the network link {on} went down", HOUR_SECONDS, "ethtool {on}; another cable"),
    "heat": ("a processor was too hot and slowed down", HOUR_SECONDS, "fans, inlet air"),
}
"""By kind of line what it means, for how long it matters, and what to do."""


def unless_unreadable(host: HostView) -> NotApplicable | None:
    """Leave out a host on which this user may not read the kernel's log."""
    if host.of(KernelFacts).source:
        return None
    return NotApplicable("the kernel's log is not readable for this user")


@rule("os.kernel_log", "os", Level.STANDARD, KernelFacts, unless=unless_unreadable)
@hint("The finding has the line and what to do.")
def _log(view: View) -> RuleResults:
    """What the kernel noted in the last hours: memory that ran out, NFS servers that do not answer, full tables, failing disks and links."""
    facts_of = view.of(KernelFacts)
    alike: dict[tuple[str, str], dict[str, KernelEvent]] = {}
    for name, facts in facts_of.items():
        for event in facts.events[-MAX_LISTED:]:
            _, seconds, _ = _KINDS.get(event.kind, ("", -1.0, ""))
            if event.age_seconds <= seconds:
                alike.setdefault((event.kind, event.on), {})[name] = event
    for (kind, where), events in alike.items():
        (meaning, _, mend), on = _KINDS[kind], where or "a program"
        last = min(events.values(), key=lambda event: event.age_seconds)
        times = f", {last.count} times" if last.count > 1 else ""
        first = next(iter(events))
        source = "dmesg" if facts_of[first].source == "kmsg" else "journalctl -k"
        yield warn(
            f"on {name_hosts(list(events))} {meaning.format(on=on)}, "
            f"{age_text(last.age_seconds)} ago{times}",
            events,
            seen=f"{source}: {events[first].text}",
            hint=mend.format(on=on),
        )


RULES = (
    *(_clocksource, _governor, _ports, _backlog, _neighbours, _probing, _logout, _temporary),
    _log,
)
