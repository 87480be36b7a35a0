"""Which hosts an operation is about: flags, a host file, Slurm, the configuration, or this machine."""

from __future__ import annotations

import re
import shlex
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from distconsole.config.hostfile import (
    BEHIND_SLASH,
    NamedHost,
    host_text,
    read_hostfile,
    read_list,
    read_names,
    suggest_ports,
)
from distconsole.config.paths import expand_home
from distconsole.config.ranges import RangeError, expand, split_list
from distconsole.config.schema import ClusterSettings, Config, HostSettings
from distconsole.config.spelling import suggest
from distconsole.config.ssh_names import own_ssh_config, ssh_config_file, ssh_machines, ssh_names
from distconsole.errors import ConfigError, UsageError
from distconsole.model.cluster import EMBEDDED, Cluster, Host
from distconsole.model.expectation import said_in
from distconsole.model.names import HostName, is_whole, may_be_host
from distconsole.model.requests import Where

LIST = "such as: gpu[01-08],admin@gpu9:4 (users, ranges and slots may stand there)"


BATCH_FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE", "HQ_NODE_FILE")
HET_GROUP = "SLURM_JOB_NODELIST_HET_GROUP_"
SLURM_CONFS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
_INCLUDED = re.compile(r"^[ \t]*include[ \t]+(\S+)", re.IGNORECASE | re.MULTILINE)
_NODE = re.compile(
    r"^[ \t]*NodeName=(?!DEFAULT\b)(?!.*\bState=(?:CLOUD|FUTURE)\b)(\S+)"
    r"(?:.*\b(?:NodeAddr=(\S+))|.*\b(?:NodeHostname=(\S+)))?",
    re.IGNORECASE | re.MULTILINE,
)
"""Name of nodes, and the name by which Slurm reaches them, if that is another."""
_CLUSTER = re.compile(r"^[ \t]*ClusterName=(\S+)", re.IGNORECASE | re.MULTILINE)
HERE = "localhost"
"""Alone it is this machine, to which no SSH leads."""


@dataclass(frozen=True, slots=True)
class _Found:
    hosts: list[NamedHost]
    cluster: ClusterSettings | None = None
    name: str | None = None
    local: str | None = None
    """Which of them is this machine."""
    origin: str = ""
    job_slots: Mapping[str, int | None] = field(default_factory=dict)


def resolve_cluster(where: Where, config: Config, environ: Mapping[str, str]) -> Cluster:
    """Return the hosts that ``where`` means.

    In this order: ``--hosts``, ``--hostfile``, ``--cluster``; the Slurm allocation that we stand in;
    the configuration's default cluster; this machine, without SSH. What flags say of each host
    (``--python``, ``--setup``, ``--container``, ``user@``, ``:slots``) wins over the configuration.

    Raises UsageError if the list of hosts means nothing, ConfigError if a file cannot be understood, or names
    no such cluster.
    """
    demo = where.cluster == EMBEDDED and EMBEDDED not in config.clusters and where.ssh_config
    if demo and (names := ssh_names(Path(demo))):
        return demo_cluster(Path(demo), names)
    found = _find(where, config, environ)
    ways = {name: getattr(where, name) for name in ("python", "setup", "container", "transport")}
    given = HostSettings(**ways)
    hosts = []
    for named in found.hosts:
        own = HostSettings(user=named.user, slots=named.slots, port=named.port)
        settings = given.over(own.over(config.settings(named.name, found.cluster)))
        slots, local = found.job_slots.get(named.name), named.name == found.local
        host = Host(HostName(named.name), job_slots=slots, local=local, **said_in(settings))
        hosts.append(host)
    configured = (found.cluster.ssh_config if found.cluster else None) or config.ssh_config
    file = ssh_config_file(where.ssh_config, configured, environ)
    if where.ssh_config and file is not None and not file.exists():
        raise ConfigError(
            f"--ssh-config {file}: there is no such file", "leave it out for ssh's own"
        )
    return Cluster(tuple(hosts), None if file is None else str(file), found.name, found.origin)


def demo_cluster(ssh_config: Path, names: Iterable[str]) -> Cluster:
    """Return the nodes of a demo on this machine, whose folders lie beside the file that reaches them."""
    hosts = (
        Host(
            HostName(name),
            python=sys.executable,
            node_dir=str(ssh_config.parent / name / "node"),
            address="127.0.0.1",
        )
        for name in names
    )
    return Cluster(tuple(hosts), ssh_config=str(ssh_config), name=EMBEDDED)


