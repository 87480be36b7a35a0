"""Tests ssh logins from this node to others, and a plain mpirun over them.

mpirun and horovodrun started by hand need that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.arguments import Arguments, Shell, bad_arguments
from distconsole_agent.probes.at_once import look_at_once
from distconsole_agent.probes.collectives.values import MARK
from distconsole_agent.probes.environment import session_environment
from distconsole_agent.probes.programs import Ended, run_program
from distconsole_agent.probes.scripts import worker_script
from distconsole_agent.probes.software.engines import after_setup
from distconsole_agent.supervisor.failures import first_reason

CONNECT_SECONDS = 3
TRY_SECONDS = 8.0
AT_ONCE = 8
MAX_TARGETS = 256
MAX_ERROR_LINES = 12
AGAIN_SECONDS = 5.0
"""Seconds between a failed login and the next one to the same host: sshd's penalty for it (PerSourcePenalties)."""

_FAILED: dict[str, float] = {}
"""Name of a host -> when the last login there failed (monotonic)."""

QUIET = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_SECONDS}",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
    "ControlPath=none",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "LogLevel=ERROR",
)
"""A login that neither asks nor learns (ssh_config(5))."""

SSH_FAILED = 255
_HUNG_UP = re.compile(r"exchange_identification: |Connection (?:closed|reset)")
"""ssh's words on a server that hangs up; from OpenSSH 10 on none at LogLevel=ERROR."""
_DROPPED = re.compile(
    r"^debug1: .*exchange_identification: .*(Not allowed at this time|Exceeded MaxStartups)",
    re.MULTILINE,
)
"""sshd's words before it drops a connection, which ssh repeats with DEBUG1 only (PerSourcePenalties, MaxStartups)."""

_KINDS = (
    ("resolve", re.compile(r"Could not resolve hostname|Name or service not known")),
    ("host_key_changed", re.compile(r"IDENTIFICATION HAS CHANGED")),
    ("host_key_unknown", re.compile(r"host key is known|Host key verification failed")),
    ("refused", re.compile(r"Connection refused")),
    (
        "connect",
        re.compile(
            r"timed out|No route to host|Network is unreachable|Connection (?:reset|closed)"
        ),
    ),
    ("modes", re.compile(r"UNPROTECTED PRIVATE KEY|Bad owner or permissions")),
    ("auth", re.compile(r"Permission denied|Too many authentication failures")),
)
"""ssh's words on its standard error; the first that fits."""

_NAMES = """\
export RANK="${OMPI_COMM_WORLD_RANK-$PMI_RANK}" WORLD_SIZE="${OMPI_COMM_WORLD_SIZE-$PMI_SIZE}"
exec "$@"
"""


def look(seconds: float, *, targets: Sequence[Arguments] = ()) -> dict[str, object]:
    """Return ``{"client": ssh is installed, "logins": [{"target", "name", "ok", "error", "said",
    "seconds"}]}``.

    Args:
        targets: ``[{"name", "as": names to try until one can be resolved}]``.
    """
    wanted: list[tuple[str, list[str]]] = []
    for item in targets:
        names = [read.text({"as": name}, "as") for name in read.items(item, "as")]
        usable = [name for name in names if name and not name.startswith("-")]
        wanted.append((read.text(item, "name"), usable))
    if len(targets) > MAX_TARGETS:
        raise bad_arguments(f"more than {MAX_TARGETS} targets")
    env = dict(session_environment())
    client = shutil.which("ssh", path=env.get("PATH"))
    if client is None or not targets:
        return {"client": client is not None, "logins": []}
    each = min(TRY_SECONDS, seconds)
    logins = look_at_once(
        lambda target: _login(client, target[0], target[1], each, env), wanted, AT_ONCE
    )
    return {"client": True, "logins": logins}


def _login(
    client: str, target: str, names: list[str], seconds: float, env: dict[str, str]
) -> dict[str, Any]:
    """Log in by the first of ``names`` that means something here."""
    login: dict[str, Any] = {
        "target": target,
        "name": "",
        "ok": False,
        "error": "resolve",
        "said": "",
        "seconds": 0.0,
    }
    for name in names:
        if name in _FAILED:
            wait = _FAILED.pop(name) + AGAIN_SECONDS - time.monotonic()
            wait = max(0.0, min(wait, seconds - CONNECT_SECONDS))
            time.sleep(wait)
            seconds -= wait
        login.update(name=name, **_try(client, name, seconds, env))
        login["seconds"] = round(login["seconds"], 3)
        if login["error"] not in ("", "resolve", "dropped"):
            _FAILED[name] = time.monotonic()
        if login["error"] != "resolve":
            break
    return login


