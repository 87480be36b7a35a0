"""Checks of group ``os`` on how the kernel is set: clocks, ports, queues, neighbours, TMPDIR."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from distconsole.checks.engine.rule import Said, Unjudged, differ, hint, info, rule, warn
from distconsole.checks.engine.together import HERE
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import OsFacts, SshFacts
from distconsole.checks.rules.wording import dissent, name_hosts
from distconsole.model.addresses import is_virtual
from distconsole.model.findings import Cure, HostCure
from distconsole.model.requests import Level

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


@rule("sys.clocksource", "os", Level.QUICK, OsFacts)
@hint("dmesg says why; a firmware update, or clocksource=tsc.")
def _clocksource(view: View) -> Iterator[Said]:
    """A kernel that gave up tsc for hpet: every reading of the clock costs a microsecond."""
    sources = {
        name: facts.sysctl.get("clocksource") or "" for name, facts in view.of(OsFacts).items()
    }
    silent = tuple(name for name, source in sources.items() if not source)
    yield Unjudged(silent, "the kernel does not say what it takes the time from")
    slow = {name: source for name, source in sources.items() if source in SLOW_CLOCKS}
    for source in dict.fromkeys(slow.values()):
        names = [name for name in slow if slow[name] == source]
        yield warn(
            f"{name_hosts(names)} {_take(names)} the time from {source}, which is slow",
            names,
            seen=f"current_clocksource: {source}",
            expected="tsc, or what the hypervisor offers",
            hint="sudo dmesg | grep -i clocksource says why tsc was dropped; "
            "clocksource=tsc tsc=reliable on the kernel's command line where it is sound",
        )
    split = dissent({name: source for name, source in sources.items() if source})
    if split is not None and not slow:
        yield info(split.told("clock source"), split.minority)


def _take(names: list[str]) -> str:
    return "takes" if len(names) == 1 else "take"


@rule("sys.governor", "os", Level.QUICK, OsFacts)
@hint("cpupower frequency-set -g performance")
def _governor(view: View) -> Iterator[Said]:
    """CPU clocks that are kept low on some hosts, which all others then wait for."""
    clocks = {name: facts.cpu_clocks for name, facts in view.of(OsFacts).items()}
    silent = tuple(name for name, found in clocks.items() if not found.governors)
    yield Unjudged(silent, "no governor of CPU clocks, as in most virtual machines")
    told = {
        name: ", ".join(sorted(found.governors))
        for name, found in clocks.items()
        if found.governors
    }
    slow = [
        name
        for name, found in clocks.items()
        if "powersave" in found.governors and found.driver not in AUTONOMOUS_DRIVERS
    ]
    split = dissent(told)
    named_hosts = slow or (split.minority if split is not None else ())
    if named_hosts:
        yield warn(
            f"the CPU clocks of {name_hosts(named_hosts)} are kept low"
            if slow
            else split.told("CPU governor")
            if split is not None
            else "",
            named_hosts,
            seen=", ".join(
                f"{name}: {told[name]} ({clocks[name].driver})" for name in named_hosts[:8]
            ),
            expected="performance, or the same on every host",
            hint="sudo cpupower frequency-set -g performance",
        )


@rule("sys.ports", "os", Level.QUICK, OsFacts)
@hint("sysctl net.ipv4.ip_local_port_range and ip_local_reserved_ports.")
def _ports(view: View) -> Iterator[Said]:
    """Too few ports for connections, or a range in which the rendezvous port lies."""
    for name, facts in view.of(OsFacts).items():
        bounds = _numbers(facts.sysctl.get("port_range"))
        if len(bounds) != 2:
            yield Unjudged((name,), "the kernel does not say which ports it gives out")
            continue
        low, high = bounds
        reserved = _reserved_ports(facts.sysctl.get("reserved_ports") or "")
        seen = f"net.ipv4.ip_local_port_range = {low} {high}"
        if high - low + 1 < PORTS_NEEDED:
            yield warn(
                f"{HERE}: {high - low + 1} ports for all connections of a host",
                (name,),
                seen=seen,
                expected=f"{PORTS_NEEDED} or more",
                hint="sudo sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
            )
        inside = [port for port in RENDEZVOUS_PORTS if low <= port <= high]
        exposed = [port for port in inside if not any(a <= port <= b for a, b in reserved)]
        if exposed:
            ports = ",".join(map(str, exposed))
            yield info(
                f"any connection of {HERE} may take the rendezvous port {exposed[-1]}",
                (name,),
                seen=f"{seen}, of which {ports} are not reserved",
                expected="a rendezvous port outside of that range, or reserved",
                hint=f"sudo sysctl -w net.ipv4.ip_local_reserved_ports={ports}; "
                "`distconsole run` takes a port that is free",
            )


def _numbers(text: str | None) -> list[int]:
    return [int(word) for word in (text or "").split() if word.isdigit()]


def _reserved_ports(text: str) -> list[tuple[int, int]]:
    found = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        if low.isdigit() and (high or low).isdigit():
            found.append((int(low), int(high or low)))
    return found


@rule("sys.backlog", "os", Level.QUICK, OsFacts)
@hint("sysctl net.core.somaxconn")
def _backlog(view: View) -> Iterator[Said]:
    """Connections reset at the start of large jobs: more ranks than may wait in the queue.

    All ranks connect to the store of the first host at once; the kernel cuts its queue.
    """
    gpus = view.of(GpuFacts)
    ranks = sum(
        view.ranks_per_host or (gpus[name].count if name in gpus else 0) or RANKS_PER_HOST
        for name in view.everyone
    )
    low: dict[str, int] = {}
    for name, facts in view.of(OsFacts).items():
        queue = _numbers(facts.sysctl.get("somaxconn"))
        if not queue:
            yield Unjudged((name,), "the kernel does not say how many connections may wait")
        elif queue[0] < ranks:
            low[name] = queue[0]
    if low:
        yield warn(
            f"fewer connections may wait on {name_hosts(list(low))} than {ranks} ranks make at once",
            low,
            seen=", ".join(f"{name}: somaxconn {queue}" for name, queue in list(low.items())[:8]),
            expected=f"{ranks} or more on the host of the rendezvous",
            hint="sudo sysctl -w net.core.somaxconn=4096",
        )


@rule("sys.neighbours", "os", Level.QUICK, OsFacts, NetFacts, SshFacts)
@hint("sysctl net.ipv4.neigh.default.gc_thresh3")
def _neighbours(view: View) -> Iterator[Said]:
    """`neighbor table overflow`: connections between many hosts that time out at random.

    Each peer is an entry for each network; hosts of one kernel share its table.
    """
    ssh, nets = view.of(SshFacts), view.of(NetFacts)
    sharing = Counter(facts.boot_id or name for name, facts in ssh.items())
    peers = len(view.everyone) - 1
    if peers < 1:
        yield Unjudged(tuple(host.name for host in view.hosts), "one host")
        return
    for name, facts in view.of(OsFacts).items():
        room = _numbers(facts.sysctl.get("neighbours_max"))
        networks = {
            address.iface
            for address in nets[name].addresses
            if address.up and not address.loopback and not is_virtual(address.iface)
        }
        kernel = ssh[name].boot_id or name
        needed = 2 * peers * max(1, len(networks)) * sharing[kernel]
        if not room:
            yield Unjudged((name,), "the neighbour table's size is not to be seen in a container")
        elif room[0] < needed:
            yield warn(
                f"the neighbour table of {HERE} has room for {room[0]} and {needed} are needed",
                (name,),
                seen=f"net.ipv4.neigh.default.gc_thresh3 = {room[0]}; {peers} peers on "
                f"{max(1, len(networks))} networks"
                + (f", {sharing[kernel]} hosts on this kernel" if sharing[kernel] > 1 else ""),
                expected=f"{needed}; else connections time out at random (`neighbor table overflow`)",
                hint=f"sudo sysctl -w net.ipv4.neigh.default.gc_thresh3={max(16384, needed)} "
                f"net.ipv4.neigh.default.gc_thresh2={max(8192, needed // 2)}",
            )


@rule("tmp.dir", "os", Level.QUICK, OsFacts)
@hint("export TMPDIR=/tmp")
def _temporary(view: View) -> Iterator[Said]:
    """A TMPDIR that is mounted noexec, or too long a path for Unix sockets (108 bytes)."""
    for name, facts in view.of(OsFacts).items():
        path = facts.temporary
        if not path:
            yield Unjudged((name,), "the node does not say where its temporary files go")
            continue
        room = facts.filesystems.get(path)
        if room is not None and room.noexec:
            yield warn(
                f"nothing can be executed in {path} on {HERE}",
                (name,),
                seen="mounted noexec",
                expected="a folder from which compiled kernels (torch.compile, Triton) can be loaded",
                hint=f"export TMPDIR=/var/tmp; or on {HERE}: sudo mount -o remount,exec {path}",
                cure=_in_folder(name, "/var/tmp"),  # noqa: S108 - for programs of the user
            )
        if len(path.encode()) + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES:
            yield warn(
                f"TMPDIR of {HERE} is too long a path for sockets: {len(path.encode())} bytes",
                (name,),
                seen=f"TMPDIR={path}",
                expected=f"at most {SOCKET_PATH_BYTES - SOCKET_NAME_BYTES} bytes; "
                "else DataLoader workers and mpirun fail with `AF_UNIX path too long`",
                hint="export TMPDIR=/tmp, in --setup",
                cure=_in_folder(name, "/tmp"),  # noqa: S108 - for programs of the user
            )


@rule("proc.logout", "os", Level.QUICK, OsFacts)
@hint("KillExcludeUsers=USER in logind.conf, or a job of Slurm's.")
def _logout(view: View) -> Iterator[Said]:
    """KillUserProcesses=yes of systemd-logind: agent, shims and ranks end with the console's connection."""
    for name, facts in view.of(OsFacts).items():
        if facts.ends_at_logout is None:
            yield Unjudged((name,), "systemd-logind does not say what it does when a session ends")
        elif facts.ends_at_logout:
            yield warn(
                f"a run on {HERE} is killed when the console leaves: systemd-logind ends what a "
                "session started",
                (name,),
                seen=f"KillUserProcesses=yes, also for {facts.user}",
                expected="runs that go on when their console ends or loses its network",
                hint=f"on {HERE}, in /etc/systemd/logind.conf: KillExcludeUsers=root {facts.user}; then "
                "sudo systemctl restart systemd-logind",
            )


def _in_folder(name: str, path: str) -> Cure:
    return Cure(hosts={name: HostCure(env={"TMPDIR": path})})


@rule("sys.mtu_probing", "os", Level.QUICK, OsFacts)
@hint("sysctl net.ipv4.tcp_mtu_probing")
def _probing(view: View) -> Iterator[Said]:
    """Hosts of which some mend a broken path MTU by themselves and some hang.

    Worth knowing where a path loses large packets: then only probing gets TCP through.
    """
    values = {
        name: facts.sysctl.get("mtu_probing") or "" for name, facts in view.of(OsFacts).items()
    }
    silent = tuple(name for name, value in values.items() if not value)
    yield Unjudged(silent, "the kernel does not say whether TCP probes for the MTU")
    yield from differ(
        info,
        "net.ipv4.tcp_mtu_probing",
        {name: value for name, value in values.items() if value},
        expected="the same on every host",
        hint="sudo sysctl -w net.ipv4.tcp_mtu_probing=1",
    )


RULES = (_clocksource, _governor, _ports, _backlog, _neighbours, _probing, _logout, _temporary)
