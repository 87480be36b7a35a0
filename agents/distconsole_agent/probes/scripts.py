"""Asks the programs of ``standalone``: in another process, in the interpreter of the ranks where it matters."""

from __future__ import annotations

import base64
import json
import os
import pkgutil
import re
import sys
import threading
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.environment import launch_environment
from distconsole_agent.probes.errors import failed, timed_out
from distconsole_agent.probes.programs import Ended, run_program
from distconsole_agent.probes.standalone.reporting import FACTS, LAST
from distconsole_agent.supervisor.spawning import wrap_in_setup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHARE = 0.8
"""Of the time, for what a program looks at; the rest is for the interpreter's start and end."""

WORKER = (
    "collectives.values",
    "collectives.tensors",
    "collectives.by_torch",
    "collectives.by_horovod",
    "collectives.by_mpi",
    "collectives.worker",
)
"""The modules of a rank of a collective job, none before those that it imports."""

_LOADER = """\
import base64,json,sys,types,zlib
_P="distconsole_agent.probes"
for name in("distconsole_agent",_P,_P+".collectives"):
 sys.modules[name]=types.ModuleType(name);sys.modules[name].__path__=[]
for name,text in json.loads(zlib.decompress(base64.b64decode("{packed}"))):
 made=sys.modules[name]=types.ModuleType(name)
 if name.endswith(".{main}"):made.__name__="__main__"
 exec(compile(text,name,"exec"),made.__dict__)
"""
"""Modules whose text is in it: the interpreter that runs it may have no package of ours."""

_FUTURE = "from __future__ import annotations\n"
_IMPORT = re.compile(
    r"^from distconsole_agent\.probes\.(standalone\.\w+) import (?:\([^)]*\)|.*)\n", re.MULTILINE
)


class Answer(NamedTuple):
    """What a program said, by key, and how it ended."""

    parts: dict[str, Any]
    ended: Ended

    def facts(self, who: str) -> dict[str, Any]:
        """Return what it found out; else the ProbeError names the program as ``who``."""
        facts = self.parts.get(FACTS)
        if isinstance(facts, dict):
            return facts
        if self.ended.exit_code is None:
            raise timed_out(f"{who} did not answer in {self.ended.seconds:.1f} s")
        raise failed(f"{who} ended with code {self.ended.exit_code}: {self.ended.last_words}")


def ask_script(
    name: str,
    job: Mapping[str, Any],
    seconds: float,
    *,
    python: str = sys.executable,
    flags: Sequence[str] = (),
    setup: str | None = None,
    env: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    share: float = SHARE,
) -> Answer:
    """Have a program of ``standalone`` look, and return what it said by then.

    Args:
        name: Its module.
        job: The arguments of its ``main``, beside the seconds. They are in no command line, which
            anybody may read.
        seconds: After so long it is killed, as once ``stop`` is set.
        setup: What the node's shell runs first.
        env: Its environment; None for that of the session that asks.
        share: Of the seconds, for its own work.

    Raises:
        ProbeError: if the interpreter cannot be started.
    """
    call = f"\nmain({seconds * share!r}, **{dict(job)!a})\n"
    source = script_source(f"standalone.{name}") + call
    last = LAST.encode()
    ended = run_script(
        source, (), seconds, python=python, flags=flags, setup=setup, env=env, stop=stop, last=last
    )
    return Answer(_read_parts(ended.out), ended)


def ask_python(
    name: str,
    job: Mapping[str, Any],
    args: dict[str, Any],
    seconds: float,
    *,
    env: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], float]:
    """Have the interpreter that ranks will use run a program; return its facts and seconds.

    ``args`` are the probe's: ``python``, this one if not given; ``setup``, run by the shell before; ``env``
    and ``unset``, what a launch changes in the environment, unless ``env`` is given.

    Raises:
        ProbeError: when that interpreter does not answer.
    """
    python = read.optional_text(args, "python") or sys.executable
    answer = ask_script(
        name,
        job,
        seconds,
        python=python,
        setup=read.optional_text(args, "setup"),
        env=launch_environment(args) if env is None else env,
        share=1.0,
    )
    return answer.facts(python), answer.ended.seconds


def run_script(
    source: str,
    arguments: Sequence[str],
    seconds: float,
    *,
    python: str,
    flags: Sequence[str] = (),
    setup: str | None = None,
    env: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    last: bytes = b"",
) -> Ended:
    """Run Python source with the node's interpreter, as a rank would be: after ``setup``.

    The source lies in memory (memfd_create(2)): it is on no disk and in no command line.

    Raises:
        ProbeError: if the interpreter cannot be started.
    """
    descriptor = os.memfd_create("distconsole-probe")
    try:
        os.write(descriptor, source.encode())
        argv: tuple[str, ...] = (python, *flags, f"/dev/fd/{descriptor}", *arguments)
        if setup is not None:
            argv = wrap_in_setup(setup, argv)
        fds = (descriptor,)
        return run_program(argv, seconds, env=env, pass_fds=fds, stop=stop, last=last)
    except OSError as error:
        raise failed(f"{python} cannot be started: {error.strerror or error}") from None
    finally:
        os.close(descriptor)


def script_source(name: str) -> str:
    """Return the text of a module of probes, with that of modules of ``standalone`` in place of their import.

    Raises:
        ProbeError: if the package was built without it.
    """
    return _FUTURE + _IMPORT.sub(
        lambda found: script_source(found[1]).replace(_FUTURE, ""),
        _source(name).replace(_FUTURE, ""),
    )


def worker_script() -> str:
    """Return the script that is a rank of a collective job: a few KiB, for ``python -c`` too."""
    modules = [(f"distconsole_agent.probes.{name}", _source(name)) for name in WORKER]
    packed = base64.b64encode(zlib.compress(json.dumps(modules).encode(), 9)).decode("ascii")
    return _LOADER.format(packed=packed, main=WORKER[-1])


def _source(name: str) -> str:
    path = name.replace(".", "/")
    source = pkgutil.get_data("distconsole_agent.probes", f"{path}.py")
    if source is None:
        raise failed(f"{path}.py is missing from the agent")
    return source.decode("utf-8")


def _read_parts(out: str) -> dict[str, Any]:
    """Return by key what was said last, out of lines that are JSON lists of two."""
    parts: dict[str, Any] = {}
    for line in out.splitlines():
        try:
            key, value = json.loads(line)
        except (ValueError, TypeError):
            continue
        if isinstance(key, str):
            parts[key] = value
    return parts
