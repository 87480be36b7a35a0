"""Slurm's records of this node, and munge of both ends."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Mapping, Sequence

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.arguments import Arguments
from distconsole_agent.probes.at_once import look_at_once
from distconsole_agent.probes.environment import session_environment
from distconsole_agent.probes.programs import Ended, run_program
from distconsole_agent.system.kernel_files import text_of
from distconsole_agent.system.memory import memory_file

CONFIGURATIONS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/run/slurm/conf/slurm.conf",
)
"""Files that Slurm's commands try without SLURM_CONF; the last is slurmd's or sackd's own."""

CLIENT_VARIABLES = (
    "SLURM_CLUSTER_NAME",
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_JWT",
    "SLURM_SACK_SOCKET",
)
"""Variables for Slurm's place and its user; most others are options of its commands."""

MUNGE = "auth/munge"

SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")
MAX_CREDENTIALS = 64
LIMITS = {"memlock": "Max locked memory", "nofile": "Max open files", "nproc": "Max processes"}
DNS_SECONDS = 2.0
"""How long a command without a file may take to find a controller."""

_AUTH = re.compile(r"^[ \t]*AuthType[ \t]*=[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_CONTROLLER = re.compile(r"^Slurmctld\((\S+)\) at (\S+) is (UP|DOWN)", re.MULTILINE)
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/]*)=(\S*)")


def look(seconds: float, *, names: Sequence[str] = ()) -> dict[str, object]:
    """Return the facts of group ``slurm``: ``{"present": false, "why"}`` on a host without Slurm.

    Else ``version`` (empty if the commands report none, as 22.05 to 24.11 without a
    configuration), ``controllers``, ``controller_error``, ``node`` (the controller's record of
    this one; null if it has none), ``hardware`` (``slurmd -C``), ``overrides``
    (slurmd is set to believe the configuration), ``auth`` (``AuthType``; empty if unknown) and
    ``munge_error``.

    Args:
        names: Possible names of this node in Slurm, beside its own.
    """
    environment = _environment()
    if shutil.which("scontrol", path=environment["PATH"]) is None:
        return {"present": False, "why": "no Slurm here"}
    file = environment.get("SLURM_CONF") or next(filter(os.path.exists, CONFIGURATIONS), "")
    # The commands then ask a controller that DNS names.
    if not file and not environment.get("SLURM_CONF_SERVER"):
        asked_dns = _run(("scontrol", "ping"), min(seconds * 0.4, DNS_SECONDS), environment)
        if not _CONTROLLER.search(asked_dns.out):
            return {"present": False, "why": "Slurm's commands are here, and no slurm.conf"}
    asked = {
        "ping": ("scontrol", "ping"),
        "version": ("scontrol", "--version"),
        "config": ("scontrol", "show", "config"),
        "hardware": ("slurmd", "-C"),
        "munge": ("munge", "-n"),
        **{
            f"node {name}": ("scontrol", "--oneliner", "show", "node", name)
            for name in _names(names)
        },
    }
    ended = look_at_once(lambda argv: _run(argv, seconds * 0.8, environment), list(asked.values()))
    told = dict(zip(asked, ended))
    controllers = _CONTROLLER.findall(told["ping"].out)
    node = next((told[key] for key in told if key.startswith("node ") and _ok(told[key])), None)
    auth = _AUTH.search(told["config"].out or text_of(file))
    munge = told["munge"]
    by_munge = auth is None or auth[1] == MUNGE
    return {
        "present": True,
        "version": told["version"].out.strip().rpartition(" ")[2],
        "controllers": [
            {"role": role, "host": host, "up": state == "UP"} for role, host, state in controllers
        ],
        "controller_error": "" if controllers else complaint(told["ping"]),
        "node": parse_pairs(node.out) if node is not None else None,
        "hardware": parse_pairs(told["hardware"].out) or None,
        "overrides": "config_overrides" in told["config"].out,
        "auth": auth[1] if auth is not None else "",
        "munge_error": complaint(munge) if by_munge and not _ok(munge) else "",
    }


def encode(seconds: float) -> dict[str, object]:
    """Return ``{"credential"}`` of munge: it proves its user, once, for some minutes."""
    ended = _run(("munge", "-n"), seconds, _environment())
    return {"credential": ended.out.strip() if _ok(ended) else "", "error": complaint(ended)}


