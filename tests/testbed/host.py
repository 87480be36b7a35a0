"""What can go wrong with a host, as methods; ``heal`` takes back all that can be.

Loss of power is ``Machine.power_cut``. Nothing here is left when the host is switched off and on,
except its host key.
"""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.keeper import wait_for
from testbed.machine import BOOT_SECONDS, HOME, Machine, answers
from testbed.sshfiles import SYSTEM_PATH, find_sshd, make_key
from testbed.switch import INTERFACES, MTU, NETWORKS, Network, in_network, ip_batch, shape

TMPFS_MOUNTS = ("/tmp", "/dev/shm", HOME)
CONFIGURATION = ("environment", "sshd_config")
DROP_PREFERENCE = 90
CONSOLE_PREFERENCE = 91
LOST_PREFERENCE = 92
DISCARD_TABLE = 90
LAST_OF_RULES = 65534
"""Linux takes no rule for port 65535 (fib_rule_port_range_valid), alone or as the end of a range."""
NOBODYS_MAC = "02:00:00:00:00:00"
JUMBO_MTU = 9000
DOCKER_ADDRESS = "172.17.0.1/16"


class Host(Machine):
    """A host of a ``Testbed``. Networks are ``"mgmt"`` (eth0, sshd) and ``"train"`` (eth1)."""

    def link_down(self, network: Network = "mgmt") -> None:
        """Pull the cable: the host's interface has no carrier."""
        self._switch.set_port(self._socket, network, up=False)

    def link_up(self, network: Network = "mgmt") -> None:
        self._switch.set_port(self._socket, network, up=True)

    def cut_from_console(self) -> None:
        """Let nothing of this host reach the console, silently; other hosts still hear it."""
        self._discard(CONSOLE_PREFERENCE, f"to {self._switch.console_address}")

    def mend_to_console(self) -> None:
        self._undiscard(CONSOLE_PREFERENCE)

    def drop_ports(self, low: int, high: int) -> None:
        """Be a stateless firewall: TCP to these ports of this host is silently lost.

        So are answers to connections that the host makes from a local port of the range.
        """
        high = min(high, LAST_OF_RULES)
        self._discard(DROP_PREFERENCE, f"ipproto tcp sport {low}-{high}")

    def undrop_ports(self) -> None:
        self._undiscard(DROP_PREFERENCE)

    def lose_what_goes_to(self, other: "Host", networks: Sequence[Network] = NETWORKS) -> None:
        """Have a switch between here and another host that drops what goes there, silently."""
        address: dict[Network, str] = {"mgmt": other.address, "train": other.train_address}
        for network in networks:
            self._discard(LOST_PREFERENCE, f"to {address[network]}")

    def lose_nothing(self) -> None:
        self._undiscard(LOST_PREFERENCE)

    def _discard(self, preference: int, selector: str) -> None:
        """Send what the host says to an address that nobody has.

        A blackhole rule would do, but tells the host's own programs at once.
        """
        nobody = self._socket.nobody("mgmt")
        ip_batch(
            self.pid,
            f"neigh replace {nobody} lladdr {NOBODYS_MAC} nud permanent dev eth0",
            f"route replace default via {nobody} dev eth0 table {DISCARD_TABLE}",
            f"rule add pref {preference} {selector} lookup {DISCARD_TABLE}",
        )

    def _undiscard(self, preference: int) -> None:
        shown = ["ip", "rule", "show", "pref", str(preference)]
        while in_network(self.pid, shown).strip():
            ip_batch(self.pid, f"rule del pref {preference}")

    def cap_bandwidth(self, rate: str = "8mbit", network: Network = "train") -> None:
        """Cap both directions of a network, each by a token bucket of 64 kB (tc-tbf(8))."""
        shape(self.pid, INTERFACES[network], rate)
        self._switch.shape(self._socket, network, rate)

    def uncap_bandwidth(self, network: Network = "train") -> None:
        shape(self.pid, INTERFACES[network], None)
        self._switch.shape(self._socket, network, None)

    def mtu_black_hole(self, network: Network = "train") -> None:
        """Believe in jumbo frames that the switch drops; two hosts must believe it.

        Without ``gso_max_segs 1`` large segments cross a veth whole, and the fault with them.
        """
        ip_batch(self.pid, f"link set {INTERFACES[network]} mtu {JUMBO_MTU} gso_max_segs 1")

    def mend_mtu(self, network: Network = "train") -> None:
        ip_batch(self.pid, f"link set {INTERFACES[network]} mtu {MTU} gso_max_segs 65535")

    def add_docker_bridge(self) -> None:
        """Add docker0 with the address that every host of the world has on it."""
        ip_batch(
            self.pid,
            "link add name docker0 type veth peer name dockerend0",
            f"addr add {DOCKER_ADDRESS} brd + dev docker0",
            "link set docker0 up",
            "link set dockerend0 up",
        )

    def remove_docker_bridge(self) -> None:
        ip_batch(self.pid, "link del docker0", force=True)

    def rename_interface(self, network: Network, name: str) -> None:
        """Call an interface otherwise than on the other hosts, until power-off."""
        self._rename(INTERFACES[network], name)

    def _rename(self, old: str, name: str) -> None:
        ip_batch(
            self.pid, f"link set {old} down", f"link set {old} name {name}", f"link set {name} up"
        )

    def rename_back(self, network: Network, name: str) -> None:
        """Take back ``rename_interface``."""
        self._rename(name, INTERFACES[network])

    def wrong_etc_hosts(self, text: str | None = None) -> None:
        """Replace /etc/hosts; by default put Debian's ``127.0.1.1 <hostname>`` on top."""
        right = self.right_etc_hosts.read_text()
        (self.files / "etc/hosts").write_text(
            f"127.0.1.1 {self.name}\n{right}" if text is None else text
        )

    def mend_etc_hosts(self) -> None:
        (self.files / "etc/hosts").write_text(self.right_etc_hosts.read_text())

    @property
    def right_etc_hosts(self) -> Path:
        return self.files.parent / "hosts"

    def full_disk(self, mount: str = "/tmp") -> None:
        """Leave no byte in /tmp, /dev/shm or the home."""
        self._remount(mount, f"size={self.tmp_bytes}")
        used = self.exec(["stat", "-f", "-c", "%b %f %S", mount], cwd="/").stdout.split()
        blocks, free, block_bytes = (int(number) for number in used)
        self._remount(mount, f"size={max(1, blocks - free) * block_bytes}")
        self.exec(["sh", "-c", f"cat /dev/zero > {mount}/.fill 2>/dev/null; :"], cwd="/")

    def no_exec(self, mount: str = "/tmp") -> None:
        """Mount /tmp, /dev/shm or the home so that nothing on it can be executed."""
        self._remount(mount, "noexec")

    def read_only(self, mount: str = "/tmp") -> None:
        """Mount /tmp, /dev/shm or the home read-only."""
        self._remount(mount, "ro")

    def mend_disks(self) -> None:
        for mount in TMPFS_MOUNTS:
            self._remount(mount, f"rw,exec,size={self.tmp_bytes}")
            self.path(f"{mount}/.fill").unlink(missing_ok=True)

    def _remount(self, mount: str, options: str) -> None:
        self.exec(["mount", "-o", f"remount,{options}", mount], cwd="/")

    def bashrc(self, text: str) -> None:
        """Set ~/.bashrc, which Debian's bash reads for ``ssh host command`` too."""
        self.path(f"{HOME}/.bashrc").write_text(text)

    def use_python(self, interpreter: str | Path | None) -> None:
        """Let ``python3`` be this one; with None a host without any."""
        line = f'exec {shlex.quote(str(interpreter))} "$@"'
        missing = "echo 'bash: line 1: python3: command not found' >&2; exit 127"
        for name in ("python3", "python"):
            program = self.path(f"/run/bin/{name}")
            program.write_text(f"#!/bin/sh\n{line if interpreter else missing}\n")
            program.chmod(0o755)

    def mend_python(self) -> None:
        for name in ("python3", "python"):
            self.path(f"/run/bin/{name}").unlink(missing_ok=True)

    def deny_keys(self) -> None:
        """Accept no key of anybody."""
        (self.files / "authorized_keys").write_text("")

    def accept_keys(self) -> None:
        (self.files / "authorized_keys").write_text(
            (self.files.parent / "id_ed25519.pub").read_text()
        )

    def let_out(self) -> None:
        """Give the user here a key that every host accepts, and the hosts' own: ssh between hosts."""
        folder = self.path(f"{HOME}/.ssh")
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in ("id_ed25519", "known_hosts"):
            shutil.copy(self.files.parent / name, folder)

    def keep_in(self) -> None:
        """Take that key away again; the hosts' own stay known."""
        self.path(f"{HOME}/.ssh/id_ed25519").unlink(missing_ok=True)

    def change_host_key(self) -> str:
        """Have another host key than known_hosts says; return the new public line."""
        public = make_key(self.files / "host_key", self.name)
        self.restart_sshd()
        return public

    def set_environment(self, variables: Mapping[str, str]) -> None:
        """Add variables to what every later session on the host starts with."""
        kept_before = self.files / "before"
        if not kept_before.exists():
            kept_before.mkdir()
            for name in CONFIGURATION:
                shutil.copy(self.files / name, kept_before)
        merged = {**self.environment(), **variables}
        kept = [
            line
            for line in (self.files / "sshd_config").read_text().splitlines()
            if not line.startswith("SetEnv ")
        ]
        pairs = " ".join(f'"{name}={value}"' for name, value in merged.items() if name != "HOME")
        (self.files / "sshd_config").write_text("\n".join([*kept, f"SetEnv {pairs}"]) + "\n")
        lines = [f"{name}={value}" for name, value in merged.items()]
        (self.files / "environment").write_text("\n".join(lines) + "\n")
        if self.is_on:
            self.restart_sshd()

    def stop_sshd(self) -> None:
        """Refuse new sessions; those that are open go on."""
        pid = self.path("/run/sshd.pid").read_text().strip()
        self.exec(["kill", pid], cwd="/")
        wait_for(lambda: not answers(self.address), BOOT_SECONDS)

    def start_sshd(self) -> None:
        config, log = self.files / "sshd_config", self.files / "sshd.log"
        self.exec([find_sshd() or "sshd", "-f", str(config), "-E", str(log)], cwd="/")
        wait_for(lambda: answers(self.address), BOOT_SECONDS)

    def restart_sshd(self) -> None:
        self.stop_sshd()
        self.start_sshd()

    def heal(self) -> None:
        """Take back every fault of this class but a renamed interface and another host key."""
        self.thaw()
        for network in NETWORKS:
            self.link_up(network)
            self.uncap_bandwidth(network)
            self.mend_mtu(network)
        self.mend_to_console()
        self.undrop_ports()
        self.lose_nothing()
        self.remove_docker_bridge()
        self.mend_etc_hosts()
        self.mend_disks()
        self.mend_python()
        self.accept_keys()
        self.path(f"{HOME}/.bashrc").unlink(missing_ok=True)
        if (self.files / "before").exists():
            for name in CONFIGURATION:
                shutil.move(self.files / "before" / name, self.files / name)
            self.forget_environment()
            self.restart_sshd()

    def forget_environment(self) -> None:
        """Keep what the host is configured with now."""
        shutil.rmtree(self.files / "before", ignore_errors=True)


def session_path(interpreter_folder: Path) -> str:
    """Return the PATH of sessions: faults first, then the tests' own interpreter, then Debian's."""
    return f"/run/bin:{interpreter_folder}:{SYSTEM_PATH}"
