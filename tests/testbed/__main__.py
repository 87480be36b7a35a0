"""A bed for a person: ``python -m testbed up`` with tests/ on PYTHONPATH; it is no test.

``up`` prints the path of an ssh_config and keeps the hosts running until Ctrl-C. Lines on its
standard input are faults, each a method of ``Host`` or ``Testbed`` with its arguments::

    node2 power_cut
    node1 link_down train
    node1 cap_bandwidth 8mbit
    cut_console

``lab`` starts hosts with faults of ``testbed.faults`` and says what ``check`` must find.
"""

import argparse
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from testbed.bed import Testbed
from testbed.claims import FOLDERS, PREFIX, is_alive, started, sweep
from testbed.keeper import wait_for
from testbed.lab import add_options, lab


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up_verb = verbs.add_parser("up", help="start hosts and keep them until Ctrl-C")
    up_verb.add_argument("--hosts", type=int, default=2)
    up_verb.add_argument("--prefix", default="node")
    up_verb.add_argument("--node-ssh", action="store_true", help="let hosts ssh to one another")
    up_verb.add_argument("--python", default=sys.executable, help="first python3 of the sessions")
    up_verb.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    down_verb = verbs.add_parser("down", help="end beds; all of them when none is named")
    down_verb.add_argument("bed", nargs="*", help="an ssh_config's folder, or its last part")
    verbs.add_parser("list", help="list the beds that run")
    add_options(verbs.add_parser("lab", help="list faults, or start hosts that have some"))
    asked = parser.parse_args()
    match asked.verb:
        case "up":
            up(asked)
        case "down":
            down([Path(name).name for name in asked.bed])
        case "list":
            for folder in living():
                print(folder / "ssh_config")
        case "lab":
            lab(asked)
        case other:
            parser.error(f"no such verb: {other}")


def up(asked: argparse.Namespace) -> None:
    environment = dict(pair.split("=", 1) for pair in asked.env)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        suppress(KeyboardInterrupt),
        Testbed(
            asked.hosts,
            prefix=asked.prefix,
            node_ssh=asked.node_ssh,
            environment=environment,
            python=asked.python,
        ) as bed,
    ):
        print(bed.ssh_config, flush=True)
        print(f"try: ssh -F {bed.ssh_config} {bed.hosts[0].name}", file=sys.stderr, flush=True)
        take_faults(bed)


def take_faults(bed: Testbed) -> None:
    """Carry out lines from standard input until Ctrl-C, or until the bed was ended."""
    keeper, pending = os.pidfd_open(bed.keeper_pid), b""
    watched = [0, keeper]
    while keeper not in (ready := select.select(watched, [], [])[0]):
        received = os.read(0, 65536) if 0 in ready else b""
        if not received:
            watched = [keeper]
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            if words := line.decode(errors="replace").split():
                carry_out(bed, words)


def carry_out(bed: Testbed, words: list[str]) -> None:
    hosts = {host.name: host for host in bed.hosts}
    named = words[0] in hosts and len(words) > 1
    target, (name, *values) = (hosts[words[0]], words[1:]) if named else (bed, words)
    fault = None if name.startswith("_") else getattr(target, name, None)
    arguments = [int(value) if value.isdigit() else value for value in values]
    try:
        answer = fault(*arguments) if callable(fault) else "no such fault"
    except (TypeError, ValueError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        answer = error
    print(" ".join(words), "->", answer or "done", file=sys.stderr, flush=True)


def living() -> list[Path]:
    return [folder for folder in FOLDERS.glob(f"{PREFIX}*-*") if is_alive(folder)]


def is_gone(folder: Path) -> bool:
    return not folder.exists()


def down(names: list[str]) -> None:
    """Kill the keepers of these beds, and sweep what earlier ones left."""
    for folder in living():
        if not names or folder.name in names:
            *_, keeper = (folder / "owner").read_text().splitlines()
            pid, start = keeper.split()
            if started(int(pid)) == start:
                os.kill(int(pid), signal.SIGTERM)
                wait_for(partial(is_gone, folder))
    sweep()


if __name__ == "__main__":
    main()
