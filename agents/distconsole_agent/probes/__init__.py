"""What the console may ask to be looked at on this node. Every probe is read-only and has a deadline."""

from __future__ import annotations

from distconsole_agent.probes.errors import ProbeError
from distconsole_agent.probes.groups import run

__all__ = ["ProbeError", "run"]
