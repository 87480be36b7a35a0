"""Where ``init`` finds hosts by itself: a Slurm allocation, a host file beside it, ssh_config, sinfo."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from distconsole.config.hostfile import NamedHost, read_hostfile, read_list
from distconsole.config.ranges import RangeError
from distconsole.config.ssh_names import own_ssh_config, ssh_names
from distconsole.errors import ConfigError
from distconsole.ssh.paramiko_transport import parse_hop
from distconsole.ssh.ssh_config import SshConfig

SINFO = ("sinfo", "--noheader", "--responding", "--format=%N")
SINFO_SECONDS = 5.0


def find_candidates(ssh_config: Path | None) -> Iterator[tuple[list[NamedHost], str]]:
    """Yield hosts that may be meant and where they were found, the likeliest first.

    Args:
        ssh_config: Read in place of the user's.

    Raises ConfigError if the ssh_config cannot be understood.
    """
    yield _read(os.environ.get("SLURM_JOB_NODELIST", "")), "the Slurm allocation"
    for name in ("hostfile", "hosts", "machinefile"):
        with suppress(ConfigError):
            yield read_hostfile(Path(name)), f"./{name}"
    machines, skipped = _machines(ssh_config)
    yield machines, f"{ssh_config or '~/.ssh/config'}{skipped}"
    with suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run(
            SINFO, stdin=subprocess.DEVNULL, capture_output=True, timeout=SINFO_SECONDS, check=True
        )
        yield _read(",".join(asked.stdout.decode("utf-8", "replace").split())), "Slurm: sinfo"


def _read(text: str) -> list[NamedHost]:
    with suppress(RangeError):
        return read_list(text)
    return []


def _machines(file: Path | None) -> tuple[list[NamedHost], str]:
    """Return the aliases of ssh_config that nobody jumps through, and that are no Git servers; and which jump."""
    config = SshConfig(file)
    options = {name: config.lookup(name) for name in ssh_names(file or own_ssh_config())}
    jumps = {parse_hop(hop)[1] for each in options.values() for hop in each.proxy_jump}
    left = [name for name, each in options.items() if name not in jumps and each.user != "git"]
    skipped = ", ".join(sorted(jumps & options.keys()))
    return _read(",".join(left)), f"; not {skipped}: a jump host" if skipped else ""
