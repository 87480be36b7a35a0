"""What is not as it should be on a host from before a run, and who speaks to its ports. It judges nothing."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from campaign.cases import Case, FaultError
from fakes.wall_clock import WallClock
from suite.remains import AGENT
from testbed import Host, Testbed
from testbed.injecting import variables

CLOCK, CLOCK_LIBRARY = "/run/clock", "/run/clock.so"
HOUR = {"clock_forward": 3600, "clock_back": -3600}
SHIM, LOGIN = "pyz shim", "sshd: "
LISTENS = re.compile(r":(\d+)\s.*?pid=(\d+)")
TALK = """
import random, select, socket, sys, time
seed, until, address, *ports = sys.argv[1:]
chance, until, held = random.Random(int(seed)), time.monotonic() + float(until), []
WORDS = [
    b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n", b"\\x16\\x03\\x01\\x02\\x00\\x01\\x00\\x01\\xfc\\x03\\x03",
    b"\\xff\\xff\\xff\\xff" * 4, b"\\x00" * 4096, b'{"node": 0, "secret": "", "rank": 1000000}\\n', b"",
]
while time.monotonic() < until:
    for port in map(int, ports):
        try:
            peer = socket.create_connection((address, port), 2)
        except OSError:
            continue
        try:
            peer.sendall(chance.choice([*WORDS, chance.randbytes(chance.randrange(1, 65536))]))
        except OSError:
            pass
        held.append(peer)
        if chance.random() < 0.5 or len(held) > 100:
            held.pop(chance.randrange(len(held))).close()
    time.sleep(0.05)
"""
"""Says to ports what nobody there asked for, and holds some of the connections."""


@contextmanager
def prepared(case: Case, bed: Testbed) -> Iterator[Callable[[], object]]:
    """Let the case's host be as its fault needs it, until the end of the block; yields what then makes the fault."""
    host = bed.hosts[case.host]
    match case.fault:
        case "clock_forward" | "clock_back":
            clock = WallClock(host.path(CLOCK), CLOCK)
            shutil.copy(clock.variables["LD_PRELOAD"], host.path(CLOCK_LIBRARY))
            with variables(host, **{**clock.variables, "LD_PRELOAD": CLOCK_LIBRARY}):
                host.signal(signal.SIGKILL, AGENT)  # the next one has that clock
                yield lambda: clock.set(HOUR[case.fault])
            host.signal(signal.SIGKILL, AGENT)
        case "one_session":
            with one_session(host):
                yield lambda: host.signal(signal.SIGKILL, LOGIN)
        case "floods":
            yield lambda: None
            host.exec(
                "rm -rf /tmp/distconsole-*/runs/*/logs", cwd="/"
            )  # it has room for few of them
        case _:
            yield lambda: None


@contextmanager
def one_session(host: Host) -> Iterator[None]:
    """Let a connection have one session only, as some clusters' sshd does."""
    file = host.files / "sshd_config"
    before = file.read_text()
    file.write_text(f"MaxSessions 1\n{before}")
    host.restart_sshd()
    try:
        yield
    finally:
        file.write_text(before)
        host.restart_sshd()


@contextmanager
def strangers(case: Case, host: Host, other: Host) -> Iterator[None]:
    """Let somebody on another host speak to every port of ours, and to none of torch or of an engine."""
    if not (ports := ours(host)):
        raise FaultError("nothing of ours listens there")
    words = ["python3", "-c", TALK, str(case.seed), str(case.seconds), host.address, *ports]
    talker = other.popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            talker.kill()
        talker.wait()


def ours(host: Host) -> list[str]:
    """Return the ports at which agents and shims listen on a host."""
    argv = {each.host_pid: " ".join(each.argv) for each in host.processes()}
    listed = host.exec(["ss", "-Hltnp"], cwd="/").stdout
    return [port for port, pid in LISTENS.findall(listed) if is_ours(argv.get(int(pid), ""))]


def is_ours(argv: str) -> bool:
    """Whether a process is a shim or an agent; srun has a shim's words among its own."""
    return (SHIM in argv or AGENT in argv) and "srun" not in argv
