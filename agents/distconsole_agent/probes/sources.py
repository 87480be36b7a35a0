"""Reads the scripts that probes start in other processes out of the package, or out of the zipapp."""

from __future__ import annotations

import pkgutil

from distconsole_agent.probes.errors import failed


def script_source(name: str) -> bytes:
    """Return the source of the module ``name`` of this package.

    Raises:
        ProbeError: if the package was built without it.
    """
    source = pkgutil.get_data("distconsole_agent.probes", f"{name}.py")
    if source is None:
        raise failed(f"{name}.py is missing from the agent")
    return source
