"""The shim as a program: a start waits for it, so it begins with no more than a start needs."""

from __future__ import annotations

import subprocess
import sys


def test_a_shim_begins_without_what_only_ends_need_and_never_loads_openssl() -> None:
    late = ("distconsole_agent.supervisor.postmortem",)
    program = (
        "import sys, distconsole_agent.supervisor.shim_program; "
        "from distconsole_agent.supervisor.shim import load_late; "
        f"loaded = lambda: [name for name in {(*late, '_hashlib')!r} if name in sys.modules]; "
        "print(loaded()); load_late(); print(loaded())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"[]\n{list(late)}\n"
