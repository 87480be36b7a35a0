"""``init``: hosts, their keys, their Python; then ``distconsole.toml``, and a check of it.

Before any agent is there, a node's ``sh`` looks where environments lie and has each interpreter run the program of
the checks (``inspect_python``). What comes back is bounded, and cleaned for a terminal.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from distconsole.checks.facts.node import PythonFacts, TorchFacts, convert
from distconsole.config.hostfile import NamedHost, host_text
from distconsole.config.hosts import find_hosts, hosts_in, resolve_cluster
from distconsole.config.load import load_config, project_file, trust_as_it_is
from distconsole.config.paths import PROJECT_FILE, expand_home, replace_file
from distconsole.config.ssh_names import ssh_config_file
from distconsole.config.writing import bare_key
from distconsole.errors import (
    AgentError,
    ConfigError,
    UnknownHostKeyError,
    UnreachableError,
    UsageError,
)
from distconsole.grammar.secrets import mask_text
from distconsole.model.cluster import Cluster, Host, path_word
from distconsole.model.events import CheckEnded, Event, HostStatus, Narration, TextMade, warn
from distconsole.model.names import HostName, join_some
from distconsole.model.outcome import failed, succeeded
from distconsole.model.requests import Check, Init, Where
from distconsole.operations import check
from distconsole.operations.control import Control
from distconsole.operations.sessions import narrate
from distconsole.rpc.fanout import fan_out
from distconsole.rpc.login_shell import open_shell
from distconsole.rpc.pack import python_script
from distconsole.session import CONNECT_SECONDS, open_session
from distconsole.ssh.choosing import ChosenTransport
from distconsole.ssh.known_hosts import add_line
from distconsole.ssh.plain import plain_text
from distconsole.ssh.transport import Transport

IN_A_SCRIPT = "in a script: distconsole init --hosts gpu1,gpu2 --yes"
AGAIN = "distconsole init begins anew"
SHOWN = 9

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


Found = dict[HostName, Looked]


def init(request: Init, control: Control) -> Iterator[Event]:
    """Ask for missing answers, show the file, write it, and check its hosts.

    Until the file was shown and is wanted, nothing is written but keys that the person trusts.

    Raises UsageError if nobody is there to ask, or the person does not want it; UnreachableError if a
    host cannot be used, and nobody leaves it out.
    """
    path = Path.cwd().resolve() / PROJECT_FILE
    if not request.yes and control.ask is None:
        raise UsageError(
            "init asks questions, and can do so only in a shell on a terminal", IN_A_SCRIPT
        )
    if request.yes and not request.where.names_hosts:
        raise UsageError("init --yes does not guess hosts", IN_A_SCRIPT)
    if path.exists() and control.confirm is None:
        raise UsageError(f"{path} is there already", "move it away, or answer init in a terminal")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path.parent} cannot be written", "go to the folder of your project")
    where = request.where
    if not where.names_hosts:
        where = yield from _ask_hosts(where, control)
    cluster = resolve_cluster(where, load_config(), os.environ)
    found = yield from _look_at(cluster, control)
    lost = [host.name for host in cluster.hosts if host.name not in found]
    if lost and (not found or not _agrees(request, control, f"Go on without {join_some(lost)}?")):
        raise UnreachableError(f"{join_some(lost)} cannot be used; nothing was written", AGAIN)
    yield from leave_out_twins(request, found, control)
    python = yield from ask_python(request, cluster, found, control)
    yield from _show_and_write(path, file_text(request, cluster, found, python), request, control)
    healthy = False
    for event in check.check(Check(where=Where(cluster=request.cluster)), open_session):
        healthy = event.report.ok if isinstance(event, CheckEnded) else healthy
        yield event
    after = "run --sync train.py" if healthy else "check, once what is said above is mended"
    yield from narrate([f"next: distconsole {after}", "      distconsole  opens the console"])


def _ask_hosts(given: Where, control: Control) -> Generator[Event, None, Where]:
    assert control.ask is not None
    file = ssh_config_file(given.ssh_config, load_config().ssh_config, os.environ)
    candidates = [each for each in find_candidates(file) if each[0]]
    for number, (hosts, place) in enumerate(candidates, 1):
        yield Narration(text=f"  {number}  {join_some(each.name for each in hosts)}  ({place})")
    usual = "Which hosts? A number, or names" if candidates else "Which hosts? Names"
    said = control.ask(f"{usual} such as gpu[01-04],me@10.0.0.7{' [1]:' if candidates else ':'}")
    if not (said or candidates):
        raise UsageError(
            "no host was named", "this machine alone needs no file: distconsole check"
        )
    chosen = _chosen(said, len(candidates))
    if chosen is not None:
        said = ",".join(map(host_text, candidates[chosen][0]))
    return Where(hosts=said).over(given)


def _look_at(cluster: Cluster, control: Control) -> Generator[Event, None, Found]:
    """Reach the hosts, have unknown keys confirmed, and return what those have that let us in."""
    found, added, waiting = Found(), set[str](), cluster.hosts
    what = waiting[0].python or "Python"
    yield Narration(text=f"looking for {what} on {join_some(host.name for host in waiting)}")
    while waiting:
        transport = ChosenTransport(cluster.ssh_config)
        try:
            outcomes = fan_out(waiting, partial(look, transport), seconds=CONNECT_SECONDS)
        finally:
            transport.close()
        found |= {each.host: each.value for each in succeeded(outcomes)}
        new = {
            each.host: each.error
            for each in failed(outcomes)
            if isinstance(each.error, UnknownHostKeyError) and each.error.line not in {*added, ""}
        }
        trusted = bool(new) and (yield from _ask_trust(new, control))
        for error in {each.line: each for each in new.values()}.values() if trusted else ():
            add_line(error.file, error.line)
            added.add(error.line)
        waiting = tuple(host for host in waiting if trusted and host.name in new)
        for name, other in ((each.host, each.error) for each in failed(outcomes)):
            if not (trusted and name in new):
                yield HostStatus(host=name, reachable=False, detail=other.message, hint=other.hint)
    return found


def leave_out_twins(request: Init, found: Found, control: Control) -> Iterator[Event]:
    """Tell of names that are one machine, and leave out all but the first if the person agrees."""
    names: dict[str, list[HostName]] = {}
    for name, looked in found.items():
        names.setdefault(looked.machine or name, []).append(name)
    for first, *others in names.values():
        if not others:
            continue
        words = f"{join_some([first, *others])} are names of one machine"
        if _agrees(request, control, f"{words}. Keep {first} alone?"):
            for name in others:
                del found[name]
        else:
            yield warn(f"{words}: ranks of both would share its processors and GPUs")


def _ask_trust(
    keys: Mapping[HostName, UnknownHostKeyError], control: Control
) -> Generator[Event, None, bool]:
    """Show keys that no known_hosts has, and return whether the person trusts them; False without a person."""
    if control.confirm is None:
        return False
    yield Narration(text="These host keys are new. Compare them with those that the hosts show:")
    hosts: dict[str, list[HostName]] = {}
    for name, error in keys.items():
        hosts.setdefault(error.shown, []).append(name)
    yield from narrate([f"  {shown}  ({join_some(names)})" for shown, names in hosts.items()])
    yield Narration(text="  (there: cat /etc/ssh/ssh_host_*.pub | ssh-keygen -lf -)")
    files = ", ".join(dict.fromkeys(_short(each.file) for each in keys.values()))
    return control.confirm(f"Trust them, and add them to {files}?")


def ask_python(
    request: Init, cluster: Cluster, found: Found, control: Control
) -> Generator[Event, None, str]:
    """Show the interpreters that there are, and return the path of the one that the person chose."""
    ranked = rank_pythons(found)[:SHOWN]
    if not ranked:
        raise UsageError(
            f"no Python 3.9 or newer was found on {join_some(found)}",
            "name one with --python PATH, or activate an environment with --setup CMD",
        )
    gpus = join_some(f"{looked.gpus} on {name}" for name, looked in found.items())
    yield Narration(text=f"GPUs: {gpus}")
    for number, (path, hosts) in enumerate(ranked, 1):
        about = " / ".join(dict.fromkeys(found[host].pythons[path].text for host in hosts))
        where = "" if len(hosts) == len(found) else f"  on {join_some(hosts)}"
        yield Narration(text=f"  {number}  {path}  ({about}){where}")
    if not any(found[host].pythons[path].torch for path, hosts in ranked for host in hosts):
        yield warn("none of these has torch: pip install it into one of them, or name another")
    if request.yes or control.ask is None:
        return ranked[0][0]
    said = control.ask("Which Python starts the ranks? A number, or a path [1]:")
    chosen = _chosen(said, len(ranked))
    if chosen is not None:
        return ranked[chosen][0]
    hosts_left = [replace(host, python=said) for host in cluster.hosts if host.name in found]
    named = yield from _look_at(replace(cluster, hosts=tuple(hosts_left)), control)
    having = {name: looked for name, looked in named.items() if looked.pythons}
    if not having:
        yield warn(f"{said} is no Python 3.9 or newer there")
        return (yield from ask_python(request, cluster, found, control))
    found |= having
    return next(path for looked in having.values() for path in looked.pythons)


def file_text(request: Init, cluster: Cluster, found: Found, python: str) -> str:
    """Return the file: TOML, short, and each key with its purpose."""
    there = [each.pythons[python] for each in found.values() if python in each.pythons]
    usual = len(there) == len(found) and all(each.is_default for each in there)
    ssh_config = request.where.ssh_config
    settings = (
        ("ssh_config", ssh_config and str(expand_home(ssh_config).absolute()), "not ~/.ssh"),
        ("setup", request.where.setup, "the node's shell runs it before Python"),
        ("# python" if usual else "python", python, " / ".join({each.text: 0 for each in there})),
    )
    hosts = [
        host_text(NamedHost(host.name, host.user, host.slots, host.port))
        for host in cluster.hosts
        if host.name in found
    ]
    keys = [_key(name, value, comment) for name, value, comment in settings if value]
    off = "" if all(each.gpus for each in found.values()) else "# "
    lines = [
        "# What distconsole knows here; a flag of the command line wins over its key.",
        _key("cluster", request.cluster, "these hosts, where no flag names any"),
        "",
        f"[clusters.{bare_key(request.cluster)}]",
        _key("hosts", hosts, 'also "gpu[01-08]"; "gpu1:4" for four ranks'),
        *keys,
        "",
        "[run]",
        f'{off}nproc = "gpu"  # a rank for each GPU; or a number',
        "# sync = true  # bring this folder's code to the hosts before each run",
    ]
    return "\n".join(lines)


def _key(name: str, value: object, comment: str) -> str:
    return f"{name} = {json.dumps(value, ensure_ascii=False)}  # {comment}"


def _show_and_write(path: Path, text: str, request: Init, control: Control) -> Iterator[Event]:
    yield Narration(text=f"{_short(path)}:")
    yield TextMade(text=text)
    other = project_file(path.parent)
    if other not in (None, path):
        yield Narration(text=f"in this folder it goes before {_short(other)}")
    if path.exists():
        wanted = control.confirm is not None and control.confirm(f"Replace {_short(path)}?")
    else:
        wanted = request.yes or _agrees(request, control, "Write it?")
    if not wanted:
        raise UsageError("nothing was written", AGAIN)
    write(path, text)
    yield Narration(text=f"written: {_short(path)}")


def write(path: Path, text: str) -> None:
    """Write the file at once and trusted, as the person has seen it; raises ConfigError if it would not be read."""
    try:
        replace_file(path, f"{text}\n".encode(), 0o644, lambda aside: trust_as_it_is(aside, path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def _agrees(request: Init, control: Control, question: str) -> bool:
    """Ask a question that Enter agrees to; False with ``--yes``, without asking."""
    if request.yes or control.ask is None:
        return False
    while (said := control.ask(f"{question} [Y/n]").lower()) not in ("", "y", "yes", "n", "no"):
        pass
    return said not in ("n", "no")


def _chosen(said: str, count: int) -> int | None:
    """Return which of ``count`` a number means, from 0, the first one for nothing; None for a name."""
    number = int(said) if said.isdecimal() else 0 if said else 1
    return number - 1 if 0 < number <= count else None


def _short(path: object) -> str:
    return str(path).replace(str(Path.home()), "~")


SINFO = ("sinfo", "--noheader", "--responding", "--format=%N")
SINFO_SECONDS = 5.0


def find_candidates(ssh_config: Path | None) -> Iterator[tuple[list[NamedHost], str]]:
    """Yield hosts and their source, likeliest first; those of Slurm's sinfo come last."""
    yield from find_hosts(ssh_config, os.environ)
    with suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run(
            SINFO, stdin=subprocess.DEVNULL, capture_output=True, timeout=SINFO_SECONDS, check=True
        )
        yield hosts_in(",".join(asked.stdout.decode("utf-8", "replace").split())), "Slurm: sinfo"


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
