"""A bed's folder, which is also its claim on two networks; stale ones are swept here.

It starts no process. The folder's name holds the networks, and ``mkdir`` is atomic, so beds of
several processes never share an address.
"""

import ipaddress
import json
import os
import random
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDERS = Path("/tmp")
PREFIX = "dctb-"


@dataclass(frozen=True, slots=True)
class Claim:
    """The folder and the networks of one bed.

    ``management`` is where sshd answers and where the controlling process has an address;
    ``training`` connects the hosts only.
    """

    folder: Path
    management: ipaddress.IPv4Network
    training: ipaddress.IPv4Network

    @property
    def console_address(self) -> str:
        return str(self.management[254])

    @property
    def uplink(self) -> str:
        """Name of the controlling process's network interface to the bed (at most 15 bytes)."""
        return self.folder.name.replace(PREFIX, "dt", 1)


def claim(attempts: int = 200) -> Claim:
    """Make a bed's folder on networks that nobody uses.

    Raises:
        RuntimeError: if every attempt met a network in use.
    """
    sweep()
    taken = networks_in_use()
    for _ in range(attempts):
        second, third = random.randrange(64, 128), random.randrange(0, 254, 2)
        both = ipaddress.IPv4Network(f"10.{second}.{third}.0/23")
        if any(both.overlaps(other) for other in taken):
            continue
        folder = FOLDERS / f"{PREFIX}{second}-{third}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            write_owner(folder, os.getpid())
            management, training = both.subnets()
            return Claim(folder, management, training)
    raise RuntimeError(f"no free network for a testbed in {attempts} attempts")


def networks_in_use() -> list[ipaddress.IPv4Network]:
    """Return the networks that this process has routes to, the default route left out."""
    routes = subprocess.run(
        ["ip", "-4", "-json", "route"], check=True, capture_output=True, text=True, timeout=10
    )
    destinations = [route["dst"] for route in json.loads(routes.stdout or "[]")]
    return [ipaddress.IPv4Network(dst, strict=False) for dst in destinations if dst != "default"]


def write_owner(folder: Path, *pids: int) -> None:
    """Note the processes that a bed belongs to, each with its start time; a sweep meanwhile sees all or none."""
    lines = [f"{pid} {started(pid)}" for pid in pids]
    (folder / "next").write_text("\n".join(lines) + "\n")
    (folder / "next").replace(folder / "owner")


def started(pid: int) -> str:
    """Return when ``pid`` started (field 22 of /proc/pid/stat, clock ticks); empty when gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


def is_alive(folder: Path) -> bool:
    """Tell whether any process that the bed in ``folder`` belongs to still runs."""
    try:
        owners = [line.split() for line in (folder / "owner").read_text().splitlines()]
    except FileNotFoundError:
        # Between the mkdir and the note; a bed that died there has nothing but its folder.
        return age_seconds(folder) < 60
    return any(len(owner) == 2 and started(int(owner[0])) == owner[1] for owner in owners)


def age_seconds(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def sweep() -> None:
    """Remove the folders of beds whose processes are gone."""
    for folder in FOLDERS.glob(f"{PREFIX}*-*"):
        with suppress(FileNotFoundError):  # another process removed it just now
            mine = folder.is_dir() and folder.stat().st_uid == os.getuid()
            if mine and not is_alive(folder):
                shutil.rmtree(folder, ignore_errors=True)