def _try(client: str, name: str, seconds: float, env: dict[str, str]) -> dict[str, object]:
    """Log in once, or twice if the server hangs up before its version: that costs no penalty, and shows why."""
    options = [word for option in QUIET for word in ("-o", option)]
    words = ["-n", "-T", *options, "--", name, "true"]
    ended = run_program([client, *words], seconds, env=env)
    silent = not ended.err.strip()
    if ended.exit_code == SSH_FAILED and (silent or _HUNG_UP.search(ended.err)):
        left = max(1.0, seconds - ended.seconds)
        loud = run_program([client, "-o", "LogLevel=DEBUG1", *words], left, env=env)
        dropped = _DROPPED.search(loud.err)
        if dropped:
            said = f"its sshd says '{dropped[1]}'"
            return {"ok": False, "error": "dropped", "said": said, "seconds": ended.seconds}
        lines = [line for line in loud.err.splitlines() if not line.startswith("debug1:")]
        ended = loud._replace(err="\n".join(lines))
    kind = kind_of(ended)
    said = ended.last_words if kind and ended.err.strip() else ""
    return {"ok": not kind, "error": kind, "said": said, "seconds": ended.seconds}


def kind_of(ended: Ended) -> str:
    """Return why a login failed; empty if it did not."""
    if ended.exit_code == 0:
        return ""
    if ended.exit_code is None:
        return "connect"
    return next((kind for kind, pattern in _KINDS if pattern.search(ended.err)), "other")


def mpirun(
    seconds: float,
    *,
    shell: Shell,
    hosts: Sequence[str],
    family: str = "",
    networks: Sequence[str] = (),
) -> dict[str, object]:
    """Start one rank on each host by a plain mpirun over ssh; return each one's view of itself.

    ``{"exit_code" (null: killed), "groups": [reports of the ranks], "said": last lines}``.

    Args:
        hosts: Their names for ssh, this one first.
        family: Of mpirun.
        networks: Subnets that MPI shall use.
    """
    if not 0 < len(hosts) <= MAX_TARGETS or any(host.startswith("-") for host in hosts):
        raise bad_arguments("hosts are no names")
    own = max(1, int(seconds - 2))
    env = {**after_setup(shell.setup, seconds / 3), **_variables(networks, own)}
    path = shutil.which("mpirun", path=env.get("PATH"))
    if path is None:
        return {"exit_code": 127, "groups": [], "said": ["there is no mpirun"]}
    job = {"seed": 1, "timeout_seconds": own, "world_size": len(hosts), "cases": []}
    python = shell.python or sys.executable
    rank = ("sh", "-c", _NAMES, "sh", python, "-c", worker_script(), repr(float(own)), "mpi")
    hydra = family in ("MPICH", "Intel MPI")
    if hydra:
        words = ["-hosts", ",".join(hosts), "-ppn", "1", "-n", str(len(hosts)), "-launcher", "ssh"]
    else:
        words = ["--host", ",".join(f"{host}:1" for host in hosts), "-np", str(len(hosts))]
        words += ["--map-by", "slot", "--bind-to", "none", "--timeout", str(own)]
    ended = run_program([path, *words, *rank, json.dumps(job)], seconds, env=env)
    found = list(groups(ended.out))
    # Ranks that met print only to the standard output.
    told = ended.err if ended.err.strip() or found else ended.out
    lines = [line for line in told.splitlines() if line.strip("-*= ")]
    reason = first_reason(told)
    if len(lines) > MAX_ERROR_LINES and reason:
        lines = [reason, *lines[1 - MAX_ERROR_LINES :]]
    return {
        "exit_code": ended.exit_code,
        "groups": found,
        "said": [line[:300] for line in lines[-MAX_ERROR_LINES:]],
    }


def _variables(networks: Sequence[str], seconds: int) -> dict[str, str]:
    options = " ".join(f"-o {option}" for option in QUIET)
    found = {
        "OMPI_MCA_plm_rsh_args": options,
        "PRTE_MCA_plm_ssh_args": options,
        "HYDRA_LAUNCHER_EXTRA_ARGS": options,
        "MPIEXEC_TIMEOUT": str(seconds),
        "PYTHONWARNINGS": "ignore",
    }
    if networks:
        for name in ("OMPI_MCA_btl_tcp", "OMPI_MCA_oob_tcp", "PRTE_MCA_prte"):
            found[f"{name}_if_include"] = ",".join(networks)
    if os.geteuid() == 0:
        for name in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM"):
            found[f"OMPI_{name}"] = found[f"PRTE_{name}"] = "1"
    return found


def groups(out: str) -> list[dict[str, object]]:
    """Return the ranks' reports in mpirun's standard output."""
    found = []
    for line in out.splitlines():
        text = line.partition(MARK)[2]
        try:
            said = json.loads(text) if text else {}
        except ValueError:
            continue
        if isinstance(said, dict) and isinstance(said.get("group"), dict):
            found.append(said["group"])
    return found
