"""``init``: hosts, their keys, their Python; then ``distconsole.toml``, and a check of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from distconsole.config.hostfile import NamedHost, host_text
from distconsole.config.hosts import find_hosts, hosts_in, resolve_cluster
from distconsole.config.load import load_config, project_file, trust_as_it_is
from distconsole.config.paths import PROJECT_FILE, expand_home, replace_file
from distconsole.config.ssh_names import ssh_config_file
from distconsole.config.writing import bare_key
from distconsole.errors import ConfigError, UnknownHostKeyError, UnreachableError, UsageError
from distconsole.model.cluster import Cluster
from distconsole.model.events import CheckEnded, Event, HostStatus, Narration, TextMade, warn
from distconsole.model.names import HostName, join_some
from distconsole.model.outcome import failed, succeeded
from distconsole.model.requests import Check, Init, Where
from distconsole.operations import check
from distconsole.operations.control import Control
from distconsole.operations.init.pythons import Looked, look, rank_pythons
from distconsole.operations.sessions import narrate
from distconsole.rpc.fanout import fan_out
from distconsole.session import CONNECT_SECONDS, open_session
from distconsole.ssh.choosing import ChosenTransport
from distconsole.ssh.known_hosts import add_line

IN_A_SCRIPT = "in a script: distconsole init --hosts gpu1,gpu2 --yes"
AGAIN = "distconsole init begins anew"
SHOWN = 9

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
