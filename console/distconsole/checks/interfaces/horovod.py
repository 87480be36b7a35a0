"""Horovod's choice over Gloo: of ranks with a given interface, and of horovodrun, which looks for one.

Sources: horovod/common/gloo/gloo_context.cc (``HOROVOD_GLOO_IFACE``; process sets always listen at
the host's own name), horovod/runner/driver/driver_service.py (``_run_probe``: each host tries the
interfaces of the next, and those of whom all know the name are left) and
horovod/runner/gloo_run.py (the first of that *set*) of Horovod 0.28.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from distconsole.checks.interfaces.gloo import by_name, on_interface
from distconsole.checks.interfaces.node import Node, Pick

VARIABLE = "HOROVOD_GLOO_IFACE"


def choose(node: Node) -> tuple[Pick, ...]:
    """Return the listening addresses of a rank: the given interface, and its own name."""
    wanted = node.variables.get(VARIABLE, "")
    own = _for_process_sets(node)
    return (on_interface(node, wanted, VARIABLE), own) if wanted else (own,)


def _for_process_sets(node: Node) -> Pick:
    named = by_name(node)
    return replace(named, how="its own name, for process sets") if named.address else named


def choose_by_probe(
    nodes: Sequence[Node], reaches: Callable[[Node, Node, str], bool]
) -> Mapping[str, tuple[Pick, ...]]:
    """Return by host what horovodrun chooses: interfaces of one name by which all reach the next rank's."""
    names = dict.fromkeys(
        entry.iface for entry in nodes[0].addresses if entry.family == 4 and not entry.loopback
    )
    common = [name for name in names if _all_reach(nodes, name, reaches)]
    others = f", or {', '.join(common[1:])}, by chance" if len(common) > 1 else ""
    found: dict[str, tuple[Pick, ...]] = {}
    for node in nodes:
        picks = [Pick(name, _address(node, name), f"{name} on all hosts") for name in common]
        if others:
            picks = [Pick(p.interface, p.address, f"{common[0]}{others}") for p in picks]
        missing = Pick("", "", "no interface of one name by which all hosts reach the next")
        found[node.name] = (*(picks or [missing]), _for_process_sets(node))
    return found


def _all_reach(
    nodes: Sequence[Node], name: str, reaches: Callable[[Node, Node, str], bool]
) -> bool:
    ring = zip(nodes, (*nodes[1:], nodes[0]), strict=True)
    return all(
        bool(there := _address(following, name)) and reaches(node, following, there)
        for node, following in ring
    )


def _address(node: Node, name: str) -> str:
    found = (e.address for e in node.addresses if e.iface == name and e.family == 4 and e.up)
    return next(found, "")
