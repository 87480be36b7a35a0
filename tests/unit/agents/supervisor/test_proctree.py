"""Whose processes are whose, read from /proc."""

from __future__ import annotations

import os
import resource
import subprocess
import threading

from distconsole_agent.supervisor.proctree import descendants, own_pids


def test_a_descriptor_that_is_short_for_a_moment_hides_no_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    freed = threading.Timer(0.03, resource.setrlimit, (resource.RLIMIT_NOFILE, (soft, hard)))
    with subprocess.Popen(["sleep", "60"]) as child:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        freed.start()
        try:
            found, own = descendants(os.getpid()), own_pids()
        finally:
            freed.join()
            child.kill()
    assert child.pid in found
    assert child.pid in own
