"""The command that enters a container on this node, and the facts inside."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from distconsole_agent.contract.protocol import ErrorCode
from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.node_folder.folders import SHARED_MEMORY, default_node_dir
from distconsole_agent.probes.arguments import ProbeError, Shell, bad_arguments, probe_failure
from distconsole_agent.probes.environment import session_environment, use_environment
from distconsole_agent.probes.programs import Ended, run_program
from distconsole_agent.supervisor.containers import (
    ENGINES,
    WITH_DAEMON,
    Container,
    last_words,
    parse_container,
    words_to_enter,
    words_to_start,
)
from distconsole_agent.supervisor.proctree import kill_marked
from distconsole_agent.system.memory import memory_file

LOOK_SECONDS = 20.0

_MARK = "distconsole-lacks "


class ContainerWay(NamedTuple):
    """How to get into a container.

    Attributes:
        words: Those before the command.
        kind: ``running``, ``image``, or ``command`` of the user's.
        network: Of a running container: ``host``, or the name of its own one; empty if unknown.
        shares_memory: ``/dev/shm`` inside is this node's.
    """

    words: tuple[str, ...]
    kind: str
    network: str = ""
    shares_memory: bool = True


def look(seconds: float, *, shell: Shell) -> dict[str, object]:
    """Return the facts of group ``container``; if it cannot be entered, ``trouble`` and ``hint`` explain it.

    ``lacks`` are the folders of the node that a process inside does not have.
    """
    if shell.container is None:
        raise bad_arguments("container is not a text")
    setup, workdir = shell.setup, shell.workdir
    folders = [default_node_dir(), *([os.path.expanduser(workdir)] if workdir else [])]
    python = shell.python or "python3"
    facts: dict[str, object] = {
        "kind": "",
        "network": "",
        "shares_memory": True,
        "lacks": [],
        "python": "",
    }
    try:
        way = find_way(shell.container, folders, setup)
        facts.update(kind=way.kind, network=way.network, shares_memory=way.shares_memory)
        tests = "".join(
            f"[ -d {path} ] || echo '{_MARK}'{path}\n" for path in map(shlex.quote, folders)
        )
        text = f"{tests}command -v {shlex.quote(python)}\nexit 0\n"
        ended = run_inside(text, seconds, way.words, setup)
        if ended.exit_code != 0:
            raise _trouble(f"nothing can be run in it: {last_words(ended.err)}", "")
    except ProbeError as error:
        return {**facts, "trouble": error.message, "hint": error.hint}
    lines = ended.out.splitlines()
    facts["lacks"] = [line[len(_MARK) :] for line in lines if line.startswith(_MARK)]
    facts["python"] = "".join(line for line in lines if not line.startswith(_MARK))[:1024]
    return {**facts, "trouble": "", "hint": ""}


def find_way(text: str, folders: Sequence[str], setup: str | None) -> ContainerWay:
    """Return how ``--container TEXT`` is entered here, with ``folders`` at the same paths in an image.

    ``setup`` runs first in the node's shell. Raises ProbeError, with a hint: the engine is not installed
    here, the container does not run, the image is missing, or this user has no id in it.
    """
    try:
        container = parse_container(text)
    except ValueError as error:
        raise probe_failure(str(error)) from None
    if container.engine in WITH_DAEMON and container.name[0] != "/":
        return _ask_engine(container, folders, setup)
    here = setup is None and shutil.which(
        container.program, path=session_environment().get("PATH")
    )
    find = ("sh", "-c", 'command -v "$1"', "sh", container.program)
    if not here and _run(find, setup, container).exit_code:
        raise _missing(container)
    if container.engine:
        _find_image(container, setup)
    kind = "image" if container.engine else "command"
    memory = (SHARED_MEMORY,) if container.engine and container.engine not in WITH_DAEMON else ()
    return ContainerWay(words_to_start(container, _own_user(), [*folders, *memory]), kind)


def _own_user() -> str:
    return f"{os.getuid()}:{os.getgid()}"


def _ask_engine(container: Container, folders: Sequence[str], setup: str | None) -> ContainerWay:
    engine, name, quoted = container.engine, container.name, shlex.quote(container.name)
    said = _run((engine, "inspect", name), setup, container)
    if said.exit_code != 0:
        if "no such" in said.err.lower():
            what = f"{engine} has neither a running container nor an image {name} here"
            raise _trouble(
                what, f"{ENGINES[engine].fetch.format(quoted)}; it is not done by itself"
            )
        raise _trouble(
            f"{engine}: {last_words(said.err)}", f"try on that host: {engine} inspect {quoted}"
        )
    try:
        found = json.loads(said.out)[0]
        state = found.get("State")
    except (ValueError, LookupError, AttributeError):
        raise _trouble(f"{engine} inspect {name} says nothing that is understood", "") from None
    if not isinstance(state, dict):
        user = "0:0" if engine == "podman" else _own_user()
        return ContainerWay(words_to_start(container, user, folders), "image", "host")
    if state.get("Status") != "running":
        status = str(state.get("Status"))[:40]
        start = "unpause" if status == "paused" else "start"
        raise _trouble(f"the container {container} is {status}", f"{engine} {start} {quoted}")
    return _way_into(container, found, state.get("Pid"))


def _way_into(container: Container, found: dict[str, Any], pid: object) -> ContainerWay:
    settings = found.get("HostConfig") or {}
    pid = pid if isinstance(pid, int) else 0
    shares = shares_memory(pid)
    if shares is None:
        mounted = {str(each.get("Destination")) for each in found.get("Mounts") or ()}
        shares = str(settings.get("IpcMode")) == "host" or SHARED_MEMORY in mounted
    user = user_inside(pid)
    if user is None:
        raise _trouble(
            f"uid {os.getuid()} is nobody in the container {container}: it has other users",
            "start it with --userns=host, or as yourself",
        )
    network = str(settings.get("NetworkMode") or "")
    return ContainerWay(words_to_enter(container, user), "running", network, shares)


def shares_memory(pid: int, proc: str = "/proc") -> bool | None:
    """Return True if process ``pid`` has this node's ``/dev/shm``; None if unknown."""
    try:
        device = os.stat(SHARED_MEMORY).st_dev
        with open(f"{proc}/{pid}/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return None
    own = f"{os.major(device)}:{os.minor(device)}"
    return [each[2] for each in mounts if each[4] == SHARED_MEMORY][-1:] == [own]


def user_inside(pid: int, proc: str = "/proc") -> str | None:
    """Return the ``UID:GID`` of this user in process ``pid``'s user namespace; None without one.

    Returns ours if the map is unreadable, as with an engine in a virtual machine. root needs no mapping.
    """
    ids = []
    for name, own in (("uid_map", os.getuid()), ("gid_map", os.getgid())):
        try:
            with open(f"{proc}/{pid}/{name}", encoding="ascii") as file:
                rows = [tuple(map(int, line.split())) for line in file]
        except (OSError, ValueError):
            rows = [(own, own, 1)]
        inside = [first + own - here for first, here, size in rows if here <= own < here + size]
        ids += inside[:1] or ([0] if own == 0 else [])
    return f"{ids[0]}:{ids[1]}" if len(ids) == 2 else None


def _find_image(container: Container, setup: str | None) -> None:
    name = container.name
    is_path = "/" in name.partition("://")[0]
    if is_path and not os.path.exists(os.path.expanduser(name)):
        hint = ENGINES[container.engine].fetch.format(name)
        raise _trouble(f"there is no image {name} on this host", hint)
    if container.engine != "enroot" or is_path:
        return
    if name not in _run(("enroot", "list"), setup, container).out.split():
        hint = ENGINES["enroot"].fetch.format(name)
        raise _trouble(f"enroot has no container {name} here", hint)


def run_inside(
    text: str,
    seconds: float,
    enter: tuple[str, ...],
    setup: str | None,
    *,
    last: bytes = b"",
) -> Ended:
    """Run ``text`` in a container by a shell that reads it from stdin: none of our folders has to be there.

    Processes that do not end in time are killed inside, too: they need not be below the engine's program. Raises
    ProbeError if that cannot be started.
    """
    mark = f"DISTCONSOLE_PROBE={os.urandom(8).hex()}"
    words = (*enter, "sh", "-s", mark)
    script = f"export {mark}\n{text}".encode("utf-8", "surrogateescape")
    descriptor = memory_file("distconsole-probe", script)
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        ended = run_program(words, seconds, setup, last=last, stdin=descriptor)
    except OSError as error:
        raise probe_failure(f"{enter[0]} cannot be started: {error.strerror or error}") from None
    finally:
        os.close(descriptor)
    if ended.exit_code is None or last:
        kill_marked(mark)
    return ended


def _run(argv: tuple[str, ...], setup: str | None, container: Container) -> Ended:
    try:
        return run_program(argv, LOOK_SECONDS, setup)
    except OSError:
        raise _missing(container) from None


def _missing(container: Container) -> ProbeError:
    program = container.program
    return _trouble(
        f"{program} is not on this host's PATH",
        f"install it there, or load it: --setup 'module load {program}'",
    )


def _trouble(message: str, hint: str) -> ProbeError:
    error = probe_failure(message)
    error.hint = hint
    return error


def way_of_run(spec: RunSpec, node_dir: str, environment: Mapping[str, str]) -> ContainerWay:
    """Return the command by which processes of a run enter its container here; raises Refusal if they cannot."""
    workdir = os.path.expanduser(spec.workdir or "")
    folders = [node_dir]
    if os.path.isdir(workdir) and os.path.commonpath([workdir, node_dir]) != node_dir:
        folders.append(workdir)
    try:
        if spec.driver:
            what = "elastic Horovod is not steered in a container"
            raise _trouble(what, "give a fixed number of hosts: leave --nnodes MIN:MAX out")
        with use_environment(environment):
            way = find_way(spec.container, folders, spec.setup)
        if way.network not in ("", "host") and len(spec.nodes) > 1:
            what = f"the container has a network of its own ({way.network})"
            raise _trouble(
                f"{what}: other hosts cannot reach its ranks", "start it with --network host"
            )
    except ProbeError as error:
        raise Refusal(ErrorCode.START_FAILED, error.message, error.hint) from None
    return way
