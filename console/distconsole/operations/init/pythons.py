"""Which interpreters a node has, and what is installed for each, before any agent was there.

The node's ``sh`` looks where environments lie and has each interpreter run the program of the checks
(``inspect_python``). What comes back is bounded, and cleaned for a terminal.
"""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from distconsole.checks.facts.node import PythonFacts, TorchFacts, convert
from distconsole.errors import AgentError
from distconsole.grammar.secrets import mask_text
from distconsole.model.cluster import Host, path_word
from distconsole.model.names import HostName
from distconsole.rpc.login_shell import open_shell
from distconsole.rpc.pack import python_script
from distconsole.ssh.plain import plain_text
from distconsole.ssh.transport import Transport

LOOK_SECONDS = 40.0
EACH_SECONDS = 10
MAX_BYTES = 4 * 1024 * 1024
MARK = "distconsole-init"

FINDER = """
cd /
look() {
    [ -n "$2" ] && [ -x "$2" ] && [ $n -lt 24 ] || return 0
    case $seen in *"|$2|"*) return 0 ;; esac
    seen="$seen|$2|" n=$((n + 1))
    printf '\\n%s\\t%s\\t%s\\n' "$mark" "$1" "$2"
    "$2" -c "$program" </dev/null 2>/dev/null
}
n=0 seen=
printf '\\n%s\\tgpus\\t%s\\n' "$mark" $(ls /proc/driver/nvidia/gpus 2>/dev/null | wc -l)
boot=$(cat /proc/sys/kernel/random/boot_id) net=$(readlink /proc/self/ns/net)
printf '%s\\tmachine\\t%s\\n' "$mark" "$(uname -n) $boot $net ${SSH_CONNECTION##* }"
"""
"""``look WORD PATH`` prints the packages of the interpreter at PATH."""

PLACES = """
look default "$(command -v python3)"
look other "$(command -v python)"
for p in $(sed 's|$|/bin/python|' ~/.conda/environments.txt 2>/dev/null) \\
    ~/.venv/bin/python ~/*/bin/python ~/*/.venv/bin/python ~/*/venv/bin/python ~/*/envs/*/bin/python \\
    ~/.conda/envs/*/bin/python ~/.virtualenvs/*/bin/python ~/.pyenv/versions/*/bin/python \\
    /opt/*/bin/python /opt/*/envs/*/bin/python /usr/local/bin/python3 /usr/bin/python3.[0-9]*[0-9]
do look other "$p"; done
"""


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter of a node.

    Attributes:
        is_default: Whether the node's shell calls it ``python3``.
        torch: Its version and build; empty without one.
        has_gpus: Whether that torch is built for GPUs.
    """

    version: str
    torch: str = ""
    has_gpus: bool = False
    is_default: bool = False

    @property
    def text(self) -> str:
        return f"Python {self.version}, {f'torch {self.torch}' if self.torch else 'no torch'}"


@dataclass(frozen=True, slots=True)
class Looked:
    """What a node has; its interpreters by path, in the order in which they were found.

    Attributes:
        machine: The same for two names of one machine; containers and SSH servers of one machine differ.
    """

    gpus: int
    pythons: dict[str, Python]
    machine: str = ""


def look(transport: Transport, host: Host) -> Looked:
    """Return what ``host`` has, or as much as it tells in time; raises NodeError."""
    connection = transport.connect(host)
    try:
        channel, _ = open_shell(connection, host, secrets.token_hex(8))
        channel.send(f"exec sh -s\n{script_for(host)}".encode(), LOOK_SECONDS)
        out, ends = bytearray(), time.monotonic() + LOOK_SECONDS
        while len(out) < MAX_BYTES:
            try:
                data = channel.recv(65536, max(0.01, ends - time.monotonic()))
            except TimeoutError:
                break
            if not data:
                break
            out += data
        said = channel.stderr_tail()
    finally:
        connection.close()
    looked = read_answer(out.decode("utf-8", "replace"))
    if looked is None:
        why = f": {mask_text(said.splitlines()[-1])}" if said else ""
        hint = (
            f"it was: {mask_text(host.setup)}"
            if host.setup
            else "does ssh to it, with a command, answer?"
        )
        raise AgentError(f"{host.name}: its shell did not look for Python{why}", hint)
    return looked


def script_for(host: Host) -> str:
    """Return what ``sh`` reads there: the setup command, then a look at the Python that is named, or at all places."""
    program = f"{python_script()}\nmain({EACH_SECONDS}, load=False, controllers=False)\n"
    setup = f"{{ {host.setup}\n}} </dev/null >&2 || exit 1\n" if host.setup else ""
    given = f'look other "$(command -v {path_word(host.python)})"\n' if host.python else PLACES
    names = f"mark={MARK} program={shlex.quote(program)}\n"
    return f"{setup}{names}{FINDER}{given}exit 0\n"


def read_answer(text: str) -> Looked | None:
    """Return a node's answer; None without a line of ours.

    Lines of others, interpreters that are too old and facts that are none are left out; of several
    names of one interpreter the first one stays.
    """
    gpus, word, path, prefixes, pythons = None, "", "", set[tuple[str, str]](), dict[str, Python]()
    machine = ""
    for line in text.splitlines():
        if line.startswith(f"{MARK}\t"):
            _, word, path = f"{line}\t".split("\t")[:3]
            if word == "gpus":
                gpus = int(path) if path.isdecimal() else 0
            elif word == "machine":
                machine = path
        elif line.startswith('["facts"') and path.isprintable():
            with suppress(ValueError, TypeError, LookupError):
                prefix, found = _read_facts(json.loads(line)[1], is_default=word == "default")
                if (prefix, found.version) not in prefixes:
                    prefixes.add((prefix, found.version))
                    pythons[path] = found
    return None if gpus is None else Looked(gpus, pythons, machine)


def _read_facts(facts: dict[str, object], *, is_default: bool) -> tuple[str, Python]:
    """Return an interpreter's prefix and description; raises ValueError if it is too old or the answer is malformed."""
    python, torch = convert(PythonFacts, facts["python"]), convert(TorchFacts, facts["torch"])
    if [int(part) for part in python.version.split(".")[:2]] < [3, 9]:
        raise ValueError(python.version)
    version = torch.version or "(broken)"
    built = torch.cuda or torch.hip or ""
    named = f"{version} for {'CUDA' if torch.cuda else 'ROCm'} {built}" if built else version
    return python.prefix, Python(
        plain_text(python.version[:40]),
        plain_text(named[:80]) if torch.present else "",
        has_gpus=bool(built),
        is_default=is_default,
    )


def rank_pythons(found: Mapping[HostName, Looked]) -> list[tuple[str, list[HostName]]]:
    """Return interpreters by path with the hosts that have them, the one that ranks most likely need first."""
    hosts: dict[str, list[HostName]] = {}
    points: Counter[str] = Counter()
    for name, looked in found.items():
        for path, python in looked.pythons.items():
            hosts.setdefault(path, []).append(name)
            fits = python.has_gpus == bool(looked.gpus)
            points[path] += 100 + fits if python.torch else python.is_default
    return sorted(hosts.items(), key=lambda item: -points[item[0]])
