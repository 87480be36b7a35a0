"""How a process gets into a container: the words of each engine, and the script that these run inside.

The script holds variables, the working folder and the pipes, which no command line may show and not every engine
passes on. An engine is only asked to run ``sh SCRIPT`` and to let the run's folder in, at the same path.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from distconsole_agent.system.procfs import user_name

FOLDER, BEGUN = "inside", "begun"
"""In a run's folder: its scripts, and the pipe by which a process reports that it runs inside."""

VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that choose this session's GPUs; all else inside is the container's own or of the plan."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_BEGUN = re.compile(rb"([a-z]+-[0-9]{1,9}-[0-9]{1,9}) ([0-9]{1,10})\Z")
_HELP = re.compile(r"^(?:See|Run|For more help).*--help|^Usage:")
_UNREADABLE = re.compile(r"(?:can't open|cannot open|No such file)", re.IGNORECASE)
_NOT_FOUND = re.compile(r"\.sh: [^:0-9]+\Z")
"""In any language, with exit code 127."""


class ContainerEngine(NamedTuple):
    """The words of an engine.

    Attributes:
        start: That run a command in an image, before the mounts.
        mount: The option of one mount; ``{}`` is a path, the same on both sides.
        nvidia, amd: That give a container the GPUs.
        enter: That run a command in a running container, before the user; empty if an engine has none.
        fetch: How an image comes onto a host.
    """

    start: tuple[str, ...]
    mount: tuple[str, ...]
    nvidia: tuple[str, ...]
    amd: tuple[str, ...] = ()
    enter: tuple[str, ...] = ()
    fetch: str = ""


_SHARED = (
    *("run", "--rm", "--interactive", "--pull=never", "--entrypoint="),
    *("--network=host", "--pid=host", "--ipc=host", "--security-opt=label=disable"),
)
_KFD = ("--device=/dev/kfd", "--device=/dev/dri")
_APPTAINER = ContainerEngine(
    ("exec",), ("--bind", "{}"), ("--nv",), ("--rocm",), fetch="apptainer pull {} docker://IMAGE"
)
ENGINES: Mapping[str, ContainerEngine] = {
    "docker": ContainerEngine(
        (*_SHARED, "--ulimit=memlock=-1", "--ulimit=stack=67108864"),
        ("--volume={}:{}",),
        ("--gpus=all",),
        (*_KFD, "--group-add=video"),
        ("exec", "--interactive"),
        "docker pull {}",
    ),
    "podman": ContainerEngine(
        _SHARED,
        ("--volume={}:{}",),
        ("--device=nvidia.com/gpu=all",),
        (*_KFD, "--group-add=keep-groups"),
        ("exec", "--interactive"),
        "podman pull {}",
    ),
    "apptainer": _APPTAINER,
    "singularity": _APPTAINER,
    "enroot": ContainerEngine(
        ("start", "--rw"),
        ("--mount", "{}:{}:none:x-create=dir,rbind"),
        ("--env", "NVIDIA_VISIBLE_DEVICES=all"),
        fetch="enroot import docker://IMAGE, then enroot create --name {} FILE.sqsh",
    ),
}
WITH_DAEMON = ("docker", "podman")
"""Engines that have running containers and images by name."""


class Container(NamedTuple):
    """``ENGINE:NAME``, with further words for the engine; no ``engine`` if they are a command of the user's."""

    engine: str
    name: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.engine}:{self.name}" if self.engine else self.name

    @property
    def program(self) -> str:
        return self.engine or self.name


def parse_container(text: str) -> Container:
    """Return the meaning of ``--container``; raises ValueError, whose text lists valid forms."""
    try:
        first, *options = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the container {text!r} cannot be read as words: {error}") from None
    engine, colon, name = first.partition(":")
    if first.startswith("-") or name.startswith("-"):
        raise ValueError(f"{first} names no container: options stand behind its name")
    if engine in ENGINES and name:
        return Container(engine, name, tuple(options))
    if colon and "/" not in engine:
        raise ValueError(
            f"{first} names no container: ENGINE:NAME with {', '.join(ENGINES)}, or a command"
        )
    return Container("", first, tuple(options))


def words_to_enter(container: Container, user: str) -> tuple[str, ...]:
    """Return the words that run a command in a running container as ``UID:GID``."""
    engine = ENGINES[container.engine]
    return (container.engine, *engine.enter, "--user", user, *container.options, container.name)


