"""Runs that keep the hook out, and runs whose hook cannot be loaded, on embedded nodes."""

import json
import re
from pathlib import Path

import pytest

from distconsole.grammar.verbs import parse_line
from distconsole.model.requests import Run
from distconsole.model.run_events import RunFinding
from distconsole.operations import SessionSource
from suite.driving import Operator
from suite.lean_torch import LEAN_TORCH

LOOKS = """
import json, os, sys
finders = [type(each).__module__ for each in sys.meta_path]
print(json.dumps({
    "path": os.environ.get("PYTHONPATH", ""),
    "finders": [name for name in finders if "sitecustomize" in name],
    "descriptor": os.path.exists("/proc/self/fd/223"),
    "told": sorted(set(os.environ) & {"DISTCONSOLE_RINGS", "DISTCONSOLE_ERRORS"}),
}))
"""

NONE = {"path": "", "finders": [], "descriptor": False, "told": []}
OFF = ("DISTCONSOLE_HOOK", "0")


@pytest.mark.parametrize("given", ["--env", "the console's environment", "nothing"])
def test_the_hook_stays_out_where_the_variable_says_so(
    given: str, standing_sessions: SessionSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    job = tmp_path / "job.py"
    job.write_text(LOOKS)
    if given == "the console's environment":
        monkeypatch.setenv(*OFF)
    request = Run(str(job), nproc="1", env=(OFF,) if given == "--env" else ())
    with Operator(request, standing_sessions) as run:
        run.finish()
        seen = [json.loads(line) for line in run.lines()]
    assert len(seen) == 2
    for each in seen:
        if given == "nothing":
            assert "/hook-" in each["path"]
            assert each["finders"]
            assert len(each["told"]) == 2
        else:
            assert each == NONE


def test_the_line_that_the_page_gives_keeps_the_hook_out() -> None:
    text = Path(__file__).parents[2].joinpath("docs/reference/hook.md").read_text()
    (line,) = set(re.findall(r"`(--env DISTCONSOLE_HOOK=\S+)`", text))
    request = parse_line(f"run {line} train.py")
    assert request.env == (OFF,)


LOSES_THE_HOOK = f"""
import os, sys, time
if os.environ.pop("PYTHONPATH", ""):
    os.execv(sys.executable, [sys.executable, *sys.argv])
{LEAN_TORCH}
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.mark.torch_ranks
def test_a_run_whose_ranks_lost_the_hook_says_so(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    job, end = tmp_path / "job.py", tmp_path / "end"
    job.write_text(LOSES_THE_HOOK)
    with Operator(Run(str(job), (str(end),), nproc="1"), standing_sessions) as run:
        found = run.see(RunFinding, lambda event: event.check == "run.unwatched")
        end.touch()
        run.finish()
    assert "its PYTHONPATH does not hold /" in found.summary
