"""What the console may ask to be looked at on this node. Probes gather facts and never judge them.

Every probe is read-only, has a deadline, and starts programs only in sessions of their own that it
kills..
"""

from __future__ import annotations

from distconsole_agent.probes.errors import ProbeError
from distconsole_agent.probes.groups import run

__all__ = ["ProbeError", "run"]
