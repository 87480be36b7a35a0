"""Ranks that torchrun starts: their lines, nothing left behind."""

import tempfile
from pathlib import Path

import pytest

from distconsole.model.requests import LauncherName, Run
from distconsole.model.run_events import LogLine
from distconsole.operations import SessionSource
from suite.driving import Operator, write_script

pytestmark = pytest.mark.torch_ranks


def left_by_torchrun() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("torchelastic_*")}


SPEAK = """
import os, sys, time
rank = int(os.environ["RANK"])
for step in range(50):
    sys.stdout.write(f"\\rrank {rank}: {step}/50")
    sys.stdout.flush()
print()
sys.stdout.write(f"half of rank {rank}, "); sys.stdout.flush(); time.sleep(0.3)
print("and the rest")
print("to stderr", file=sys.stderr)
"""


def test_lines_of_torchruns_ranks_have_their_rank(
    standing_sessions: SessionSource, tmp_path: Path, lean: dict[str, str]
) -> None:
    before = left_by_torchrun()
    path, env = write_script(tmp_path, SPEAK), tuple(lean.items())
    request = Run(path, nproc="2", launcher=LauncherName.TORCHRUN, env=env)
    with Operator(request, standing_sessions) as run:
        assert run.end(150).exit_code == 0, run.lines()
    for rank in range(4):
        lines = [e for e in run.of(LogLine) if e.rank == rank and not e.transient]
        out = [e.line for e in lines if e.stream == "out"]
        assert out == [f"rank {rank}: 49/50", f"half of rank {rank}, and the rest"]
        assert [e.line for e in lines if e.stream == "err"] == ["to stderr"]
    assert left_by_torchrun() == before
