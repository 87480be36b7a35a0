"""What names the right interface to an engine that a person starts by hand: variables by host, and a line to type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from distconsole.checks.facts.evidence import View
from distconsole.checks.gather.addresses import endpoints
from distconsole.checks.interfaces import gloo, nccl, open_mpi
from distconsole.checks.interfaces.node import nodes_of
from distconsole.checks.interfaces.panel import UNFORESEEN, Engine, run_variables
from distconsole.model.findings import Cure, HostCure

BY_RUN = "it names the interface of each host"

NAMES: Mapping[Engine, tuple[str, ...]] = {
    Engine.NCCL: (nccl.VARIABLE,),
    Engine.GLOO: (gloo.VARIABLE,),
    Engine.HOROVOD: (),  # horovodrun sets its ranks' variable by itself
    Engine.OPEN_MPI: (f"OMPI_MCA_{open_mpi.INCLUDE}",),
    Engine.OPEN_MPI_DAEMONS: (f"OMPI_MCA_{open_mpi.DAEMON_INCLUDE}",),
    **dict.fromkeys(UNFORESEEN, ()),  # never red
}


def variables_for(engines: Iterable[Engine], view: View) -> dict[str, dict[str, str]]:
    """Return by host the variables that lead ``engines`` to the addresses that the check tested."""
    wanted = {name for engine in engines for name in NAMES[engine]}
    told = run_variables(endpoints(view), nodes_of(view))
    return {
        host: {name: value for name, value in variables.items() if name in wanted}
        for host, variables in told.items()
    }


def horovodrun_option(view: View) -> str:
    """Return the option that keeps horovodrun from looking; empty where no one name fits all hosts."""
    names = {endpoint.interface for endpoint in endpoints(view).values()}
    return f"horovodrun --network-interfaces {names.pop()}" if len(names) == 1 else ""


def cure_of(variables: Mapping[str, Mapping[str, str]]) -> Cure:
    """Return ``variables`` as a cure: for all hosts at once where they agree."""
    everywhere = [each for each in variables.values() if each]
    if everywhere and all(each == everywhere[0] for each in everywhere):
        mca = "OMPI_MCA_"
        return Cure(
            env={name: v for name, v in everywhere[0].items() if not name.startswith(mca)},
            mca={n.removeprefix(mca): v for n, v in everywhere[0].items() if n.startswith(mca)},
            by_run=BY_RUN,
        )
    hosts = {host: HostCure(env=dict(each)) for host, each in variables.items() if each}
    return Cure(hosts=hosts, by_run=BY_RUN)


def typed(variables: Mapping[str, Mapping[str, str]]) -> str:
    """Return ``variables`` as lines for a shell: one for all hosts where they agree."""
    lines = {
        host: "; ".join(f"export {name}={value}" for name, value in each.items())
        for host, each in variables.items()
        if each
    }
    if len(set(lines.values())) == 1:
        return next(iter(lines.values()))
    return "\n".join(f"on {host}: {line}" for host, line in lines.items())
