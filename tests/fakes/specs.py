"""The part of a run that a node gets, with as little in it as a test needs."""

from typing import Any

from distconsole_agent.contract.runspec import RunSpec, parse_spec


def run_spec(*ranks_of_nodes: tuple[int, ...], **fields: Any) -> RunSpec:
    """Return the spec of a run on nodes ``a``, ``b`` and so on with these ranks, by default one with rank 0."""
    nodes = [
        {"host": host, "address": "", "ranks": list(ranks)}
        for host, ranks in zip("abcdefgh", ranks_of_nodes or [(0,)], strict=False)
    ]
    return parse_spec(
        {"run": "run-1", "secret": "", "node_index": 0, "nodes": nodes, "ranks": [], **fields}
    )
