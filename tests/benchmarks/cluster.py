"""Programs on the testbed's hosts as the benchmarks need them: started together, read line by line
with the time of each line. It measures nothing.

The hosts are namespaces of one machine, so all of them and this process read the same clock.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import IO, Any, Self

from suite.environment import scrubbed
from testbed import Testbed, missing

SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line of some program's output, and when it was read here."""

    time_ns: int
    text: str


class Program:
    """A program whose standard output and error are read as they come."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.began_ns = time.time_ns()
        self.lines: list[Line] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self._thread = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        self.process.stdout.close()

    def see(self, pattern: str, *, count: int = 1, seconds: float = SECONDS) -> list[Line]:
        """Wait until ``count`` lines match and return those.

        Raises:
            TimeoutError: if they do not come; its text ends with the last lines that did.
        """
        expression = re.compile(pattern)
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                found = [line for line in self.lines if expression.search(line.text)]
                if len(found) >= count:
                    return found
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    said = "\n".join(line.text for line in self.lines[-30:])
                    raise TimeoutError(f"{len(found)} of {count} lines {pattern!r}\n{said}")
                self._changed.wait(min(left, 0.5))

    def wait(self, seconds: float = SECONDS) -> int:
        """Wait for its end and its last line; return the exit code."""
        code = self.process.wait(seconds)
        self._thread.join(seconds)
        return code

    def _read(self, stream: IO[str]) -> None:
        for text in stream:
            with self._changed:
                self.lines.append(Line(time.time_ns(), text.rstrip("\n")))
                self._changed.notify_all()


def environment(folder: Path) -> dict[str, str]:
    """Return what a console starts with: nobody's configuration, and its data in ``folder``.

    Its bytecode is kept, as that of an installed program is, whatever the developer's own setting.
    """
    home = folder / "console-home"
    home.mkdir(exist_ok=True)
    return {
        **scrubbed(os.environ),
        "HOME": str(home),
        "XDG_DATA_HOME": str(folder / "data"),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
    }


@contextmanager
def bed_and_folder(hosts: int, **how: Any) -> Iterator[tuple[Testbed, Path]]:
    """Yield so many hosts, and a folder of this machine that goes with them."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Testbed(hosts, **how) as bed:
        yield bed, Path(folder)


def on_hosts(
    count: int = 0, lacks: Callable[[], str] = str, **how: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a decorator of ``measure``, which takes hosts and a folder before its options.

    Args:
        count: Of hosts; 0 means as many as the option ``hosts`` says.
        lacks: Returns why nothing can be measured on this machine.
        how: See ``Testbed``.
    """

    def decorate(measure: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(measure)
        def measured(**options: Any) -> Any:
            if reason := missing():
                sys.exit(f"not run: {reason}")
            if reason := lacks():
                return {"skipped": reason}
            with bed_and_folder(count or options["hosts"], **how) as (bed, folder):
                return measure(bed, folder, **options)

        return measured

    return decorate


def distconsole(bed: Testbed, verb: str, *words: str, hosts: str = "") -> list[str]:
    """Return the command line of a verb on the bed's hosts."""
    program = str(Path(sys.executable).with_name("distconsole"))
    where = ["--ssh-config", str(bed.ssh_config), "--hosts", hosts or bed.names]
    return [program, verb, *where, *words]


def over_ssh(bed: Testbed, host: str, *words: str) -> list[str]:
    """Return the command line that runs ``words`` on a host by OpenSSH."""
    return ["ssh", *bed.ssh_options, host, *words]


def torchrun(bed: Testbed, rank: int, port: int, nproc: int, *words: str) -> list[str]:
    """Return what a person types on the host ``rank`` to start its part of a job by torchrun."""
    return [
        *("env", "GLOO_SOCKET_IFNAME=eth0", "torchrun"),
        *(f"--nnodes={len(bed.hosts)}", f"--nproc_per_node={nproc}", f"--node_rank={rank}"),
        *(f"--master_addr={bed.hosts[0].address}", f"--master_port={port}", *words),
    ]


def warm(bed: Testbed, folder: Path) -> None:
    """Have an agent run on every host.

    Raises:
        RuntimeError: if a host cannot be reached.
    """
    finish(distconsole(bed, "top", "--once"), folder)


def finish(
    command: Sequence[str], folder: Path, codes: Sequence[int] = (0,), **variables: str
) -> tuple[str, float]:
    """Run a console to its end; return its standard output and its seconds.

    Raises:
        RuntimeError: if it ends with another code than ``codes``.
    """
    began = time.monotonic()
    done = subprocess.run(
        command,
        env={**environment(folder), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    seconds = time.monotonic() - began
    if done.returncode not in codes:
        raise RuntimeError(
            f"{command[1]} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
        )
    return done.stdout, seconds


def log_in_to_all(bed: Testbed) -> float:
    """Return the seconds of one login to each host, all at once: the floor of what reaches all hosts."""
    began = time.monotonic()
    with ExitStack() as stack:
        commands = [over_ssh(bed, host.name, "true") for host in bed.hosts]
        for program in [stack.enter_context(Program(command)) for command in commands]:
            if code := program.wait():
                raise RuntimeError(f"a login failed with {code}")
    return time.monotonic() - began
