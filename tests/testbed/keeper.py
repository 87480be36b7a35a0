"""The process that a bed's hosts live and die with; it builds no network and knows no fault.

It runs in the network namespace that is the bed's switch. Its hosts are killed by the kernel when
it dies, and it ends itself, and everything with it, when its owner closes the pipe or dies. Links
and mounts need no care: they are gone with the namespaces.

One JSON object a line: ``{"start": NAME, "argv": [...]}`` answers ``{"pid": PID}`` of the host's
first process; ``{"stop": [NAME, ...]}`` answers when no process of those hosts is left.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
GONE_SECONDS = 10.0

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_keeper() -> None:
    """Ask the kernel to kill this process when the keeper's thread ends (prctl(2))."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Keeper:
    """Starts and stops the programs of one bed.

    Args:
        folder: The bed's folder, removed at the end.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def answer(self, line: bytes) -> dict[str, object]:
        request = json.loads(line)
        if "start" in request:
            return {"pid": self.start(request["start"], request["argv"])}
        self.stop(request.get("stop", []))
        return {}

    def start(self, name: str, argv: list[str]) -> int:
        with (self._folder / f"{name}.log").open("ab") as log:
            host = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_keeper,
            )
        self._running[name] = host
        wait_for(lambda: bool(children_of(host.pid)) or host.poll() is not None)
        return (children_of(host.pid) or [0])[0]

    def stop(self, names: list[str]) -> None:
        """Kill these hosts; the first process's end waits for every other of its namespace."""
        stopping = {name: self._running.pop(name) for name in names if name in self._running}
        for host in stopping.values():
            for pid in children_of(host.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for host in stopping.values():
            try:
                host.wait(GONE_SECONDS)
            except subprocess.TimeoutExpired:
                host.kill()
                host.wait()

    def end(self, uplink: str) -> None:
        if uplink:
            subprocess.run(["ip", "link", "del", "uplink"], stderr=subprocess.DEVNULL, check=False)
        self.stop(list(self._running))
        shutil.rmtree(self._folder, ignore_errors=True)


def children_of(pid: int) -> list[int]:
    """Return the direct children of ``pid``; none when it is gone."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def wait_for(condition: Callable[[], bool], seconds: float = GONE_SECONDS) -> bool:
    """Poll until ``condition`` holds or ``seconds`` have passed; return whether it held.

    The longer it takes, the longer are the pauses: what is asked may cost more than what is waited for.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > seconds:
            return False
        time.sleep(min(0.003 + waited / 10, 0.1))
    return True


def serve(keeper: Keeper, owner_pid: int) -> None:
    """Answer requests until the owner closes its pipe or is gone."""
    owner = os.pidfd_open(owner_pid)
    if os.getppid() != owner_pid:
        return
    pending = b""
    while True:
        ready, _, _ = select.select([0, owner], [], [])
        if owner in ready:
            return
        received = os.read(0, 65536)
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            reply = json.dumps(keeper.answer(line)).encode() + b"\n"
            os.write(1, reply)


def main(owner_pid: str, folder: str, uplink: str) -> None:
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    keeper = Keeper(Path(folder))
    try:
        serve(keeper, int(owner_pid))
    finally:
        keeper.end(uplink)


if __name__ == "__main__":
    main(*sys.argv[1:])
