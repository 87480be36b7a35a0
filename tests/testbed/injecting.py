"""How the faults of the laboratory are put into a host and taken out again. It knows no check.

Each is a context: the fault is there within it, and nothing of it afterwards. None changes the
product: other files, mounts, routes, programs and keys are what a broken host has.
"""

import importlib.util
import mmap
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from testbed.host import Host
from testbed.keeper import wait_for
from testbed.slurm import Slurm, start_munged, start_slurmd
from testbed.switch import NETWORKS, Network, ip_batch

OPEN_RULE = 700
"""Preference of the routing rules here: after those of ``Host``, before the kernel's own."""

OVERLAY = "/run/overlay"
STUCK = "/run/data"
UP_SECONDS = 10.0
_LISTEN = (
    "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1]))); "
    "print('up', flush=True); time.sleep(1e6)"
)
_STUCK = """
import ctypes, os, sys, time
libc, point = ctypes.CDLL(None, use_errno=True), sys.argv[1].encode()
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"storage:/data", point, b"fuse.sshfs", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
print("up", flush=True)
time.sleep(1e6)
"""
"""A daemon of a filesystem in user space that takes the mount and then answers nothing."""

_RETURN_FALSE = {"x86_64": b"\x31\xc0\xc3", "aarch64": b"\x00\x00\x80\x52\xc0\x03\x5f\xd6"}
"""Machine code of a function that returns 0."""


@contextmanager
def changed(*hosts: Host, do: Callable[[Host], object]) -> Iterator[None]:
    """Do something to hosts that ``Host.heal`` takes back."""
    for host in hosts:
        do(host)
    try:
        yield
    finally:
        for host in hosts:
            host.heal()


@contextmanager
def without_power(host: Host) -> Iterator[None]:
    host.power_cut()
    try:
        yield
    finally:
        host.power_on()


@contextmanager
def unreachable(host: Host, *others: Host) -> Iterator[None]:
    """Let a host's way to others lead nowhere; what they send it arrives, its answers do not."""
    rules = [f"pref {OPEN_RULE} to {other.address} blackhole" for other in others]
    ip_batch(host.pid, *(f"rule add {rule}" for rule in rules))
    try:
        yield
    finally:
        ip_batch(host.pid, *(f"rule del {rule}" for rule in rules))


@contextmanager
def lost_between(one: Host, other: Host, networks: Sequence[Network] = NETWORKS) -> Iterator[None]:
    """Let what two hosts say to each other get lost on the way, both ways, without a word to either."""
    one.lose_what_goes_to(other, networks)
    other.lose_what_goes_to(one, networks)
    try:
        yield
    finally:
        one.lose_nothing()
        other.lose_nothing()


@contextmanager
def renamed(host: Host, name: str, network: Network = "mgmt") -> Iterator[None]:
    """Call a host's interface otherwise than on the others."""
    host.rename_interface(network, name)
    try:
        yield
    finally:
        host.rename_back(network, name)


@contextmanager
def other_host_key(host: Host) -> Iterator[None]:
    host.change_host_key()
    try:
        yield
    finally:
        shutil.copy(host.files / "host_key.original", host.files / "host_key")
        host.restart_sshd()


@contextmanager
def variables(host: Host, **values: str) -> Iterator[None]:
    """Set variables of every session on a host."""
    files = [host.files / "environment", host.files / "sshd_config"]
    before = [file.read_text() for file in files]
    host.set_environment(values)
    try:
        yield
    finally:
        for file, text in zip(files, before, strict=True):
            file.write_text(text)
        host.restart_sshd()


@contextmanager
def held_port(host: Host, port: int) -> Iterator[None]:
    """Let a program of somebody's listen on a port, as one that the last job left does."""
    with _program(host, _LISTEN, str(port)):
        yield


@contextmanager
def small_shared_memory(host: Host, size: str) -> Iterator[None]:
    """Give /dev/shm the size that docker does."""
    host.exec(["mount", "-o", f"remount,size={size}", "/dev/shm"], cwd="/")
    try:
        yield
    finally:
        host.mend_disks()


@contextmanager
def stuck_folder(host: Host) -> Iterator[None]:
    """Mount a network filesystem whose server does not answer: whoever touches it waits for ever."""
    host.exec(["mkdir", "-p", STUCK], cwd="/")
    with _program(host, _STUCK, STUCK):
        try:
            yield
        finally:
            host.exec(["umount", "-l", STUCK], cwd="/")


