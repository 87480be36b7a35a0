"""Cures as words to type, and findings with tried cures."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from distconsole.checks.facts.evidence import View, once_a_view
from distconsole.checks.rules.wording import name_hosts
from distconsole.config.writing import in_config
from distconsole.model.findings import Cure, Finding, HostCure, Proof

OMPI = "OMPI_MCA_"
BTL = "btl_tcp_if_include"
OOB = "oob_tcp_if_include"


def lines_to_type(cure: Cure) -> list[str]:
    """Return the lines that a person types or writes to have a cure, hosts that are alike in one."""
    lines = []
    if cure.mca:
        lines.append(" ".join(["mpirun", *(f"--mca {k} {v}" for k, v in cure.mca.items())]))
    if cure.env:
        lines.append(exports(cure.env))
    if cure.unset:
        lines.append(f"unset {' '.join(cure.unset)}")
    if cure.port is not None:
        lines.append(f"MASTER_PORT={cure.port}  # torchrun: --master_port {cure.port}")
    lines += _networks(cure)
    alike: dict[str, list[str]] = {}
    for name, change in cure.hosts.items():
        words = [exports(change.env)] if change.env else []
        words += [f"unset {' '.join(change.unset)}"] if change.unset else []
        words += [change.setup] if change.setup else []
        alike.setdefault("; ".join(words), []).append(name)
    return lines + [f"on {name_hosts(names)}: {words}" for words, names in alike.items() if words]


def _networks(cure: Cure) -> list[str]:
    """Return what names the interface or the address for training to ``run``, and in the configuration.

    Keys are dotted, so that a line is whole by itself; ``--write-profile`` writes them as tables.
    """
    nics = {name: change.nic for name, change in cure.hosts.items() if change.nic}
    if len(nics) > 1 and len(set(nics.values())) == 1:
        nic = next(iter(nics.values()))
        return [f"distconsole run --nic {shlex.quote(nic)} ...", in_config(("nic",), nic)]
    lines = [in_config(("hosts", name, "nic"), nic) for name, nic in nics.items()]
    return lines + [
        in_config(("hosts", name, "address"), change.address)
        for name, change in cure.hosts.items()
        if change.address
    ]


def exports(env: Mapping[str, str]) -> str:
    # zsh makes a path of ``=eth0``, which ``shlex`` leaves as it is.
    words = (
        f"{name}='{value}'"
        if value.startswith("=") and "'" not in value
        else f"{name}={shlex.quote(value)}"
        for name, value in env.items()
    )
    return " ".join(("export", *words))


def add_to_hint(hint: str, cure: Cure, before: str = "by hand") -> str:
    """Return ``hint``, what ``run`` does by itself, and what to type, led by ``before``: a line each."""
    lines = [hint] if hint else []
    lines += [f"`distconsole run` {cure.by_run}"] if cure.by_run else []
    return "\n".join([*lines, *(f"{before}: {line}" for line in lines_to_type(cure))])


def offer(cure: Cure | None, hint: str = "", before: str = "by hand") -> dict[str, Any]:
    """Return ``cure`` as fields of a finding, and ``hint`` with its lines; without a cure ``hint`` alone."""
    return {"hint": add_to_hint(hint, cure, before) if cure else hint, "cure": cure}


def attach_proof(finding: Finding, proof: Proof) -> Finding:
    """Return ``finding`` with its proof; a cure that failed is dropped."""
    found = msgspec.structs.replace(finding, proof=proof)
    if finding.cure is None or proof.cured or not proof.after:
        return found
    lines = lines_to_type(finding.cure)
    kept = [line for line in finding.hint.splitlines() if not any(each in line for each in lines)]
    said = f"tried, and it was no cure: {'; '.join(lines)}"
    return msgspec.structs.replace(found, hint="\n".join([*kept, said]))


def in_setup(names: Iterable[str], line: str) -> Cure:
    return Cure(hosts={name: HostCure(setup=line) for name in names})


def prefix_of(mpirun: str) -> str:
    """Return the prefix of an MPI, such as ``/opt/openmpi``; empty if the path does not show it."""
    folder = mpirun.rpartition("/")[0]
    return folder.removesuffix("/bin") if folder.endswith("/bin") else ""


def libraries_first(folder: str) -> str:
    """Return the line of shell that lets programs find the libraries of ``folder`` first."""
    return f"export LD_LIBRARY_PATH={shlex.quote(folder)}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"


def by_run(view: View, names: Iterable[str], words: str) -> str:
    """Return ``words`` where ``run`` sets these variables last on every host: no setup command does."""
    return "" if any(name in _setups(view) for name in names) else words


@once_a_view
def _setups(view: View) -> str:
    return " ".join(host.host.setup or "" for host in view.hosts)


def on_network(network: str) -> dict[str, str]:
    """Return Open MPI's parameters that keep it on one network; it takes no network of IPv6 for one."""
    return {} if ":" in network else {BTL: network, OOB: network}


def mca_env(cure: Cure) -> dict[str, str]:
    """Return Open MPI's parameters of a cure as the variables that stand for them."""
    return {f"{OMPI}{name}": value for name, value in cure.mca.items()}
