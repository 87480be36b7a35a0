"""The faults of the laboratory as data: what is broken, and exactly what ``check`` must find of it.

Tests, the benchmark of precision and recall, and ``python -m testbed lab`` all read this one list.
How a fault gets into a host is in ``injecting``.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from testbed import injecting
from testbed.bed import Testbed
from testbed.host import Host
from testbed.slurm import Slurm

Inject = Callable[["Laboratory", int], AbstractContextManager[None]]
Found = tuple[str, str, tuple[str, ...]]
"""Severity, check and hosts of a finding."""

MASTER_PORT = 29500


@dataclass(frozen=True, slots=True)
class Laboratory:
    """Hosts to break, and the Slurm on them if they have one."""

    bed: Testbed
    slurm: Slurm | None = None

    def host(self, number: int) -> Host:
        """Return a host by its number, from 1."""
        return self.bed.hosts[number - 1]

    def others(self, number: int) -> list[Host]:
        """Return all hosts but one."""
        return [host for index, host in enumerate(self.bed.hosts, 1) if index != number]

    @property
    def running_slurm(self) -> Slurm:
        """The Slurm of the hosts.

        Raises:
            RuntimeError: if they have none.
        """
        if self.slurm is None:
            raise RuntimeError("these hosts have no Slurm")
        return self.slurm


class Who(StrEnum):
    """Whom a finding names."""

    CULPRIT = "the culprit"
    EVERYBODY = "all hosts"
    FIRST = "the first host"
    WITH_FIRST = "the first host and the culprit"
    NODES = "all nodes of Slurm's"


@dataclass(frozen=True, slots=True)
class Expected:
    """One finding: how bad, by which check, about whom, and words that it must say."""

    severity: str
    check: str
    who: Who = Who.CULPRIT
    words: tuple[str, ...] = ()

    def found(self, laboratory: Laboratory, culprit: int) -> Found:
        """Return it for the hosts of a laboratory."""
        bed = laboratory.bed
        own = bed.hosts[culprit - 1].name
        hosts = {
            Who.CULPRIT: (own,),
            Who.EVERYBODY: tuple(bed.host_names),
            Who.FIRST: (bed.hosts[0].name,),
            Who.WITH_FIRST: (bed.hosts[0].name, own),
            Who.NODES: tuple(bed.host_names[:-1]),
        }[self.who]
        return self.severity, self.check, hosts


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that breaks training.

    Attributes:
        name: As the laboratory knows it.
        says: What is broken, in words.
        inject: Breaks a host, given by its number, or all; and mends it.
        expected: All findings of a check of the hosts with this fault, and no other.
        culprit: The number of the host, from 1, unless another is asked for.
        level: From which level on it is found.
        only: The groups that are looked at; all if empty. It keeps a test short.
        needs: What the machine must have: ``torch``, ``horovod``, ``slurm``, or nothing of it.
        in_allocation: Whether the check must stand in an allocation of Slurm's.
    """

    name: str
    says: str
    inject: Inject
    expected: tuple[Expected, ...]
    culprit: int = 2
    level: str = "quick"
    only: tuple[str, ...] = ()
    needs: str = ""
    in_allocation: bool = False

    def words(self) -> list[str]:
        """Return the options of ``check`` that find it."""
        options = ["--level", self.level]
        return [*options, "--only", ",".join(self.only)] if self.only else options

    def found(self, laboratory: Laboratory, culprit: int | None = None) -> list[Found]:
        """Return all that a check of the laboratory must find, in order."""
        number = culprit or self.culprit
        return sorted(each.found(laboratory, number) for each in self.expected)


def on_host(change: Callable[[Host], object]) -> Inject:
    """Return how to do to the culprit what ``Host.heal`` takes back."""
    return lambda lab, number: injecting.changed(lab.host(number), do=change)


def on_all(change: Callable[[Host], object]) -> Inject:
    """Return how to do it to every host."""
    return lambda lab, _: injecting.changed(*lab.bed.hosts, do=change)


def within(context: Callable[[Host], AbstractContextManager[None]]) -> Inject:
    """Return how to have the culprit within a context."""
    return lambda lab, number: context(lab.host(number))


def _forget(host: Host, forgotten: Host) -> None:
    lines = host.right_etc_hosts.read_text().splitlines(keepends=True)
    host.wrong_etc_hosts("".join(line for line in lines if forgotten.name not in line.split()))