@contextmanager
def _program(host: Host, source: str, *words: str) -> Iterator[None]:
    """Run a Python program on a host from when it says ``up``."""
    argv = [sys.executable, "-c", source, *words]
    process = host.popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        if (said := process.stdout.readline()) != "up\n":
            raise RuntimeError(f"{host.name}: {said}{process.stdout.read()}")
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@contextmanager
def other_packages(host: Host, change: Callable[[Path], None]) -> Iterator[None]:
    """Let one host have other files where all have their Python packages.

    A filesystem in memory lies over the folder in the host's own namespace (overlayfs), so that the
    interpreter, its path and all other files are the same as everywhere.
    """
    real = packages_folder()
    upper, work = f"{OVERLAY}/upper", f"{OVERLAY}/work"
    host.exec(["mkdir", "-p", OVERLAY], cwd="/")
    with ExitStack() as stack:
        stack.callback(host.exec, ["rmdir", OVERLAY], cwd="/")
        host.exec(["mount", "-t", "tmpfs", "-o", "size=512m", "packages", OVERLAY], cwd="/")
        stack.callback(host.exec, ["umount", "-l", OVERLAY], cwd="/")
        host.exec(["mkdir", upper, work], cwd="/")
        options = f"lowerdir={real},upperdir={upper},workdir={work}"
        host.exec(["mount", "-t", "overlay", "packages", "-o", options, str(real)], cwd="/")
        stack.callback(host.exec, ["umount", "-l", str(real)], cwd="/")
        change(host.path(str(real)))
        yield


def packages_folder() -> Path:
    """Return where the sessions' interpreter has torch.

    Raises:
        RuntimeError: if it has none.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise RuntimeError("there is no torch here")
    return Path(found.origin).parent.parent


def older_torch(packages: Path) -> None:
    """Make torch, by its files and its metadata, the release before."""
    (info,) = packages.glob("torch-*.dist-info")
    version = info.name.removeprefix("torch-").removesuffix(".dist-info")
    older = _release_before(version)
    shutil.copytree(info, info.with_name(f"torch-{older}.dist-info"))
    shutil.rmtree(info)
    for file in (
        packages / "torch/version.py",
        info.with_name(f"torch-{older}.dist-info") / "METADATA",
    ):
        file.write_text(file.read_text().replace(version, older))


def _release_before(version: str) -> str:
    major, minor, rest = version.split(".", 2)
    return f"{major}.{int(minor) - 1}.{rest}"


def horovod_without_mpi(packages: Path) -> None:
    """Make Horovod's library one that says that it was built without MPI."""
    library = horovod_library(packages)
    code = _RETURN_FALSE[platform.machine()]
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        at = _offset_of(library, "horovod_mpi_built")
        content[at : at + len(code)] = code


def horovod_for_another_torch(packages: Path) -> None:
    """Make Horovod's library one that needs a function that the torch there has not."""
    library = horovod_library(packages)
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        found = re.search(rb"_ZN3c10[0-9A-Za-z_]{8,}\0", content)
        if found is None:
            raise RuntimeError(f"{library} needs nothing of torch")
        content[found.end() - 2] = ord("?")
    metadata = packages / "horovod/metadata.json"
    metadata.write_text(re.sub(r"\d+\.\d+\.\d+", "2.1.0", metadata.read_text()))


def horovod_library(packages: Path) -> Path:
    (library,) = (packages / "horovod/torch").glob("mpi_lib_v2*.so")
    return library


def _offset_of(library: Path, function: str) -> int:
    """Return where in the file a function's code is, by binutils."""
    symbols = _output("nm", "-D", "--defined-only", str(library))
    (address,) = [int(line.split()[0], 16) for line in symbols if line.endswith(f" {function}")]
    for line in _output("readelf", "-lW", str(library)):
        fields = line.split()
        if fields[:1] == ["LOAD"]:
            offset, start, size = (int(fields[index], 16) for index in (1, 2, 4))
            if start <= address < start + size:
                return address - start + offset
    raise RuntimeError(f"{function} lies in no segment of {library}")


def _output(*argv: str) -> list[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


@contextmanager
def another_munge_key(host: Host) -> Iterator[None]:
    """Start a host's munged anew with a key that no other host has."""
    key = host.path("/run/munge/key")
    before = key.read_bytes()
    _restart_munged(host, b"k" * 128)
    try:
        yield
    finally:
        _restart_munged(host, before)


def _restart_munged(host: Host, key: bytes) -> None:
    _end(host, "munged")
    host.path("/run/munge/key").write_bytes(key)
    start_munged(host)


@contextmanager
def little_locked_memory_in_jobs(slurm: Slurm, host: Host) -> Iterator[None]:
    """Start a node's slurmd below a limit that a login there does not have."""
    _end(host, "slurmd")
    start_slurmd(host, under=("prlimit", "--memlock=65536:65536"))
    slurm.wait_until_up()
    try:
        yield
    finally:
        _end(host, "slurmd")
        start_slurmd(host)
        slurm.wait_until_up()


def _end(host: Host, daemon: str) -> None:
    pid_file = host.path(f"/run/slurm/{daemon}.pid")
    host.exec(["kill", pid_file.read_text().strip()], cwd="/")
    wait_for(lambda: not host.processes(daemon), UP_SECONDS)
