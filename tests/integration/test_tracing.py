"""``trace`` of a real training on two embedded nodes, while it goes on."""

import gzip
import json
from pathlib import Path

import pytest

from distconsole.errors import UnavailableError, UsageError
from distconsole.model.events import Narration, TextMade
from distconsole.model.requests import Run, Trace
from distconsole.model.run_events import LogLine, Window
from distconsole.operations import SessionSource, StopReason
from suite.driving import Operator, answered

pytestmark = pytest.mark.torch_ranks

LATE = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
while True:
    if dist.get_rank() == 1:
        time.sleep(0.05)
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
"""


def test_a_trace_shows_whom_the_collectives_wait_for_and_the_run_goes_on(
    sessions: SessionSource, tmp_path: Path
) -> None:
    script, output = tmp_path / "late.py", tmp_path / "trace.json.gz"
    script.write_text(LATE)
    with Operator(Run(str(script), nproc="1"), sessions) as run:
        run.see(Window, lambda window: window.rank == 0 and window.steps > 0)
        trace = answered(Trace(run.run, seconds=0.5, output=str(output)), sessions)
        seen = max(window.step for window in run.of(Window))
        run.see(Window, lambda window: window.step > seen + 20)
        vast = Trace(run.run, max_mib=1 << 20)  # more room than a test machine has
        with Operator(vast, sessions) as large, pytest.raises(UnavailableError):
            large.finish()
        assert sum("lower --max-mib" in event.text for event in large.of(Narration)) == 2
        assert run.of(LogLine) == []
        run.control.stop(StopReason.STOP)
        run.finish()
        with (
            Operator(Trace(run.run), sessions) as late,
            pytest.raises(UsageError, match="is over"),
        ):
            late.finish()
    assert [event.text for event in trace.of(TextMade)] == [str(output)]
    told = [event.text for event in trace.of(Narration)]
    assert [text for text in told if text.startswith(("rank 0 on node1: ", "rank 1 on node2: "))]
    events = json.loads(gzip.decompress(output.read_bytes()))["traceEvents"]
    arrows = [event["name"] for event in events if event.get("cat") == "collective"]
    assert arrows.count("waits for rank 1") > 0.5 * len(arrows) > 0
    steps = {event["pid"] for event in events if event["name"].startswith("step ")}
    assert len(steps) == 2
