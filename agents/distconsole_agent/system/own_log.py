"""The agent's own log: its standard error, in a file that is bounded."""

from __future__ import annotations

import os
import sys
import time

from distconsole_agent.contract.limits import AGENT_LOG_BYTES


def complain(text: str) -> None:
    """Say something in the agent's own log, which starts over when it is too long."""
    try:
        if os.fstat(2).st_size > AGENT_LOG_BYTES:
            os.ftruncate(2, 0)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        sys.stderr.write(f"{stamp} {text[:2000]}\n")
        sys.stderr.flush()
    except OSError:
        return
