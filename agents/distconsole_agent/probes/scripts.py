"""Runs the programs of ``standalone``: in another process, if needed in the ranks' interpreter."""

from __future__ import annotations

import base64
import json
import os
import pkgutil
import re
import sys
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from distconsole_agent.probes.arguments import ProbeError, Shell, probe_failure, probe_timeout
from distconsole_agent.probes.environment import launch_environment
from distconsole_agent.probes.programs import Ended, run_program
from distconsole_agent.probes.software.container import find_way, run_inside
from distconsole_agent.probes.standalone.reporting import FACTS, LAST
from distconsole_agent.supervisor.containers import Inside, script_text
from distconsole_agent.system.memory import memory_file

SHARE = 0.8
"""Share of the time for a program's looks; the rest is for the interpreter's start and end."""

_END = "distconsole-end-of-source"
_FUTURE = "from __future__ import annotations\n"
_OWN_PATH = (
    "import os, sys; PATH = globals().get('PATH') or [each for each in sys.path if each.strip('/') and "
    "not each.startswith('/dev/fd')]; sys.path.sort(key=lambda each: "
    "not each.startswith(os.path.dirname(os.__file__)) or '-packages' in each)\n"
)
"""While a program loads, Python's own modules are found before others; ``PATH`` is a rank's search path.

The folder of a program in memory is ``/`` if Python resolves the link of ``/dev/fd``."""
_IMPORT = re.compile(
    r"^from distconsole_agent\.((?:probes\.(?:standalone|collectives)|contract|system)\.\w+) import "
    r"(?:\([^)]*\)|.*)\n",
    re.MULTILINE,
)


class Interpreter(NamedTuple):
    """A Python, the ``setup`` that the shell runs before it, and its environment; None: the asking session's.

    With ``enter``, the words that enter a container, ``env`` is added to the container's environment.
    """

    python: str = sys.executable
    setup: str | None = None
    env: Mapping[str, str] | None = None
    flags: tuple[str, ...] = ()
    enter: tuple[str, ...] = ()


OWN = Interpreter(flags=("-I", "-S"))
"""Ours, for a program that needs nothing that is installed: a home folder may hang."""


def ranks_interpreter(shell: Shell, env: Mapping[str, str] | None = None) -> Interpreter:
    """Return the interpreter that ranks will use; ``env`` stands in place of the launch's environment."""
    enter = words_into(shell)
    python = shell.python or ("python3" if enter else sys.executable)
    if enter:
        env = shell.env
    return Interpreter(
        python, shell.setup, launch_environment(shell) if env is None else env, (), enter
    )


def words_into(shell: Shell) -> tuple[str, ...]:
    """Return the words that enter the ranks' container; none without one."""
    if shell.container is None:
        return ()
    folder = os.path.expanduser(shell.workdir or "")
    folders = [folder] if os.path.isabs(folder) else []
    return find_way(shell.container, folders, shell.setup).words


class ProgramAnswer(NamedTuple):
    parts: dict[str, Any]
    ended: Ended

    def facts(self, who: str) -> dict[str, Any]:
        """Return its facts; else the ProbeError names the program as ``who``."""
        facts = self.parts.get(FACTS)
        if isinstance(facts, dict):
            return facts
        if self.ended.exit_code is None:
            raise probe_timeout(f"{who} did not answer in {self.ended.seconds:.1f} s")
        raise self.failure(who)

    def failure(self, who: str) -> ProbeError:
        return probe_failure(
            f"{who} ended with code {self.ended.exit_code}: {self.ended.last_words}"
        )


def ask_script(
    name: str,
    job: Mapping[str, Any],
    seconds: float,
    interpreter: Interpreter = OWN,
    *,
    share: float = SHARE,
    fds: tuple[int, ...] = (),
) -> ProgramAnswer:
    """Run a program of ``standalone``, and return its results up to then.

    Args:
        name: Its module.
        job: The arguments of its ``main``, beside the seconds. They are in no command line, which
            every user may read.
        seconds: After this long it is killed.
        share: Of the seconds, for its own work.
        fds: Descriptors that it inherits.

    Raises:
        ProbeError: if the interpreter cannot be started.
    """
    call = f"\nmain({seconds * share!r}, **{dict(job)!a})\n"
    source = script_source(f"probes.standalone.{name}") + call
    ended = run_script(source, seconds, interpreter, last=LAST.encode(), fds=fds)
    return ProgramAnswer(_read_parts(ended.out), ended)


def ask_python(
    name: str,
    job: Mapping[str, Any],
    shell: Shell,
    seconds: float,
    env: Mapping[str, str] | None = None,
    fds: tuple[int, ...] = (),
) -> tuple[dict[str, Any], float]:
    """Have ``ranks_interpreter`` run a program; return its facts and seconds; raises ProbeError."""
    interpreter = ranks_interpreter(shell, env)
    answer = ask_script(name, job, seconds, interpreter, share=1.0, fds=fds)
    return answer.facts(interpreter.python), answer.ended.seconds


def run_script(
    source: str,
    seconds: float,
    interpreter: Interpreter = OWN,
    *,
    last: bytes = b"",
    fds: tuple[int, ...] = (),
) -> Ended:
    """Run Python source with an interpreter of the node.

    The source lies in memory: it is on no disk and in no command line. Raises
    ProbeError if the interpreter cannot be started.
    """
    python, setup, env, flags, enter = interpreter
    if enter:
        inside = Inside("probe", (python, *flags, "-"), env or {}, (), "/")
        text = f"{script_text('', inside).rstrip()} <<'{_END}'\n{source}\n{_END}\n"
        return run_inside(text, seconds, enter, setup, last=last)
    descriptor = memory_file("distconsole-probe", source.encode())
    try:
        argv = (python, *flags, f"/dev/fd/{descriptor}")
        fds = (descriptor, *fds)
        return run_program(argv, seconds, setup, env=env, pass_fds=fds, last=last)
    except OSError as error:
        raise probe_failure(f"{python} cannot be started: {error.strerror or error}") from None
    finally:
        os.close(descriptor)


def script_source(name: str) -> str:
    """Return the text of a module of ours, with those of the modules that it imports in place.

    The interpreter that runs it may have no package of ours. Raises ProbeError if the package was
    built without it.
    """
    return _FUTURE + _OWN_PATH + _inline_imports(name, set())


def _inline_imports(name: str, there: set[str]) -> str:
    """Return the text of a module after those of its imports that are not ``there`` yet."""
    if name in there:
        return ""
    there.add(name)
    path = name.replace(".", "/")
    source = pkgutil.get_data("distconsole_agent", f"{path}.py")
    if source is None:
        raise probe_failure(f"{path}.py is missing from the agent")
    text = source.decode("utf-8").replace(_FUTURE, "")
    return _IMPORT.sub(lambda found: _inline_imports(found[1], there), text)


def worker_script() -> str:
    """Return the script that is a rank of a collective job: a few KiB, for ``python -c`` too."""
    packed = base64.b64encode(
        zlib.compress(script_source("probes.collectives.worker").encode(), 9)
    )
    return f"{_OWN_PATH}import base64,zlib;exec(zlib.decompress(base64.b64decode({packed!r})))"


def _read_parts(out: str) -> dict[str, Any]:
    """Return the last value of each key, out of lines that are JSON lists of two."""
    parts: dict[str, Any] = {}
    for line in out.splitlines():
        try:
            key, value = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(key, str):
            parts[key] = value
    return parts
