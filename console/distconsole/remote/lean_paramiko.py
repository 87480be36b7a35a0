"""paramiko without invoke, which only its own reader of ssh_config uses and we have one of our own.

invoke is a third of the time that importing paramiko takes. Import paramiko from here.
"""

from __future__ import annotations

import sys

_BLOCKED = "invoke"

if "paramiko" in sys.modules or _BLOCKED in sys.modules:
    import paramiko
else:
    # As if it were not installed, which paramiko allows for; afterwards others may import it.
    sys.modules[_BLOCKED] = None  # type: ignore[assignment]
    try:
        import paramiko
    finally:
        del sys.modules[_BLOCKED]

__all__ = ["paramiko"]
