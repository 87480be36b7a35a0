"""Files in memory, whatever the Python and the C library have for them."""

import ctypes
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from distconsole_agent.probes.scripts import run_script, script_source
from distconsole_agent.system.memory import memory_file


@pytest.mark.parametrize("libc", [True, False])
def test_a_script_runs_without_memfd_create(libc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    if not libc:
        monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert run_script("print('it ran')", 10.0).out == "it ran\n"
    descriptor = memory_file("distconsole-test", b"content")
    assert os.pread(descriptor, 20, 0) == b"content"
    assert not os.get_inheritable(descriptor)
    assert os.fstat(descriptor).st_nlink == 0
    assert not list(Path("/dev/shm").glob("distconsole-test-*"))
    os.close(descriptor)


def test_content_that_finds_no_room_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="No space left"):
        memory_file("distconsole-test", b"content")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_rank_needs_no_package_of_ours() -> None:
    assert "import distconsole_agent" not in script_source("probes.collectives.worker")
    assert "from distconsole_agent" not in script_source("probes.collectives.worker")
