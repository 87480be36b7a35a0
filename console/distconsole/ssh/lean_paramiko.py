"""paramiko without ``invoke``; import it from here.

Its own reader of ssh_config, which we do not use, imports invoke: 57 of 112 ms of CPU.
"""

from __future__ import annotations

import sys

if "invoke" in sys.modules:
    import paramiko
else:
    # As if it were not installed, which paramiko allows for; afterwards others may import it.
    sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        import paramiko
    finally:
        del sys.modules["invoke"]

__all__ = ["paramiko"]
