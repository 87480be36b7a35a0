"""Hosts on which so much goes on that times measured there say nothing of them."""

from __future__ import annotations

from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.node import OsFacts

BUSY = 2.0
"""Processes for each processor, over the last minute."""


def busy_hosts(view: View) -> dict[str, float]:
    """Return the hosts with more to do than they can, with their processes for each processor."""
    return {name: os.busy for name, os in view.of(OsFacts).items() if os.busy > BUSY}
