"""The bed's two networks: bridges in the keeper's namespace and a cable to each host.

It starts and stops no host. Everything here is gone when the keeper is, for a namespace takes its
links with it.
"""

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from testbed.claims import Claim

Network = Literal["mgmt", "train"]
NETWORKS: tuple[Network, Network] = ("mgmt", "train")
INTERFACES: dict[Network, str] = {"mgmt": "eth0", "train": "eth1"}
MTU = 1500
MANY_HOSTS = 16
NOBODY = 253
"""The number of an address of each network that no host has."""


@dataclass(frozen=True, slots=True)
class Socket:
    """A host's place in the switch: number from 1, and the addresses that go with it."""

    number: int
    address: str
    train_address: str

    @classmethod
    def of(cls, claim: Claim, number: int) -> "Socket":
        return cls(number, str(claim.management[number]), str(claim.training[number]))

    def nobody(self, network: Network) -> str:
        """An address of the network that no host has."""
        own = self.address if network == "mgmt" else self.train_address
        return f"{own.rpartition('.')[0]}.{NOBODY}"

    def mac(self, network: Network) -> str:
        """The interface's hardware address, the same after a reboot, as a real one's is."""
        own = self.address if network == "mgmt" else self.train_address
        return "02:00:" + ":".join(f"{int(part):02x}" for part in own.split("."))

    def port(self, network: Network) -> str:
        """Name of the switch's end of the cable."""
        return f"{network}{self.number}"


class Switch:
    """The networks of one bed.

    Args:
        keeper_pid: The process whose network namespace holds the bridges.
        claim: The networks.
        console_pid: The process in whose network namespace the console's own address appears.
        hosts: How many there will be.
    """

    def __init__(self, keeper_pid: int, claim: Claim, console_pid: int, hosts: int) -> None:
        self._pid = keeper_pid
        self._everyone = [Socket.of(claim, number) for number in range(1, hosts + 1)]
        self.console_address = claim.console_address
        ip_batch(
            keeper_pid,
            "link set lo up",
            *(f"link add name {name} type bridge" for name in NETWORKS),
            *(f"link set {name} up" for name in NETWORKS),
            f"link add name uplink type veth peer name {claim.uplink} netns {console_pid}",
            "link set uplink master mgmt up",
        )
        ip_batch(
            console_pid,
            f"addr add {claim.console_address}/24 dev {claim.uplink}",
            f"link set {claim.uplink} up",
            # Not by the machine's default route, behind which something may answer.
            f"route add {claim.training} via {claim.management[NOBODY]} dev {claim.uplink}",
        )

    def plug_in(self, hosts: Iterable[tuple[Socket, int]]) -> None:
        """Cable hosts, given with a process in each one's network namespace, to both networks."""
        hosts = list(hosts)
        cables: list[str] = []
        for socket, pid in hosts:
            for name in NETWORKS:
                cables += [
                    f"link add name {socket.port(name)} mtu {MTU} type veth "
                    f"peer name {INTERFACES[name]} mtu {MTU} address {socket.mac(name)} netns {pid}",
                    f"link set {socket.port(name)} master {name} up",
                ]
        ip_batch(self._pid, *cables)
        for socket, pid in hosts:
            ip_batch(
                pid,
                "link set lo up",
                f"addr add {socket.address}/24 brd + dev eth0",
                f"addr add {socket.train_address}/24 brd + dev eth1",
                "link set eth0 up",
                "link set eth1 up",
                *self._neighbours(socket),
            )

    def _neighbours(self, socket: Socket) -> list[str]:
        """Tell a host of many its neighbours' hardware addresses.

        All hosts share the kernel's table of those it finds out (gc_thresh3 of arp(7), 1,024), which
        as many hosts as here would overflow; machines of their own would not.
        """
        if len(self._everyone) <= MANY_HOSTS:
            return []
        return [
            f"neigh replace {address} lladdr {other.mac(name)} nud permanent dev {INTERFACES[name]}"
            for other in self._everyone
            if other != socket
            for name, address in zip(NETWORKS, (other.address, other.train_address), strict=True)
        ]

    def unplug(self, sockets: Iterable[Socket]) -> None:
        """Take the cables away, in the same instant for every host given."""
        ports = [socket.port(name) for socket in sockets for name in NETWORKS]
        ip_batch(self._pid, *(f"link del {port}" for port in ports), force=True)

    def set_port(self, socket: Socket, network: Network, *, up: bool) -> None:
        """Give or take the carrier of a host's interface."""
        ip_batch(self._pid, f"link set {socket.port(network)} {'up' if up else 'down'}")

    def set_uplink(self, *, connected: bool) -> None:
        """Connect or silently disconnect the console; the hosts keep reaching one another."""
        ip_batch(self._pid, "link set uplink " + ("master mgmt" if connected else "nomaster"))

    def shape(self, socket: Socket, network: Network, rate: str | None) -> None:
        """Cap what the host receives (``rate`` as in tc(8), such as 8mbit), or lift the cap."""
        shape(self._pid, socket.port(network), rate)


def shape(pid: int, interface: str, rate: str | None) -> None:
    """Cap what goes out of ``interface`` in the network namespace of ``pid``, or lift the cap."""
    if rate is None:
        in_network(pid, ["tc", "qdisc", "del", "dev", interface, "root"], check=False)
        return
    bucket = ["tbf", "rate", rate, "burst", "64kb", "latency", "20ms"]
    in_network(pid, ["tc", "qdisc", "replace", "dev", interface, "root", *bucket])


def ip_batch(pid: int, *commands: str, force: bool = False) -> None:
    """Run ip(8) ``commands`` in the network namespace of ``pid``.

    Raises:
        RuntimeError: if one fails, unless ``force``.
    """
    if commands:
        argv = ["ip", *(["-force"] if force else []), "-batch", "-"]
        in_network(pid, argv, stdin="\n".join(commands) + "\n", check=not force)


def in_network(pid: int, argv: Sequence[str], *, stdin: str = "", check: bool = True) -> str:
    """Run ``argv`` in the network namespace of ``pid`` and return what it printed.

    Raises:
        RuntimeError: if it fails and ``check`` is set.
    """
    done = subprocess.run(
        ["nsenter", "--target", str(pid), "--net", *argv],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}\n{stdin}")
    return done.stdout
