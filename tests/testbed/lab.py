"""The laboratory by hand: ``python -m testbed lab``; it is no test.

Without a fault it lists them. With some it starts hosts, breaks them, prints the command to type and
what that must find, and keeps all of it until Ctrl-C; then the hosts are mended and gone.
"""

import argparse
import shlex
import signal
import sys
import threading
from contextlib import ExitStack, suppress

from testbed.bed import Testbed
from testbed.faults import BY_NAME, FAULTS, Fault, Laboratory
from testbed.slurm import SLURM_ENVIRONMENT, laboratory_slurm

LEVELS = ("quick", "standard", "full")
Wanted = tuple[Fault, int]
"""A fault, and the number of the host that has it."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("--hosts", type=int, default=3, help="at least three to tell a culprit")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME[:HOST]",
        help="its name, and the number of the host to break, from 1; may be given again",
    )


def lab(asked: argparse.Namespace) -> None:
    """List the faults, or put some into hosts until Ctrl-C."""
    if not asked.fault:
        print(listed())
        return
    wanted = [chosen(word, asked.hosts) for word in asked.fault]
    with_slurm = any(fault.needs == "slurm" for fault, _ in wanted)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        environment = SLURM_ENVIRONMENT if with_slurm else {}
        bed = stack.enter_context(Testbed(asked.hosts, environment=environment))
        slurm = stack.enter_context(laboratory_slurm(bed)) if with_slurm else None
        laboratory = Laboratory(bed, slurm)
        for fault, culprit in wanted:
            stack.enter_context(fault.inject(laboratory, culprit))
        variables: dict[str, str] = {}
        if slurm is not None and any(fault.in_allocation for fault, _ in wanted):
            variables = stack.enter_context(slurm.allocation())
        print(told(laboratory, wanted, variables), flush=True)
        print("Ctrl-C ends it", file=sys.stderr, flush=True)
        threading.Event().wait()


def listed() -> str:
    """Return all faults, a line each, by the words that ``--fault`` takes."""
    width = max(map(len, BY_NAME))
    return "\n".join(f"{fault.name:{width}}  {fault.says}" for fault in FAULTS)


def chosen(word: str, hosts: int) -> Wanted:
    """Return what ``NAME`` or ``NAME:HOST`` means.

    Raises:
        SystemExit: with one line, if there is no such fault or host.
    """
    name, _, number = word.partition(":")
    fault = BY_NAME.get(name)
    if fault is None:
        raise SystemExit(f"no fault '{name}'; there are: {', '.join(BY_NAME)}")
    culprit = fault.culprit if not number else int(number) if number.isdigit() else 0
    if not 1 <= culprit <= hosts:
        raise SystemExit(f"{word}: the hosts are 1 to {hosts}")
    return fault, culprit


def told(laboratory: Laboratory, wanted: list[Wanted], variables: dict[str, str]) -> str:
    """Return what was broken, what to type, and what must be found."""
    bed = laboratory.bed
    lines = [f"{fault.name}: {fault.says}" for fault, _ in wanted]
    command = ["distconsole", "check", "--ssh-config", str(bed.ssh_config), "--hosts", bed.names]
    first, _ = wanted[0]
    level = max((fault.level for fault, _ in wanted), key=LEVELS.index)
    command += first.words() if len(wanted) == 1 else ["--level", level]
    prefix = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    lines += ["", "type:", "  " + " ".join([*prefix, shlex.join(command)]), "", "it must find:"]
    for fault, culprit in wanted:
        for severity, check, hosts in fault.found(laboratory, culprit):
            lines.append(f"  {severity} {check} {', '.join(hosts)}")
    return "\n".join(lines)
