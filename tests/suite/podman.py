"""A podman of its own on a simulated host, whose containers have this machine's files, so torch and MPI are there."""

import shutil
import subprocess

from testbed import Host

PROGRAMS = ("podman", "conmon", "runc")

PODMAN = """#!/bin/sh
export CONTAINERS_CONF=/run/containers.conf
exec /usr/bin/podman --root /run/containers --runroot /run/podman --storage-driver vfs \\
    --cgroup-manager cgroupfs --events-backend file --runtime runc "$@"
"""

CONF = """[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4000:4000"]
"""
"""A sandbox without CAP_SYS_RESOURCE may not raise them as podman does."""

ROOT = "/run/image"
RUNNING = "podman:train"
NEW = f"podman:{ROOT} -v /tmp:/tmp -v /run/home:/run/home"


def lacks_podman() -> str:
    """Return what is missing for one; empty if nothing is."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"needs {', '.join(missing)}" if missing else ""


def install_podman(host: Host) -> None:
    (program := host.path("/run/bin/podman")).write_text(PODMAN)
    program.chmod(0o755)
    host.path("/run/containers.conf").write_text(CONF)
    start = (
        f"set -e; mkdir -p {ROOT}; mount --bind / {ROOT}; mount --make-private {ROOT};"
        "/run/bin/podman run -d --name train --network host --ipc host -v /tmp:/tmp "
        f"-v /run/home:/run/home --rootfs {ROOT} sleep 1000000"
    )
    done = host.popen(["sh", "-c", start], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = done.communicate(timeout=60)
    assert done.returncode == 0, said