def decode(seconds: float, *, credentials: Sequence[Arguments] = ()) -> dict[str, object]:
    """Return ``{"decoded": [{"source", "status", "encoded", "decoded", "error"}]}`` of ``credentials``."""
    found = []
    given = credentials[:MAX_CREDENTIALS]
    for item in given:
        text = read.text(item, "credential")
        ended = _decode(text, seconds / max(1, len(given)))
        pairs = dict(re.findall(r"^([A-Z_]+):\s+(.*)$", ended.out, re.MULTILINE))
        found.append(
            {
                "source": read.text(item, "source"),
                "status": pairs.get("STATUS", "").partition(" (")[0],
                "encoded": _stamp(pairs.get("ENCODE_TIME", "")),
                "decoded": _stamp(pairs.get("DECODE_TIME", "")),
                "error": complaint(ended),
            }
        )
    return {"decoded": found}


def step_limits(seconds: float, *, job: str, node: str) -> dict[str, object]:
    """Return ``{"limits": {name: soft}, "error"}`` inside a step of the allocation ``job`` here."""
    if not job.isdigit():
        return {"limits": {}, "error": "the allocation has no number"}
    environment = {
        name: value
        for name, value in _environment().items()
        if name in CLIENT_VARIABLES or not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))
    }
    argv = ("srun", f"--jobid={job}", "--overlap", "--quiet", "-N1", "-n1", "-w", node)
    ended = _run((*argv, "cat", "/proc/self/limits"), seconds, environment)
    return {"limits": parse_limits(ended.out), "error": "" if _ok(ended) else complaint(ended)}


def parse_pairs(text: str) -> dict[str, str]:
    """Return the fields of ``scontrol --oneliner`` or ``slurmd -C``, by name; a reason keeps its blanks."""
    pairs: dict[str, str] = dict(_PAIR.findall(text))
    said = re.split(r"\sReason=", text.strip(), maxsplit=1)[1:]
    if said:
        pairs["Reason"] = re.split(r"\sComment=", said[0], maxsplit=1)[0].strip()
    return pairs


def parse_limits(text: str) -> dict[str, int | None]:
    """Return the soft limits that /proc/PID/limits lists, None for none."""
    found: dict[str, int | None] = {}
    for name, words in LIMITS.items():
        line = re.search(rf"^{words}\s+(\S+)", text, re.MULTILINE)
        if line and line[1] == "unlimited":
            found[name] = None
        elif line and re.fullmatch(r"[0-9]{1,20}", line[1]):
            found[name] = int(line[1])
    return found


def complaint(ended: Ended) -> str:
    """Return the complaint of a command of Slurm's or munge's, in one line."""
    if ended.exit_code is None:
        return f"no answer in {ended.seconds:.0f} s"
    lines = [line.strip() for line in (ended.err or ended.out).splitlines() if line.strip()]
    if not lines:
        return ""
    return re.sub(r"^.*?\b[Ee]rror: ", "", lines[-1])[:300]


def _decode(credential: str, seconds: float) -> Ended:
    """Run unmunge with the credential on its standard input: in no command line, in no file."""
    descriptor = memory_file("distconsole-probe", credential.encode("ascii", "replace"))
    try:
        argv = ("unmunge", f"--input=/dev/fd/{descriptor}")
        return _run(argv, seconds, _environment(), (descriptor,))
    finally:
        os.close(descriptor)


def _stamp(text: str) -> int | None:
    """Return the UNIX seconds, which munge prints in parentheses behind the date."""
    found = re.search(r"\((\d{5,})\)$", text.strip())
    return int(found[1]) if found else None


def _names(given: Sequence[str]) -> list[str]:
    own = socket.gethostname()
    names = [own.partition(".")[0], own, *given]
    return [name for name in dict.fromkeys(names) if re.fullmatch(r"[A-Za-z0-9_.-]{1,255}", name)]


def _environment() -> dict[str, str]:
    environment = dict(session_environment())
    path = environment.get("PATH", os.defpath)
    environment["PATH"] = os.pathsep.join((path, *SBIN))
    return environment


def _run(
    argv: tuple[str, ...],
    seconds: float,
    environment: Mapping[str, str],
    descriptors: tuple[int, ...] = (),
) -> Ended:
    try:
        return run_program(argv, seconds, env=environment, pass_fds=descriptors)
    except OSError as error:
        return Ended(127, "", f"{argv[0]}: {error.strerror or error}", 0.0)


def _ok(ended: Ended) -> bool:
    return ended.exit_code == 0
