"""Threads that read from nodes take turns where they compute.

Only one of them can run at a time, and one that waits for the interpreter's lock wakes every 5 ms to ask for it
(``sys.setswitchinterval``): a thousand that wait spend two processors on asking. Here they sleep.
"""

from __future__ import annotations

import threading

TURNS = threading.Lock()
"""Held over what is computed, never over anything that waits."""