def _find(where: Where, config: Config, environ: Mapping[str, str]) -> _Found:
    if where.hosts is not None:
        local = HERE if where.hosts == HERE else None
        return _Found(_from_list(where.hosts), local=local)
    if where.hostfile is not None:
        return _Found(read_hostfile(expand_home(where.hostfile)))
    if where.cluster is not None:
        return _from_config(where.cluster, config, f"--cluster {where.cluster}")
    batch = {} if (hosts := _from_slurm(environ)) else _from_batch(environ)
    if hosts := hosts or [NamedHost(name) for name in batch]:
        here = socket.gethostname().split(".")[0]
        local = next((host.name for host in hosts if host.name.split(".")[0] == here), None)
        names = ("SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "LSB_MCPU_HOSTS", *BATCH_FILES)
        origin = next((name for name in names if environ.get(name)), "")
        return _Found(hosts, local=local, origin=origin, job_slots=batch)
    if config.cluster is not None:
        return _from_config(config.cluster, config, f"cluster = '{config.cluster}'")
    here = socket.gethostname()
    return _Found([NamedHost(here)], local=here)


def find_hosts(
    ssh_config: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[list[NamedHost], str]]:
    """Yield hosts and their source, likeliest first: the Slurm allocation, a host file here, ssh_config."""
    with suppress(ConfigError):
        listed = [replace(host, slots=None) for host in _from_slurm(environ)]
        yield listed, "the Slurm allocation"
    for name in ("hostfile", "hosts", "machinefile"):
        if Path(name).is_file():  # a pipe would never end
            with suppress(ConfigError):
                yield read_hostfile(Path(name)), f"./{name}"
    machines, jumps = ssh_machines(ssh_config or own_ssh_config())
    left_out = "are left out: they only lead" if jumps[1:] else "is left out: it only leads"
    skipped = f"; {', '.join(jumps)} {left_out} to others" if jumps else ""
    yield (
        [host for name in machines for host in hosts_in(name)],
        f"{ssh_config or '~/.ssh/config'}{skipped}",
    )


def hosts_in(text: str) -> list[NamedHost]:
    with suppress(RangeError):
        return read_list(text)
    return []


@dataclass(frozen=True, slots=True)
class HostOffer:
    """Hosts that could be meant.

    Attributes:
        line: What chooses them behind the prompt's ``hosts``.
        place: Where they were found.
        is_job: Whether they were written down to work together, unlike those of an ssh_config.
    """

    line: str
    names: tuple[str, ...]
    place: str
    is_job: bool = True


def offered_hosts(
    where: Where, config: Config, environ: Mapping[str, str]
) -> tuple[HostOffer, ...]:
    """Return the offered hosts, this machine last; empty if hosts are named, or no file has any."""
    if where.names_hosts or config.cluster or _from_slurm(environ) or _from_batch(environ):
        return ()
    offers: list[HostOffer] = []
    for cluster in config.clusters:
        with suppress(ConfigError):
            listed = _from_config(cluster, config, "").hosts
            names = tuple(host.name for host in listed)
            offers += [HostOffer(f"--cluster {shlex.quote(cluster)}", names, f"cluster {cluster}")]
    file = ssh_config_file(where.ssh_config, config.ssh_config, environ)
    for hosts, place in find_hosts(file, environ):
        names, line = tuple(host.name for host in hosts), ",".join(map(host_text, hosts))
        offers += [HostOffer(line, names, place, is_job=place.startswith("./"))]
    offers += [_slurm_nodes(environ)]
    offers = [offer for offer in offers if offer.names]
    here = HostOffer(HERE, (socket.gethostname(),), "this machine")
    return (*offers, here) if offers else ()


def _slurm_nodes(environ: Mapping[str, str]) -> HostOffer:
    """Return the nodes that Slurm's own file lists, in its ranges: ``sinfo`` would have to be waited for."""
    named = environ.get("SLURM_CONF")
    for file in map(Path, (named,) if named else SLURM_CONFS):
        text = _text_of(file)
        cluster = next(iter(_CLUSTER.findall(text)), "")
        for name in _INCLUDED.findall(text):
            text += "\n" + _text_of(file.parent / name.replace("%c", cluster))
        line: list[str] = []
        known: dict[str, None] = {}
        for nodes in _NODE.findall(text.replace("\\\n", " ")):
            with suppress(RangeError):
                for part in split_list(next(filter(None, reversed(nodes)))):
                    names = [host.name for host in read_list(part)]
                    new = [name for name in dict.fromkeys(names) if name not in known]
                    line += [part] if len(new) == len(names) else new
                    known |= dict.fromkeys(new)
        if known:
            return HostOffer(",".join(line), tuple(known), str(file), is_job=False)
    return HostOffer("", (), "", is_job=False)


def _text_of(file: Path) -> str:
    with suppress(OSError):
        return file.read_text("utf-8", "replace") if file.is_file() else ""
    return ""


def _from_list(text: str) -> list[NamedHost]:
    try:
        hosts = read_list(text)
    except RangeError as error:
        raise UsageError(f"--hosts: {error}", _meant_list(text)) from None
    for twice in _repeated_names(hosts):
        raise UsageError(f"--hosts names {twice} twice", f"for more ranks on it: {twice}:N")
    if not hosts:
        raise UsageError("--hosts names no host", f"a variable that is not set? {LIST}")
    return hosts


def _meant_list(text: str) -> str:
    if "$" in text:
        return f"the shell has not replaced the variable in {text}: leave the single quotes out"
    with suppress(OSError, ValueError):
        if Path(text.lstrip("@")).is_file():
            return f"did you mean --hostfile {text.lstrip('@')}?"
    if meant := suggest_ports(text):
        return f"{BEHIND_SLASH}: {meant}"
    parts = read_names(text) or re.split(r"[\s;]+", text.removeprefix("ssh://").strip(" ;"))
    meant = ",".join(parts) if len({"@" in part for part in parts}) == 1 else text
    with suppress(RangeError):
        if meant != text and read_list(meant):
            return f"did you mean --hosts {meant}?"
    return LIST


def _from_config(name: str, config: Config, what: str) -> _Found:
    cluster = config.clusters.get(name)
    files = ", ".join(str(file) for file in config.files) or "no distconsole.toml was found"
    if cluster is None:
        known = ", ".join(sorted(config.clusters))
        known = f"known are: {known}" if known else "[clusters.NAME] with hosts = […] makes one"
        hint = suggest(name, config.clusters, known, quote="'")
        raise ConfigError(f"{what}: there is no [clusters.{name}] ({files})", hint)
    if cluster.hostfile is not None:
        return _Found(read_hostfile(cluster.hostfile), cluster, name)
    try:
        hosts = [host for text in cluster.hosts for host in read_list(text)]
    except RangeError as error:
        raise ConfigError(
            f"{files}: [clusters.{name}]: {error}", _meant_list(",".join(cluster.hosts))
        ) from None
    for twice in _repeated_names(hosts):
        raise ConfigError(
            f"{files}: [clusters.{name}] names {twice} twice", f"for more ranks: {twice}:N"
        )
    return _Found(hosts, cluster, name)


def _from_batch(environ: Mapping[str, str]) -> dict[str, int | None]:
    """Return the hosts of a job of PBS, LSF, Grid Engine or HyperQueue, with their slots, which may be processors."""
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    found = {
        name: int(count) if is_whole(count) else None
        for name, count in zip(words[::2], words[1::2], strict=False)
        if may_be_host(name) and count.strip("0")  # LSF gives none of that host
    }
    files = (Path(environ.get(name, "")) for name in BATCH_FILES)
    listed = [] if found else next((read_hostfile(file) for file in files if file.is_file()), [])
    return found or {host.name: host.slots for host in listed}


def _from_slurm(environ: Mapping[str, str]) -> list[NamedHost]:
    """Return the hosts of a Slurm job; of a heterogeneous one those of all components."""
    parts = [name for name in environ if name.startswith(HET_GROUP)]
    parts.sort(key=lambda name: (len(name), name))  # 10 is behind 2
    nodes = ",".join(filter(None, map(environ.get, parts)))
    nodes = nodes or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_STEP_NODELIST") or ""
    if not nodes:
        return []
    try:
        names = [name for part in split_list(nodes) for name in expand(part)]
    except RangeError as error:
        raise ConfigError(f"SLURM_JOB_NODELIST: {error}") from None
    for name in names:
        if not may_be_host(name):
            raise ConfigError(f"SLURM_JOB_NODELIST: '{name}' is not a host")
    slots = _slurm_slots(environ, len(names))
    once = dict(zip(names, slots, strict=True))  # components may share a host
    return [NamedHost(name, slots=slot) for name, slot in once.items()]


def _slurm_slots(environ: Mapping[str, str], nodes: int) -> list[int | None]:
    """Tasks on each node, from ``2(x3),1``; None where the allocation did not ask for a number.

    Slurm counts one task a node where nobody gave a number: that says nothing about ranks.
    """
    slots: list[int | None] = []
    for part in environ.get("SLURM_TASKS_PER_NODE", "").split(","):
        count, _, times = part.strip().removesuffix(")").partition("(x")
        if not is_whole(count) or not is_whole(times or "1"):
            return [None] * nodes
        slots += [int(count)] * min(int(times or "1"), nodes + 1)
    asked = any(name in environ for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    if len(slots) != nodes or (not asked and set(slots) == {1}):
        return [None] * nodes
    return slots


def _repeated_names(hosts: Iterable[NamedHost]) -> list[str]:
    counts = Counter(host.name for host in hosts)
    return [name for name, count in counts.items() if count > 1]