def words_to_start(container: Container, user: str, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the words that run a command in an image that has ``paths``, and the GPUs of this host."""
    if not container.engine:
        return (container.name, *container.options)
    engine = ENGINES[container.engine]
    words = [container.engine, *engine.start]
    if container.engine in WITH_DAEMON:
        words.append(f"--user={user}")
        words += ["--device=/dev/infiniband"] if os.path.exists("/dev/infiniband") else []
    if os.path.exists("/dev/nvidiactl"):
        words += engine.nvidia
    elif os.path.exists("/dev/kfd"):
        words += engine.amd
    for path in paths:
        words += [word.replace("{}", path) for word in engine.mount]
    rootfs = ["--rootfs"] if container.engine == "podman" and container.name[0] == "/" else []
    return (*words, *container.options, *rootfs, container.name)


class Inside(NamedTuple):
    """Container of a process.

    Attributes:
        name: Its script's.
        pipes: Those of its output; None leaves that to the engine, and reports no start.
        first_on_path: A folder to put before the container's own PYTHONPATH.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]
    workdir: str
    pipes: tuple[str, str] | None = None
    first_on_path: str | None = None


def write_script(folder: str, inside: Inside) -> str:
    """Write the script of a process for its owner alone, and return its path; raises OSError."""
    path = os.path.join(folder, f"{inside.name}.sh")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(
        os.open(path, flags, 0o600), "w", encoding="utf-8", errors="surrogateescape"
    ) as file:
        file.write(script_text(folder, inside))
    return path


def script_text(folder: str, inside: Inside) -> str:
    """Return POSIX shell that becomes the process of ``inside`` and reports this before it does."""
    lines = [f"unset {name}" for name in inside.unset if _NAME.match(name)]
    exported = [(name, value) for name, value in inside.env.items() if _NAME.match(name)]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in exported]
    lines += [
        f': "${{USER:={shlex.quote(user_name())}}}" "${{LOGNAME:=$USER}}"; export USER LOGNAME'
    ]
    home = shlex.quote(os.path.expanduser("~"))
    lines += [
        f'for home in "$HOME" {home} /tmp; do [ -w "$home" ] && break; done; export HOME="$home"'
    ]
    if inside.first_on_path is not None and "PYTHONPATH" not in inside.env:
        first = shlex.quote(inside.first_on_path)
        lines += [f"export PYTHONPATH={first}${{PYTHONPATH:+:$PYTHONPATH}}"]
    if inside.pipes is not None:
        out, err = map(shlex.quote, inside.pipes)
        begun = shlex.quote(os.path.join(folder, BEGUN))
        lines += [f"printf '{inside.name} %s\\n' $$ 1<>{begun}", f"exec >>{out} 2>>{err}"]
    workdir, program = inside.workdir, inside.argv[0]
    lines += [
        f"cd {shlex.quote(workdir)} || {_end_with(126, f'the working folder {workdir}: mount it there')}",
        f"command -v {shlex.quote(program)} >/dev/null || "
        + _end_with(127, f"{program}: --python names the interpreter in there"),
        f"exec {' '.join(map(shlex.quote, inside.argv))}",
    ]
    return "\n".join([*lines, ""])


def _end_with(code: int, what: str) -> str:
    said = shlex.quote(f"distconsole: the container does not have {what}")
    return f"{{ echo {said} >&2; exit {code}; }}"


def with_own_pythonpath(env: Mapping[str, str], hook: str | None) -> dict[str, str]:
    """Return ``env`` without the PYTHONPATH that only ``hook`` is in: the script puts it before the image's own."""
    return {name: value for name, value in env.items() if (name, value) != ("PYTHONPATH", hook)}


def explain_end(container: str, run_dir: str, exit_code: int, said: str) -> tuple[str, str]:
    """Return why a process never ran inside, and a hint, by the engine's last lines."""
    said = last_words(said)
    unread = _UNREADABLE.search(said) or (exit_code == 127 and _NOT_FOUND.search(said))
    if run_dir in said and unread:
        folder = os.path.dirname(os.path.dirname(run_dir))
        return (
            f"{container} does not have the run's folder: {folder} is not mounted in it",
            f"start the container with --volume {folder}:{folder} and --ipc host",
        )
    return f"{container} ended with code {exit_code}: {said}", ""


def last_words(said: str) -> str:
    """Return the last line of an engine's output that is more than a hint at its help."""
    lines = [line for line in said.strip().splitlines() if line.strip()]
    telling = [line for line in lines if not _HELP.search(line)]
    return (telling or lines or ["it printed nothing"])[-1].strip()[:300]


def make_script_folder(run_dir: str) -> str:
    """Make the folder of a run's scripts; return the path of the pipe in it. Raises OSError."""
    folder = os.path.join(run_dir, FOLDER)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, BEGUN)


def read_arrival(line: bytes) -> tuple[str, int] | None:
    """Return the script and the pid of a process that reports that it runs inside; None for another line."""
    found = _BEGUN.match(line)
    return None if found is None else (found[1].decode("ascii"), int(found[2]))


def forget_scripts(run_dir: str) -> None:
    """Remove a run's scripts: a container that an engine starts only now ends at once, and runs nothing."""
    folder = os.path.join(run_dir, FOLDER)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith(".sh"):
                os.unlink(os.path.join(folder, name))