FAULTS: tuple[Fault, ...] = (
    Fault(
        "hostname-on-loopback",
        "the host's own name is 127.0.1.1, as Debian's installer writes it: Gloo gets by, but not in a "
        "network above 127.0.0.0",
        on_host(lambda host: host.wrong_etc_hosts()),
        (
            Expected(
                "warn",
                "os.hostname_bindable",
                words=("127.0.1.1", "export GLOO_SOCKET_IFNAME=eth0"),
            ),
        ),
    ),
    Fault(
        "hostnames-on-loopback",
        "two hosts whose own names are 127.0.1.1: Gloo and Horovod hang",
        lambda lab, number: injecting.changed(
            lab.host(1), lab.host(number), do=lambda host: host.wrong_etc_hosts()
        ),
        (
            Expected("fail", "os.hostname_bindable", Who.FIRST, ("127.0.1.1",)),
            Expected("fail", "os.hostname_bindable", words=("127.0.1.1",)),
        ),
    ),
    Fault(
        "mtu-hole",
        "all hosts believe in jumbo frames that the switch drops: 4 KiB pass, 4 MiB hang",
        on_all(lambda host: host.mtu_black_hole("mgmt")),
        (Expected("fail", "net.mtu", Who.EVERYBODY, ("ip link set eth0 mtu 1500",)),),
    ),
    Fault(
        "docker0-twice",
        "docker0 has the same address on every host: Open MPI connects to itself and hangs",
        on_all(lambda host: host.add_docker_bridge()),
        (
            Expected(
                "warn", "net.iface_matrix", Who.EVERYBODY, ("172.17.0.1", "btl_tcp_if_include")
            ),
        ),
    ),
    Fault(
        "interface-names",
        "the network's interface is eth0 everywhere and ens5 on one host",
        within(partial(injecting.renamed, name="ens5")),
        (Expected("warn", "net.nic_names", words=("ens5",)),),
    ),
    Fault(
        "gloo-in-nccls-grammar",
        "GLOO_SOCKET_IFNAME=^lo,docker on one host: NCCL's grammar, which Gloo does not know",
        within(lambda host: injecting.variables(host, GLOO_SOCKET_IFNAME="^lo,docker")),
        (Expected("fail", "env.syntax", words=("GLOO_SOCKET_IFNAME",)),),
    ),
    Fault(
        "ports-dropped-one-way",
        "a filter drops what comes in on ports 40000 to 45000 of one host; 29500 is open",
        on_host(lambda host: host.drop_ports(40000, 45000)),
        (Expected("fail", "net.port_ephemeral", words=("some ports are blocked",)),),
        culprit=3,
    ),
    Fault(
        "rendezvous-port-dropped",
        "a filter drops what comes in on port 29500 of the first host",
        on_host(lambda host: host.drop_ports(MASTER_PORT, MASTER_PORT)),
        (Expected("fail", "net.port_ephemeral", words=("29500",)),),
        culprit=1,
    ),
    Fault(
        "nothing-gets-out",
        "one host's connections from ports of the kernel's choice are lost, others reach it on 29500",
        on_host(lambda host: host.drop_ports(32768, 60999)),
        (Expected("fail", "net.asymmetric", words=("nothing gets out of",)),),
        culprit=3,
    ),
    Fault(
        "no-network",
        "a host answers to ssh and to none of its peers",
        lambda lab, n: injecting.unreachable(lab.host(n), *lab.others(n)),
        (Expected("fail", "net.reach_tcp"),),
    ),
    Fault(
        "a-pair-that-cannot-meet",
        "two hosts reach everybody but each other",
        lambda lab, n: injecting.unreachable(lab.host(n), lab.host(1)),
        (Expected("fail", "net.reach_tcp", Who.WITH_FIRST),),
    ),
    Fault(
        "a-way-that-loses-everything",
        "what two hosts send each other is lost without a word; they reach everybody else",
        lambda lab, n: injecting.lost_between(lab.host(n), lab.host(1)),
        (Expected("fail", "net.reach_tcp", Who.WITH_FIRST, ("timeout",)),),
    ),
    Fault(
        "a-lost-way-and-only-jobs-asked-for",
        "the same, where only jobs are checked: these leave a host out, and the reason is the pair",
        lambda lab, n: injecting.lost_between(lab.host(n), lab.host(1)),
        (Expected("fail", "net.reach_tcp", Who.WITH_FIRST, ("cannot reach each other",)),),
        level="standard",
        only=("coll.",),
        needs="torch",
    ),
    Fault(
        "second-network-broken",
        "the cable of one host's second network is out, which NCCL and Open MPI use by themselves",
        on_host(lambda host: host.link_down("train")),
        (Expected("warn", "net.other_networks"),),
        culprit=3,
        level="standard",
        only=("net",),
    ),
    Fault(
        "slow-host",
        "one host's link came up slow",
        on_host(lambda host: host.cap_bandwidth("8mbit", "mgmt")),
        (Expected("warn", "net.bw_pair"),),
        culprit=3,
        level="full",
        only=("net",),
    ),
    Fault(
        "rendezvous-port-taken",
        "a program of the last job still listens on port 29500 of the first host",
        within(partial(injecting.held_port, port=MASTER_PORT)),
        (Expected("warn", "port.master_free", words=("29500",)),),
        culprit=1,
    ),
    Fault(
        "a-name-unknown",
        "one host's /etc/hosts lacks another's name",
        lambda lab, n: injecting.changed(
            lab.host(n), do=lambda host: _forget(host, lab.bed.hosts[-1])
        ),
        (Expected("warn", "os.peer_names", words=("/etc/hosts",)),),
        culprit=1,
        level="standard",
        only=("ssh", "os", "env"),
    ),
    Fault(
        "torch-older",
        "one host has the release of torch before",
        within(partial(injecting.other_packages, change=injecting.older_torch)),
        (Expected("fail", "torch.build"),),
        needs="torch",
    ),
    Fault(
        "horovod-without-mpi",
        "one host's Horovod was built without MPI",
        within(partial(injecting.other_packages, change=injecting.horovod_without_mpi)),
        (Expected("fail", "horovod.build", words=("mpi",)),),
        level="standard",
        only=("python", "torch", "horovod.build", "horovod.torch"),
        needs="horovod",
    ),
    Fault(
        "horovod-for-another-torch",
        "one host's Horovod needs functions that the torch there has not",
        within(partial(injecting.other_packages, change=injecting.horovod_for_another_torch)),
        (Expected("fail", "horovod.torch", words=("built against torch 2.1.0",)),),
        level="standard",
        only=("python", "torch", "horovod"),
        needs="horovod",
    ),
    Fault(
        "small-shared-memory",
        "/dev/shm has docker's 64 MiB",
        within(partial(injecting.small_shared_memory, size="64m")),
        (Expected("warn", "shm.size", words=("--shm-size",)),),
    ),
    Fault(
        "stuck-folder",
        "a network filesystem whose server does not answer: whoever touches it waits for ever",
        within(injecting.stuck_folder),
        (Expected("warn", "fs.mounts", words=(injecting.STUCK, "umount -f -l")),),
    ),
    Fault(
        "noisy-shell",
        "~/.bashrc prints without end",
        on_host(lambda host: host.bashrc("yes welcome\n")),
        (Expected("fail", "ssh.clean_shell"),),
    ),
    Fault(
        "keys-denied",
        "a host accepts nobody's key",
        on_host(lambda host: host.deny_keys()),
        (Expected("fail", "ssh.auth"),),
        culprit=3,
    ),
    Fault(
        "host-key-changed",
        "a host has another key than known_hosts has: installed anew, or somebody in between",
        within(injecting.other_host_key),
        (Expected("fail", "ssh.hostkey", words=("ssh-keygen",)),),
    ),
    Fault(
        "dead-host",
        "a host has no power",
        within(injecting.without_power),
        (Expected("fail", "ssh.connect"),),
        culprit=3,
    ),
    Fault(
        "munge-key-differs",
        "one node of Slurm's has another munge key",
        within(injecting.another_munge_key),
        (Expected("fail", "slurm.munge", words=("Invalid credential",)),),
        needs="slurm",
    ),
    Fault(
        "little-locked-memory-in-jobs",
        "srun's tasks may lock 64 KiB, a login much more: RDMA fails in jobs only",
        lambda lab, n: injecting.little_locked_memory_in_jobs(lab.running_slurm, lab.host(n)),
        (Expected("warn", "slurm.limits", words=("LimitMEMLOCK",)),),
        level="standard",
        only=("ssh", "os", "lim", "slurm"),
        needs="slurm",
        in_allocation=True,
    ),
)

BY_NAME = {fault.name: fault for fault in FAULTS}

THREE_AT_ONCE = {"hostname-on-loopback": 2, "ports-dropped-one-way": 4, "torch-older": 6}
"""Faults by name, each with its host's number, for a cluster of six or more."""
